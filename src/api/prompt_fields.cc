// SPDX-License-Identifier: Apache-2.0
// Prompts of completions: texts, ids, lists of both; and their lengths.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>

#include "api/request.h"
#include "base/log.h"

namespace tandem::api {
namespace {

namespace json = boost::json;

Outcome<std::vector<Prompt>> ids_prompts(const json::array& list) {
  std::vector<Prompt> prompts;
  const bool nested = list.front().is_array();
  const std::size_t count = nested ? list.size() : 1;
  for (std::size_t i = 0; i < count; ++i) {
    if (nested && !list[i].is_array()) return validation_error("list_type", "prompt", "Input should be a valid list");
    Prompt& prompt = prompts.emplace_back();
    for (const json::value& element : nested ? list[i].as_array() : list) {
      const auto id = int32_of(element);
      if (!id) return validation_error("int_type", "prompt", "Input should be a valid integer (a token id)");
      prompt.ids.push_back(*id);
    }
  }
  return prompts;
}

}  // namespace

Outcome<std::vector<std::int32_t>> tokenize(const Context& context, std::string_view text, bool add_special_tokens,
                                            bool limited) {
  if (context.parts.tokenizer == nullptr)
    return bad_request("this server has no tokenizer: give token ids in place of text", "prompt");
  if (limited && text.size() > context.max_text_bytes)
    return bad_request(
        fmt::format("This model's maximum context length is {} tokens. However, your prompt has {} bytes, which "
                    "cannot fit whatever it says. Please reduce the length of the input prompt.",
                    context.max_model_len(), text.size()),
        "input_text");
  auto ids = context.parts.tokenizer->encode(text, add_special_tokens);
  if (!ids) return bad_request(ids.error().message(), "prompt");
  return std::move(*ids);
}

Outcome<void> truncate_prompts(const Fields& body, std::int64_t limit, Job& job) {
  TANDEM_ASSIGN(const auto asked, body.integer("truncate_prompt_tokens"));
  if (!asked) return {};
  if (*asked < -1 || *asked == 0)
    return bad_request(fmt::format("truncate_prompt_tokens must be -1 or at least 1, got {}.", *asked),
                       "truncate_prompt_tokens");
  const bool what_fits = *asked == -1;
  if (!what_fits && *asked > limit)
    return bad_request(
        fmt::format("truncate_prompt_tokens value ({}) is greater than max_model_len minus max_tokens ({}). Please "
                    "request a smaller truncation size.",
                    *asked, limit),
        "truncate_prompt_tokens");
  for (std::size_t i = 0; i < job.prompts.size(); ++i) {
    std::vector<std::int32_t>& ids = job.prompts[i].ids;
    std::int64_t keep = what_fits ? std::max<std::int64_t>(limit, 1) : *asked;  // 1: refused as too long, not as empty
    // What fits depends on the client's max_tokens, which a proxy replaces for a prefiller. The decoder had it.
    if (what_fits && i < job.kv.push_to.size() && job.kv.push_to[i]) keep = job.kv.push_to[i]->num_tokens;
    const std::int64_t over = std::ssize(ids) - keep;
    if (over <= 0) continue;
    ids.erase(ids.begin(), ids.begin() + over);
    if (what_fits && job.kv.remote_decode && !job.for_prefill) {
      log::debug("request {}: do_remote_decode is ignored: what fits of its prompt is the decoder's to say", job.id);
      job.kv.remote_decode = false;
    }
  }
  return {};
}

Outcome<std::vector<Prompt>> read_prompts(const Context& context, const Fields& body) {
  const json::value* value = body.find("prompt");
  if (value == nullptr || (value->is_string() && value->as_string().empty()))
    return value_error("Either prompt or prompt_embeds must be provided and non-empty.");
  TANDEM_ASSIGN(const bool add_special, body.boolean("add_special_tokens", true));
  const bool limited = !body.has("truncate_prompt_tokens");
  std::vector<std::string_view> texts;
  if (value->is_string()) {
    texts.emplace_back(value->as_string());
  } else if (!value->is_array()) {
    return validation_error("string_type", "prompt", "Input should be a string, a list of strings, or token ids");
  } else if (value->as_array().empty()) {
    return bad_request("please provide at least one prompt", "prompt");
  } else if (!value->as_array().front().is_string()) {
    return ids_prompts(value->as_array());
  } else {
    for (const json::value& element : value->as_array()) {
      if (!element.is_string()) return validation_error("string_type", "prompt", "Input should be a valid string");
      texts.emplace_back(element.as_string());
    }
  }
  std::vector<Prompt> prompts;
  for (const std::string_view text : texts) {
    TANDEM_ASSIGN(auto ids, tokenize(context, text, add_special, limited));
    Prompt& prompt = prompts.emplace_back();
    prompt.ids = std::move(ids);
    prompt.echo = std::string(text);
  }
  return prompts;
}

}  // namespace tandem::api
