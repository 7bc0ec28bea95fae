// SPDX-License-Identifier: Apache-2.0
// Bodies of /v1/completions and /v1/chat/completions as typed values, and the job that both become: prompts in ids,
// resolved sampling, ids of the answer. Spec: vllm_api.md 5 to 7.
#pragma once

#include <boost/json/fwd.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/constraint.h"
#include "api/context.h"
#include "api/kv_params.h"
#include "api/parsers/message_parser.h"
#include "api/sampling_fields.h"

namespace tandem::api {

/// One prompt of a request.
struct Prompt {
  std::vector<std::int32_t> ids;
  std::string echo;  ///< with Job::echo: text to put before each of its choices, else ""
};

/// A checked request, ready to be queued.
struct Job {
  bool chat = false;
  std::string base_id;             ///< without "cmpl-"
  std::string id;                  ///< "cmpl-..." or "chatcmpl-..."
  std::int64_t created = 0;        ///< Unix seconds
  std::string role = "assistant";  ///< chat: role of the answer
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  bool return_token_ids = false;
  bool tokens_as_ids = false;         ///< token strings of log-probabilities are "token_id:N"
  bool echo = false;                  ///< the prompt stands before each answer
  bool show_prompt_logprobs = false;  ///< the request asked for prompt_logprobs
  bool drop_output = false;           ///< completions: echo with max_tokens 0
  bool for_prefill = false;           ///< a proxy asks for the KV of what a client sent: one token is made
  bool timing = false;                ///< the client asked for X-Tandem-Timing
  std::int32_t n = 1;
  std::vector<Prompt> prompts;
  MessagePlan message;                           ///< chat: how to read the answer
  std::optional<Constraint> constraint;          ///< what the output must match
  std::int32_t grammar_after = -1;               ///< the token behind which it must; -1: from the beginning
  std::shared_ptr<const text::Grammar> grammar;  ///< the constraint, once it is compiled
  SamplingFields sampling_fields;
  worker::SamplingParams sampling;  ///< all but the seed
  std::int32_t priority = 0;
  std::optional<std::int32_t> rank;  ///< X-data-parallel-rank
  std::string cache_salt;
  KvParams kv;
  std::string traceparent;                           ///< W3C trace context of the request, "" if it has none
  std::chrono::steady_clock::time_point received{};  ///< when the HTTP request was there

  std::size_t num_choices() const { return prompts.size() * static_cast<std::size_t>(n); }
  std::size_t prompt_of(std::size_t choice) const { return choice / static_cast<std::size_t>(n); }
};

/// Everything up to the queue: parsing, model, refusals, rendering, tokens, lengths, sampling ranges.
Outcome<Job> prepare_completion(Context& context, const net::HttpRequest& request);
Outcome<Job> prepare_chat(Context& context, const net::HttpRequest& request);

// Pieces, shared with the utility endpoints and tested one by one.

/// 404 unless the name is served (absent, null and "" mean the default).
Outcome<void> check_model(const Context& context, const Fields& body);
/// 400 for features that this server does not have and that would change the answer.
Outcome<void> refuse_unsupported(const Fields& body);
/// Tokens that may be generated: `asked` if it fits, else what the context leaves. Refuses what is too long.
Outcome<std::int64_t> output_budget(std::int64_t max_model_len, std::int64_t prompt_tokens,
                                    std::optional<std::int64_t> asked, const SamplingDefaults& defaults);
/// Text to ids, bounded by Context::max_text_bytes.
Outcome<std::vector<std::int32_t>> tokenize(const Context& context, std::string_view text, bool add_special_tokens,
                                            bool limited = true);

/// The member "prompt" of a completion, each text as its echo.
Outcome<std::vector<Prompt>> read_prompts(const Context& context, const Fields& body);
/// Keeps the last ids of each prompt: as many as truncate_prompt_tokens says, at most `limit`, and with -1 what fits.
/// A decoder that waits for a push has said what that is; for one that pulls later and may see another max_tokens
/// (a foreign proxy tells a prefiller nothing of the client's), no KV is kept: it computes the prompt itself.
Outcome<void> truncate_prompts(const Fields& body, std::int64_t limit, Job& job);

}  // namespace tandem::api
