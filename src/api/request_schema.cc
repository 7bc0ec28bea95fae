// SPDX-License-Identifier: Apache-2.0
#include "api/request_schema.h"

#include <algorithm>
#include <array>

namespace tandem::api {
namespace {

using enum FieldType;

constexpr std::string_view kRefused = "refused if it is given: this server does not have it";

constexpr FieldDoc kModel{"model", kString, "any served name; absent, null and \"\" mean the first one"};

/// Of completions and chats.
constexpr auto kCommon = std::to_array<FieldDoc>({
    kModel,
    {"max_tokens", kInteger},
    {"stream", kBoolean},
    {"stream_options", kObject, "include_usage, continuous_usage_stats"},
    {"temperature", kNumber},
    {"top_p", kNumber},
    {"top_k", kInteger},
    {"min_p", kNumber},
    {"repetition_penalty", kNumber},
    {"presence_penalty", kNumber},
    {"frequency_penalty", kNumber},
    {"seed", kInteger},
    {"n", kInteger},
    {"min_tokens", kInteger},
    {"stop", kAny, "a string or a list of strings"},
    {"stop_token_ids", kArray},
    {"include_stop_str_in_output", kBoolean},
    {"ignore_eos", kBoolean},
    {"skip_special_tokens", kBoolean},
    {"spaces_between_special_tokens", kBoolean},
    {"user", kString, "has a type, changes nothing"},
    {"guided_decoding_backend", kString, "has a type, changes nothing"},
    {"length_penalty", kNumber, "has a type, changes nothing"},
    {"vllm_xargs", kObject, "has a type, changes nothing"},
    {"mm_processor_kwargs", kObject, "has a type, changes nothing"},
    {"logit_bias", kObject, "token ids to numbers"},
    {"allowed_token_ids", kArray},
    {"prompt_logprobs", kInteger},
    {"echo", kBoolean},
    {"add_special_tokens", kBoolean},
    {"truncate_prompt_tokens", kInteger},
    {"return_token_ids", kBoolean},
    {"return_tokens_as_token_ids", kBoolean},
    {"response_format", kObject, "text, json_object, json_schema or structural_tag"},
    {"structured_outputs", kObject, "one of json, json_object, regex, choice, grammar, structural_tag"},
    {"guided_json", kAny},
    {"guided_regex", kString},
    {"guided_choice", kArray},
    {"guided_grammar", kString},
    {"structural_tag", kAny},
    {"guided_whitespace_pattern", kString},
    {"priority", kInteger, "lower is earlier, with --scheduling-policy priority"},
    {"cache_salt", kString},
    {"request_id", kString},
    {"kv_transfer_params", kObject, "between proxies and instances"},
    {"best_of", kInteger, "above 1 refused"},
    {"use_beam_search", kBoolean, "true is refused"},
    {"logits_processors", kArray, kRefused},
    {"repetition_detection", kAny, kRefused},
    {"thinking_token_budget", kInteger, kRefused},
});

constexpr auto kCompletionOnly = std::to_array<FieldDoc>({
    {"prompt", kAny, "a string, a list of strings, token ids, or a list of lists of them"},
    {"logprobs", kInteger},
    {"suffix", kString, kRefused},
    {"prompt_embeds", kAny, kRefused},
});

/// What a chat template gets, in chats and in /tokenize.
constexpr auto kTemplate = std::to_array<FieldDoc>({
    {"messages", kArray},
    {"tools", kArray},
    {"documents", kArray},
    {"chat_template", kString, "with --trust-request-chat-template"},
    {"chat_template_kwargs", kObject, "variables of the template, for example enable_thinking"},
    {"add_generation_prompt", kBoolean},
    {"continue_final_message", kBoolean},
    {"reasoning_effort", kString},
    {"parallel_tool_calls", kBoolean},
    {"include_reasoning", kBoolean},
});

constexpr auto kChatOnly = std::to_array<FieldDoc>({
    {"logprobs", kBoolean},
    {"top_logprobs", kInteger},
    {"max_completion_tokens", kInteger},
    {"tool_choice", kAny, "none, auto, required or a named function"},
    {"bad_words", kArray},
});

constexpr auto kTokenizeOnly = std::to_array<FieldDoc>({
    kModel,
    {"prompt", kString, "or messages"},
    {"add_special_tokens", kBoolean},
    {"return_token_strs", kBoolean},
});

constexpr auto kDetokenize = std::to_array<FieldDoc>({kModel, {"tokens", kArray}});

constexpr auto kRelease = std::to_array<FieldDoc>({{"kv_transfer_params", kObject, "the hand-over to end"}});

template <std::size_t... N>
constexpr auto join(const std::array<FieldDoc, N>&... parts) {
  std::array<FieldDoc, (N + ...)> all{};
  auto* next = all.data();
  ((next = std::copy(parts.begin(), parts.end(), next)), ...);
  return all;
}

constexpr auto kCompletion = join(kCompletionOnly, kCommon);
constexpr auto kChat = join(kTemplate, kChatOnly, kCommon);
constexpr auto kTokenize = join(kTokenizeOnly, kTemplate);

}  // namespace

Schema completion_schema() { return kCompletion; }
Schema chat_schema() { return kChat; }
Schema tokenize_schema() { return kTokenize; }
Schema detokenize_schema() { return kDetokenize; }
Schema release_schema() { return kRelease; }

bool lists(Schema schema, std::string_view name) {
  return std::any_of(schema.begin(), schema.end(), [name](const FieldDoc& field) { return field.name == name; });
}

}  // namespace tandem::api
