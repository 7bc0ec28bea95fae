// SPDX-License-Identifier: Apache-2.0
// The sampling part of a request: reading it, its ranges with vLLM's refusal texts, and the resolved parameters that
// the engine gets. Spec: vllm_api.md 5.2.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/fields.h"
#include "worker/sampling_params.h"

namespace tandem::api {

/// What counts when the request is silent: generation_config.json, and over it --override-generation-config.
struct SamplingDefaults {
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<std::int64_t> top_k;
  std::optional<std::int64_t> max_new_tokens;          ///< budget if the client asks for none
  std::optional<std::int64_t> max_new_tokens_ceiling;  ///< from the override: also limits what clients ask for
};

struct SamplingFields {
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  std::optional<std::int64_t> top_k, seed;
  std::int32_t n = 1;
  std::int32_t min_tokens = 0;
  std::vector<std::string> stop;
  std::vector<std::int32_t> stop_token_ids;
  bool include_stop_str_in_output = false;
  bool ignore_eos = false;
  bool skip_special_tokens = true;
  std::vector<std::pair<std::int32_t, float>> logit_bias;
  std::optional<std::vector<std::int32_t>> allowed_token_ids;
  std::optional<std::int32_t> logprobs;  ///< top log-probabilities a token; set by the endpoint (its field differs)
  std::optional<std::int32_t> prompt_logprobs;  ///< the same of the prompt's tokens; set by the endpoint
};

struct SamplingLimits {
  std::int32_t vocab_size = 0;
  std::int32_t max_logprobs = 20;  ///< -1: no limit
};

/// Reads all fields but max_tokens and logprobs.
Outcome<SamplingFields> read_sampling_fields(const Fields& fields);

/// The number of log-probabilities asked for, against --max-logprobs. -1 means the whole vocabulary.
/// `whose`: "sample" or "prompt", for the refusal.
Outcome<std::int32_t> checked_logprobs(std::int64_t asked, const SamplingLimits& limits,
                                       std::string_view whose = "sample");

/// Checks ranges and fills in defaults. `max_tokens` is the resolved budget (may be bad: < 1 is refused here).
/// The seed is left to the caller (with_seed).
Outcome<worker::SamplingParams> resolve_sampling(const SamplingFields& fields, const SamplingDefaults& defaults,
                                                 const SamplingLimits& limits, std::int64_t max_tokens);

/// The seed of choice `choice`: the request's plus choice, or one that follows from the server's seed and the request
/// id (so that a request that is resumed elsewhere under its id draws the same numbers).
std::uint64_t choice_seed(const SamplingFields& fields, std::uint64_t server_seed, std::string_view request_id,
                          std::int64_t choice);

}  // namespace tandem::api
