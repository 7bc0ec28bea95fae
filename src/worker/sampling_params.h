// SPDX-License-Identifier: Apache-2.0
// How tokens are chosen; vLLM's fields (spec: vllm_api.md 5.2), already validated and with defaults filled in.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tandem::worker {

/// What stands in for log-probabilities in answers: vLLM's --logprobs-mode, one for all requests of an instance. The
/// prompt's are raw log-probabilities always, as in vLLM.
struct LogprobsMode {
  bool processed =
      false;            ///< of what the token was chosen from; else of what the grammar's mask left of the model's row
  bool logits = false;  ///< the values themselves, without the softmax
};

struct SamplingParams {
  double temperature = 1.0;  ///< below 1e-5: greedy
  double top_p = 1.0;
  std::int32_t top_k = 0;  ///< 0: off
  double min_p = 0.0;
  double repetition_penalty = 1.0;
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  std::uint64_t seed = 0;  ///< always set: the request's, or one drawn at arrival
  std::int32_t min_tokens = 0;
  std::int32_t max_tokens = 16;
  bool ignore_eos = false;
  std::vector<std::string> stop;
  std::vector<std::int32_t> stop_token_ids;
  bool include_stop_str_in_output = false;
  bool skip_special_tokens = true;
  std::vector<std::pair<std::int32_t, float>> logit_bias;  ///< values clamped to [-100, 100]
  std::vector<std::int32_t> allowed_token_ids;             ///< empty: all
  std::vector<std::vector<std::int32_t>> bad_words;        ///< the last token of each may not follow the others
  /// Number of top log-probabilities wanted beside the sampled token's; nullopt: none at all.
  std::optional<std::int32_t> logprobs;
  std::optional<std::int32_t> prompt_logprobs;  ///< the same for the prompt's tokens

  bool greedy() const { return temperature < 1e-5; }
  /// Whether sampling looks at the tokens so far.
  bool penalises() const { return repetition_penalty != 1.0 || presence_penalty != 0.0 || frequency_penalty != 0.0; }
};

}  // namespace tandem::worker
