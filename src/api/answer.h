// SPDX-License-Identifier: Apache-2.0
// Answers of the two generation endpoints: what a choice has said so far, and the exact JSON of whole answers and of
// stream chunks. Spec: vllm_api.md 6.2, 7.2, 8, 9.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "api/context.h"
#include "api/parsers/message_parser.h"
#include "api/request.h"
#include "engine/engine.h"

namespace tandem::api {

class JsonWriter;

/// What a choice has produced.
struct Choice {
  std::string text;
  std::vector<std::int32_t> tokens;
  std::vector<std::vector<worker::TokenLogprob>> logprobs;         ///< one list a token
  std::vector<std::vector<worker::TokenLogprob>> prompt_logprobs;  ///< one list a token of the prompt, the first empty
  std::optional<engine::FinishReason> finish;
  std::variant<std::monostate, std::int32_t, std::string> stop_reason;
  std::int32_t num_cached_tokens = 0;
  std::optional<transfer::Handover> handover;
  engine::RequestTimes times;
  std::optional<MessageParser> message;  ///< chat only

  /// Takes an output in. For a chat: what it adds to the message.
  MessageDelta add(const engine::Output& output);
};

struct Usage {
  std::int64_t prompt_tokens = 0;
  std::int64_t completion_tokens = 0;
  std::int64_t cached_tokens = 0;
};
/// Each prompt counts once, each choice's tokens count.
Usage total_usage(const Job& job, std::span<const Choice> choices);

class AnswerFormat {
 public:
  virtual ~AnswerFormat() = default;
  /// The body of a non-stream answer.
  virtual std::string whole(std::span<const Choice> choices) const = 0;
  /// Events before the first output's (roles, echo), each complete: "data: {...}\n\n".
  virtual std::vector<std::string> opening() const = 0;
  /// The event of one output, which `choice` has taken in already; "" if it says nothing.
  virtual std::string chunk(std::size_t index, const Choice& choice, const engine::Output& output,
                            const MessageDelta& delta) const = 0;
  /// The event that only has usage.
  virtual std::string usage_event(const Usage& usage) const = 0;
};

/// `context` and `job` must outlive the format.
std::unique_ptr<AnswerFormat> completion_format(const Context& context, const Job& job);
std::unique_ptr<AnswerFormat> chat_format(const Context& context, const Job& job);

/// The times of the choice whose first token came last.
engine::RequestTimes slowest(std::span<const Choice> choices);
/// "template=0.000412;queue=...;lease_wait=...;transfer=...;verify=...;prefill=...;first_step=...", in seconds:
/// together the time from the request's arrival to its first token.
std::string timing_text(const engine::RequestTimes& times);

// Shared by both formats.
void write_usage(JsonWriter& writer, const Usage& usage, const Context& context, bool with_null_details);
void write_stop_reason(JsonWriter& writer, const std::variant<std::monostate, std::int32_t, std::string>& reason);
void write_ids(JsonWriter& writer, std::span<const std::int32_t> ids);
/// The text of one token by itself, or "token_id:N".
std::string token_text(const Context& context, std::int32_t id, bool as_id);
/// prompt_logprobs of an answer: null, then for each further token of the prompt a map from ids to what they have.
void write_prompt_logprobs(JsonWriter& writer, const Choice& choice, const Context& context, const Job& job);
/// A token's list without repetitions, the sampled one first, at most `limit` entries.
std::vector<worker::TokenLogprob> distinct_logprobs(std::span<const worker::TokenLogprob> list, std::size_t limit);

}  // namespace tandem::api
