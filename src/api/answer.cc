// SPDX-License-Identifier: Apache-2.0
#include "api/answer.h"

#include <fmt/format.h>

#include <algorithm>

#include "api/json_writer.h"

namespace tandem::api {

MessageDelta Choice::add(const engine::Output& output) {
  text += output.text;
  tokens.insert(tokens.end(), output.tokens.begin(), output.tokens.end());
  logprobs.insert(logprobs.end(), output.logprobs.begin(), output.logprobs.end());
  if (!output.prompt_logprobs.empty()) prompt_logprobs = output.prompt_logprobs;
  if (output.finish) finish = output.finish;
  stop_reason = output.stop_reason;
  num_cached_tokens = std::max(num_cached_tokens, output.num_cached_tokens);
  if (output.handover) handover = output.handover;
  if (output.last()) times = output.times;
  return message ? message->feed(output.text, output.last()) : MessageDelta();
}

Usage total_usage(const Job& job, std::span<const Choice> choices) {
  Usage usage;
  for (const Prompt& prompt : job.prompts) usage.prompt_tokens += static_cast<std::int64_t>(prompt.ids.size());
  for (std::size_t i = 0; i < choices.size(); ++i) {
    usage.completion_tokens += static_cast<std::int64_t>(choices[i].tokens.size());
    // n choices of a prompt share its cached part: it counts once.
    if (i % static_cast<std::size_t>(job.n) == 0) usage.cached_tokens += choices[i].num_cached_tokens;
  }
  return usage;
}

engine::RequestTimes slowest(std::span<const Choice> choices) {
  engine::RequestTimes slowest;
  for (const Choice& choice : choices)
    if (choice.times.to_first_token() > slowest.to_first_token()) slowest = choice.times;
  return slowest;
}

std::string timing_text(const engine::RequestTimes& times) {
  return fmt::format(
      "template={:.6f};queue={:.6f};lease_wait={:.6f};transfer={:.6f};verify={:.6f};prefill={:.6f};first_step={:.6f}",
      times.templating, times.queue, times.lease_wait, times.transfer, times.verify, times.prefill, times.first_step);
}

void write_usage(JsonWriter& writer, const Usage& usage, const Context& context, bool with_null_details) {
  writer.begin_object().member("prompt_tokens", usage.prompt_tokens);
  writer.member("total_tokens", usage.prompt_tokens + usage.completion_tokens);
  writer.member("completion_tokens", usage.completion_tokens);
  if (context.config.enable_prompt_tokens_details && usage.cached_tokens > 0)
    writer.key("prompt_tokens_details").begin_object().member("cached_tokens", usage.cached_tokens).end_object();
  else if (with_null_details)
    writer.null_member("prompt_tokens_details");
  writer.end_object();
}

void write_stop_reason(JsonWriter& writer, const std::variant<std::monostate, std::int32_t, std::string>& reason) {
  if (const auto* id = std::get_if<std::int32_t>(&reason))
    writer.integer(*id);
  else if (const auto* text = std::get_if<std::string>(&reason))
    writer.string(*text);
  else
    writer.null();
}

void write_ids(JsonWriter& writer, std::span<const std::int32_t> ids) {
  writer.begin_array();
  for (const std::int32_t id : ids) writer.integer(id);
  writer.end_array();
}

std::string token_text(const Context& context, std::int32_t id, bool as_id) {
  if (as_id || context.parts.tokenizer == nullptr) return fmt::format("token_id:{}", id);
  return context.parts.tokenizer->decode(std::span(&id, 1), false);
}

void write_prompt_logprobs(JsonWriter& writer, const Choice& choice, const Context& context, const Job& job) {
  // What `echo` needs is no answer to a question for them.
  if (!job.show_prompt_logprobs || choice.prompt_logprobs.empty()) {
    writer.null();
    return;
  }
  writer.begin_array();
  for (const auto& list : choice.prompt_logprobs) {
    if (list.empty()) {
      writer.null();
      continue;
    }
    writer.begin_object();
    for (const worker::TokenLogprob& entry : list) {
      writer.key(fmt::format("{}", entry.token)).begin_object().key("logprob").real(entry.logprob);
      writer.member("rank", std::int64_t{entry.rank});
      writer.member("decoded_token", token_text(context, entry.token, false)).end_object();
    }
    writer.end_object();
  }
  writer.end_array();
}

std::vector<worker::TokenLogprob> distinct_logprobs(std::span<const worker::TokenLogprob> list, std::size_t limit) {
  std::vector<worker::TokenLogprob> distinct;
  for (const worker::TokenLogprob& entry : list) {
    if (distinct.size() >= limit) break;
    const bool seen =
        std::any_of(distinct.begin(), distinct.end(), [&](const auto& other) { return other.token == entry.token; });
    if (!seen) distinct.push_back(entry);
  }
  return distinct;
}

}  // namespace tandem::api
