// SPDX-License-Identifier: Apache-2.0
#include "model/hf_metadata.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <limits>

#include "base/json.h"

namespace tandem::model {
namespace json = boost::json;
namespace {

constexpr std::size_t kMaxEosIds = 256;

Status bad_field(std::string_view key, const json::value& value, std::string_view expected) {
  return Status(Code::kInvalidArgument,
                fmt::format("field '{}' is {}, expected {}", key, json::serialize(value).substr(0, 80), expected));
}

Result<void> read_token_ids(const json::value& value, std::vector<std::int32_t>& ids) {
  const json::array list = value.is_array() ? value.as_array() : json::array{value};
  if (list.size() > kMaxEosIds) return bad_field("eos_token_id", value, "at most 256 token ids");
  for (const json::value& item : list) {
    if (!item.is_int64() || item.as_int64() < 0 || item.as_int64() > std::numeric_limits<std::int32_t>::max())
      return bad_field("eos_token_id", value, "a token id or a list of them");
    ids.push_back(static_cast<std::int32_t>(item.as_int64()));
  }
  return {};
}

// A special token is its text, or an object with `content`.
std::string token_text(const json::object& config, std::string_view key) {
  const json::value* value = config.if_contains(key);
  if (value != nullptr && value->is_object()) value = value->as_object().if_contains("content");
  return value != nullptr && value->is_string() ? std::string(value->as_string()) : std::string();
}

}  // namespace

Result<GenerationDefaults> parse_generation_config(const json::object& config) {
  GenerationDefaults defaults;
  TANDEM_ASSIGN(defaults.temperature, json_double(config, "temperature"));
  TANDEM_ASSIGN(defaults.top_p, json_double(config, "top_p"));
  TANDEM_ASSIGN(defaults.min_p, json_double(config, "min_p"));
  TANDEM_ASSIGN(defaults.repetition_penalty, json_double(config, "repetition_penalty"));
  TANDEM_ASSIGN(defaults.top_k, json_int(config, "top_k"));
  TANDEM_ASSIGN(defaults.max_new_tokens, json_int(config, "max_new_tokens"));
  if (const json::value* eos = config.if_contains("eos_token_id"); eos != nullptr && !eos->is_null())
    TANDEM_TRY(read_token_ids(*eos, defaults.eos_token_ids));
  return defaults;
}

Result<TokenizerConfig> parse_tokenizer_config(const json::object& config) {
  TokenizerConfig result;
  result.bos = token_text(config, "bos_token");
  result.eos = token_text(config, "eos_token");
  result.pad = token_text(config, "pad_token");
  result.unk = token_text(config, "unk_token");
  TANDEM_ASSIGN(result.model_max_length, json_double(config, "model_max_length"));
  const json::value* chat = config.if_contains("chat_template");
  if (chat == nullptr || chat->is_null()) return result;
  if (chat->is_string()) {
    result.templates.push_back({"default", std::string(chat->as_string())});
    return result;
  }
  if (!chat->is_array()) return bad_field("chat_template", *chat, "a string, or a list of {name, template}");
  for (const json::value& item : chat->as_array()) {
    const json::object* named = item.if_object();
    const json::value* name = named == nullptr ? nullptr : named->if_contains("name");
    const json::value* text = named == nullptr ? nullptr : named->if_contains("template");
    if (name == nullptr || text == nullptr || !name->is_string() || !text->is_string())
      return bad_field("chat_template", item, "{name, template} with two strings");
    result.templates.push_back({std::string(name->as_string()), std::string(text->as_string())});
  }
  return result;
}

Result<std::optional<std::string>> choose_template(const std::vector<NamedTemplate>& templates, bool with_tools) {
  if (templates.empty()) return std::optional<std::string>();
  const auto named = [&](std::string_view name) {
    return std::find_if(templates.begin(), templates.end(), [&](const NamedTemplate& t) { return t.name == name; });
  };
  if (with_tools)
    if (const auto found = named("tool_use"); found != templates.end()) return std::optional(found->text);
  if (const auto found = named("default"); found != templates.end()) return std::optional(found->text);
  if (templates.size() == 1) return std::optional(templates.front().text);
  return Status(Code::kInvalidArgument,
                fmt::format("the checkpoint has {} chat templates, none of them named 'default' (the first is '{}'); "
                            "give one with --chat-template",
                            templates.size(), templates.front().name));
}

}  // namespace tandem::model
