// SPDX-License-Identifier: Apache-2.0
#include "make_model/tokenizer_files.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>

#include "base/json.h"

namespace tandem::tools {
namespace json = boost::json;
namespace fs = std::filesystem;
namespace {

constexpr int kNumSpecial = 3;
constexpr std::int32_t kNormal = 1;
constexpr std::int32_t kControl = 3;
constexpr std::int32_t kUnused = 5;
constexpr std::string_view kChatMl =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
    "'\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

void append_utf8(std::string& text, unsigned code) {
  if (code < 0x80) {
    text.push_back(static_cast<char>(code));
  } else {
    text.push_back(static_cast<char>(0xC0 | (code >> 6)));
    text.push_back(static_cast<char>(0x80 | (code & 0x3F)));
  }
}

// The byte-level alphabet: printable bytes stand for themselves, the others for U+0100 and on, in order.
std::vector<std::string> byte_alphabet() {
  std::vector<std::string> alphabet(256);
  unsigned next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    append_utf8(alphabet[byte], printable ? byte : next++);
  }
  return alphabet;
}

bool used_by_utf8(unsigned byte) { return byte != 0xC0 && byte != 0xC1 && byte < 0xF5; }

Result<void> write_text(const fs::path& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.flush();
  if (!out) return Status(Code::kInternal, fmt::format("cannot write {}", path.string()));
  return {};
}

json::object added_token(std::int32_t id, std::string_view content) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

std::string merge_text(const json::value& merge) {
  if (merge.is_string()) return std::string(merge.as_string());
  if (!merge.is_array() || merge.as_array().size() != 2) return {};
  const json::array& pair = merge.as_array();
  if (!pair[0].is_string() || !pair[1].is_string()) return {};
  return std::string(pair[0].as_string()) + " " + std::string(pair[1].as_string());
}

// Which of llama.cpp's named pre-tokenizers splits text as this tokenizer.json does.
std::string pre_tokenizer_name(const json::object& tokenizer) {
  const json::value* pre = tokenizer.if_contains("pre_tokenizer");
  const std::string text = pre == nullptr ? std::string() : json::serialize(*pre);
  if (text.find("{1,3}") != std::string::npos) return "llama-bpe";
  if (text.find("\"Digits\"") != std::string::npos) return "smollm";
  return text.find("Split") != std::string::npos ? "qwen2" : "gpt-2";
}

Result<void> set_token(Vocabulary& vocabulary, const json::value& id, std::string_view content, std::int32_t type) {
  if (!id.is_int64() || id.as_int64() < 0 || id.as_int64() >= static_cast<std::int64_t>(vocabulary.tokens.size()))
    return Status(Code::kInvalidArgument, fmt::format("token '{}' has the id {}, but the model's vocabulary has {}",
                                                      content, json::serialize(id), vocabulary.tokens.size()));
  const auto index = static_cast<std::size_t>(id.as_int64());
  vocabulary.tokens[index] = content;
  vocabulary.types[index] = type;
  const auto token = static_cast<std::int32_t>(index);
  if (content == "<|endoftext|>") vocabulary.end_of_text = token;
  if (content == "<|im_start|>") vocabulary.im_start = token;
  if (content == "<|im_end|>") vocabulary.im_end = token;
  return {};
}

}  // namespace

Result<Vocabulary> byte_vocabulary(std::int32_t vocab_size) {
  Vocabulary vocabulary;
  const std::vector<std::string> alphabet = byte_alphabet();
  const bool all_bytes = vocab_size >= 256 + kNumSpecial;
  for (unsigned byte = 0; byte < 256; ++byte)
    if (all_bytes || used_by_utf8(byte)) vocabulary.tokens.push_back(alphabet[byte]);
  const std::int32_t filler = vocab_size - kNumSpecial - static_cast<std::int32_t>(vocabulary.tokens.size());
  if (filler < 0)
    return Status(Code::kInvalidArgument,
                  fmt::format("a byte-level tokenizer needs a vocabulary of at least {}, this model's has {}",
                              vocabulary.tokens.size() + kNumSpecial, vocab_size));
  // "Ġ" is the space: filler reads as separate words. No merge leads to it; only a model can emit it.
  for (std::int32_t i = 0; i < filler; ++i) vocabulary.tokens.push_back(fmt::format("\xC4\xA0w{}", i));
  vocabulary.types.assign(vocabulary.tokens.size(), kNormal);
  for (const char* special : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}) {
    vocabulary.tokens.emplace_back(special);
    vocabulary.types.push_back(kControl);
  }
  vocabulary.end_of_text = vocab_size - 3;
  vocabulary.im_start = vocab_size - 2;
  vocabulary.im_end = vocab_size - 1;
  vocabulary.chat_template = kChatMl;
  return vocabulary;
}

Result<Vocabulary> folder_vocabulary(const std::string& folder, std::int32_t vocab_size) {
  const fs::path path = fs::path(folder) / "tokenizer.json";
  TANDEM_ASSIGN(const json::value parsed, read_json_file(path.string()));
  const json::object* tokenizer = parsed.if_object();
  const json::value* bpe = tokenizer == nullptr ? nullptr : tokenizer->if_contains("model");
  const json::value* vocab = bpe == nullptr || !bpe->is_object() ? nullptr : bpe->as_object().if_contains("vocab");
  const json::value* merges = bpe == nullptr || !bpe->is_object() ? nullptr : bpe->as_object().if_contains("merges");
  if (vocab == nullptr || !vocab->is_object() || merges == nullptr || !merges->is_array())
    return Status(Code::kInvalidArgument, fmt::format("{} has no BPE model with 'vocab' and 'merges'", path.string()));
  Vocabulary vocabulary;
  vocabulary.pre = pre_tokenizer_name(*tokenizer);
  vocabulary.chat_template = kChatMl;
  for (std::int32_t i = 0; i < vocab_size; ++i) vocabulary.tokens.push_back(fmt::format("[PAD{}]", i));
  vocabulary.types.assign(vocabulary.tokens.size(), kUnused);
  for (const auto& [token, id] : vocab->as_object()) TANDEM_TRY(set_token(vocabulary, id, token, kNormal));
  if (const json::value* added = tokenizer->if_contains("added_tokens"); added != nullptr && added->is_array())
    for (const json::value& token : added->as_array()) {
      const json::object* object = token.if_object();
      const json::value* id = object == nullptr ? nullptr : object->if_contains("id");
      if (id == nullptr) continue;
      TANDEM_ASSIGN(const std::optional<std::string> content, json_string(*object, "content"));
      TANDEM_TRY(set_token(vocabulary, *id, content.value_or(""), kControl));
    }
  for (const json::value& merge : merges->as_array()) vocabulary.merges.push_back(merge_text(merge));
  return vocabulary;
}

Result<void> write_tokenizer_files(const Vocabulary& vocabulary, const std::string& folder) {
  json::object vocab;
  json::array added;
  for (std::size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    const auto id = static_cast<std::int32_t>(i);
    if (vocabulary.types[i] == kControl)
      added.push_back(added_token(id, vocabulary.tokens[i]));
    else
      vocab[vocabulary.tokens[i]] = id;
  }
  const json::object byte_level{
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", true}};
  const json::object bpe{{"type", "BPE"},
                         {"dropout", nullptr},
                         {"unk_token", nullptr},
                         {"continuing_subword_prefix", nullptr},
                         {"end_of_word_suffix", nullptr},
                         {"fuse_unk", false},
                         {"byte_fallback", false},
                         {"ignore_merges", false},
                         {"vocab", std::move(vocab)},
                         {"merges", json::array()}};
  const json::object tokenizer{{"version", "1.0"},          {"truncation", nullptr}, {"padding", nullptr},
                               {"added_tokens", added},     {"normalizer", nullptr}, {"pre_tokenizer", byte_level},
                               {"post_processor", nullptr}, {"decoder", byte_level}, {"model", bpe}};
  const json::object config{{"tokenizer_class", "PreTrainedTokenizerFast"},
                            {"bos_token", nullptr},
                            {"eos_token", "<|im_end|>"},
                            {"pad_token", "<|endoftext|>"},
                            {"add_bos_token", false},
                            {"clean_up_tokenization_spaces", false},
                            {"chat_template", vocabulary.chat_template}};
  const json::object generation{{"eos_token_id", json::array{vocabulary.im_end, vocabulary.end_of_text}},
                                {"pad_token_id", vocabulary.end_of_text}};
  TANDEM_TRY(write_text(fs::path(folder) / "tokenizer.json", json::serialize(tokenizer)));
  TANDEM_TRY(write_text(fs::path(folder) / "tokenizer_config.json", json::serialize(config)));
  return write_text(fs::path(folder) / "generation_config.json", json::serialize(generation));
}

Result<void> copy_tokenizer_files(const std::string& from, const std::string& to) {
  std::error_code error;
  for (const char* name :
       {"tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"}) {
    const fs::path source = fs::path(from) / name;
    const bool required = std::string_view(name) == "tokenizer.json";
    if (!required && !fs::exists(source, error)) continue;
    fs::copy_file(source, fs::path(to) / name, fs::copy_options::overwrite_existing, error);
    if (error)
      return Status(Code::kNotFound, fmt::format("cannot copy {} to {}: {}", source.string(), to, error.message()));
  }
  return {};
}

}  // namespace tandem::tools
