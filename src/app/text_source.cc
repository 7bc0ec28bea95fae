// SPDX-License-Identifier: Apache-2.0
#include "app/text_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/json.h"
#include "base/log.h"

namespace tandem::app {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kChatMl =
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% "
    "endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
constexpr std::int32_t kNormalToken = 1;
constexpr std::int32_t kControlToken = 3;

Result<std::shared_ptr<const text::Tokenizer>> from_checkpoint(const model::Checkpoint& checkpoint,
                                                               const std::string& name) {
  model::TokenizerSource source = checkpoint.tokenizer_source();
  if (!source.tokenizer_json_path.empty()) return text::Tokenizer::from_file(source.tokenizer_json_path);
  text::GgufVocabulary vocabulary;
  vocabulary.model = std::move(source.gguf_model);
  vocabulary.pre = std::move(source.gguf_pre);
  vocabulary.tokens = std::move(source.tokens);
  vocabulary.token_types = std::move(source.token_types);
  vocabulary.merges = std::move(source.merges);
  vocabulary.add_bos = source.add_bos;
  vocabulary.bos_id = source.bos_id;
  auto tokenizer = text::Tokenizer::from_gguf(vocabulary);
  if (!tokenizer) return tokenizer.error().context("tokenizer of " + name);
  return tokenizer;
}

Result<std::shared_ptr<const text::Tokenizer>> load_tokenizer(const config::ServeConfig& config,
                                                              const model::Checkpoint& checkpoint) {
  if (!config.tokenizer.empty()) return open_tokenizer(config.tokenizer);
  return from_checkpoint(checkpoint, config.model);
}

/// --chat-template: a file, or the template itself (which has braces).
Result<std::string> read_template_flag(const std::string& value) {
  std::ifstream in(value, std::ios::binary);
  std::error_code error;
  if (in && fs::is_regular_file(value, error))
    return std::string(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  if (value.find_first_of("{}\n") != std::string::npos) return value;
  return Status(
      Code::kNotFound,
      fmt::format("--chat-template {}: no such file, and it is no template by itself (it has no {{ }})", value));
}

Result<void> load_templates(const config::ServeConfig& config, const model::Checkpoint& checkpoint, TextParts& parts) {
  if (!config.chat_template.empty()) {
    TANDEM_ASSIGN(const std::string source, read_template_flag(config.chat_template));
    auto compiled = text::ChatTemplate::compile(source, parts.tokens);
    if (!compiled) return compiled.error().context("--chat-template");
    parts.chat_template = *compiled;
    return {};
  }
  TANDEM_ASSIGN(const auto plain, checkpoint.chat_template(false));
  TANDEM_ASSIGN(const auto with_tools, checkpoint.chat_template(true));
  if (plain) {
    auto compiled = text::ChatTemplate::compile(*plain, parts.tokens);
    // Completions work without it, so a template that is beyond us is no reason to refuse the model.
    if (!compiled)
      log::warning("the model's chat template cannot be used, so /v1/chat/completions is off: {}",
                   compiled.error().message());
    else
      parts.chat_template = *compiled;
  }
  if (with_tools && with_tools != plain) {
    auto compiled = text::ChatTemplate::compile(*with_tools, parts.tokens);
    if (compiled) parts.tool_template = *compiled;
  }
  return {};
}

/// The tokenizer's end-of-sequence id first, then those of generation_config.json and of the model's config.
std::vector<std::int32_t> eos_ids(const model::Checkpoint& checkpoint, const text::Tokenizer& tokenizer) {
  std::vector<std::int32_t> ids;
  const auto add = [&ids](std::int32_t id) {
    if (id >= 0 && std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  };
  if (const std::string eos = checkpoint.special_token("eos"); !eos.empty()) add(tokenizer.piece_to_id(eos));
  for (const std::int32_t id : checkpoint.generation_defaults().eos_token_ids) add(id);
  for (const std::int32_t id : checkpoint.config().eos_token_ids) add(id);
  return ids;
}

/// The character that byte-level vocabularies write for a byte: printable ones stand for themselves, the others are
/// moved up past 255, in order.
std::string byte_piece(int byte) {
  const auto printable = [](int b) { return (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE; };
  int code = byte;
  if (!printable(byte)) {
    code = 256;
    for (int lower = 0; lower < byte; ++lower)
      if (!printable(lower)) ++code;
  }
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
}

/// One token a byte, and three of ChatML.
Result<std::shared_ptr<const text::Tokenizer>> byte_tokenizer() {
  text::GgufVocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre = "default";
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary.tokens.push_back(byte_piece(byte));
    vocabulary.token_types.push_back(kNormalToken);
  }
  for (const char* special : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}) {
    vocabulary.tokens.emplace_back(special);
    vocabulary.token_types.push_back(kControlToken);
  }
  return text::Tokenizer::from_gguf(vocabulary);
}

/// tokenizer_config.json as it is, or what is known without one, with its class and the template in use.
Result<std::string> tokenizer_config(const config::ServeConfig& config, const text::TemplateTokens& tokens,
                                     const std::optional<std::string>& chat_template) {
  namespace json = boost::json;
  fs::path folder = config.tokenizer.empty() ? config.model : config.tokenizer;
  std::error_code error;
  if (!fs::is_directory(folder, error)) folder = folder.parent_path();
  const fs::path path = folder / "tokenizer_config.json";
  json::object object;
  if (fs::exists(path, error)) {
    TANDEM_ASSIGN(const json::value value, read_json_file(path.string(), JsonLimits{.max_bytes = 64U << 20}));
    if (!value.is_object()) return Status(Code::kInvalidArgument, path.string() + ": expected a JSON object");
    object = value.get_object();
  } else {
    const auto add = [&object](const char* name, const std::string& token) {
      if (!token.empty()) object[name] = token;
    };
    add("bos_token", tokens.bos);
    add("eos_token", tokens.eos);
    add("pad_token", tokens.pad);
    add("unk_token", tokens.unk);
  }
  if (!object.contains("tokenizer_class")) object["tokenizer_class"] = "PreTrainedTokenizerFast";
  if (chat_template && !object.contains("chat_template")) object["chat_template"] = *chat_template;
  return std::string(json::serialize(object));
}

}  // namespace

Result<std::shared_ptr<const text::Tokenizer>> open_tokenizer(const std::string& path) {
  std::error_code error;
  fs::path file = path;
  if (fs::is_directory(file, error)) file /= "tokenizer.json";
  if (file.extension() != ".gguf" && fs::exists(file, error)) return text::Tokenizer::from_file(file.string());
  if (!fs::exists(path, error)) return Status(Code::kNotFound, path + ": there is no such file or folder");
  TANDEM_ASSIGN(const auto checkpoint, model::Checkpoint::open(path, {}));
  return from_checkpoint(*checkpoint, path);
}

Result<TextParts> load_text(const config::ServeConfig& config, const model::Checkpoint& checkpoint) {
  TextParts parts;
  TANDEM_ASSIGN(parts.tokenizer, load_tokenizer(config, checkpoint));
  parts.tokens = text::TemplateTokens{checkpoint.special_token("bos"), checkpoint.special_token("eos"),
                                      checkpoint.special_token("pad"), checkpoint.special_token("unk")};
  TANDEM_TRY(load_templates(config, checkpoint, parts));
  parts.eos_token_ids = eos_ids(checkpoint, *parts.tokenizer);
  if (config.tokenizer_info) {
    TANDEM_ASSIGN(const auto chat_template, checkpoint.chat_template(false));
    TANDEM_ASSIGN(parts.tokenizer_config, tokenizer_config(config, parts.tokens, chat_template));
  }
  return parts;
}

Result<TextParts> stub_text(const config::ServeConfig& config) {
  TextParts parts;
  TANDEM_ASSIGN(parts.tokenizer, config.tokenizer.empty() ? byte_tokenizer() : open_tokenizer(config.tokenizer));
  parts.tokens.eos = "<|im_end|>";
  for (const char* piece : {"<|im_end|>", "<|endoftext|>"}) {
    const std::int32_t id = parts.tokenizer->piece_to_id(piece);
    if (id >= 0) parts.eos_token_ids.push_back(id);
  }
  std::string source(kChatMl);
  if (!config.chat_template.empty()) {
    TANDEM_ASSIGN(source, read_template_flag(config.chat_template));
  }
  TANDEM_ASSIGN(parts.chat_template, text::ChatTemplate::compile(source, parts.tokens));
  if (config.tokenizer_info) {
    TANDEM_ASSIGN(parts.tokenizer_config, tokenizer_config(config, parts.tokens, source));
  }
  return parts;
}

}  // namespace tandem::app
