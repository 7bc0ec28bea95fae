// SPDX-License-Identifier: Apache-2.0
// When a sequence ends by its tokens (not by its text: output_text.h), as vllm_api.md 9.5 says. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "engine/engine.h"

namespace tandem::engine {

struct Finish {
  FinishReason reason = FinishReason::kStop;
  std::variant<std::monostate, std::int32_t, std::string> stop_reason;
  bool by_token = false;  ///< an eos or stop id: its text is not part of the output
};

/// What the newest token means. `num_output` and `num_total` (prompt and output) count it; `max_total` is the most
/// tokens a sequence can have. Eos and stop ids come before length, and not before min_tokens.
std::optional<Finish> finish_after_token(std::int32_t token, std::int64_t num_output, std::int64_t num_total,
                                         std::int64_t max_total, const worker::SamplingParams& params,
                                         std::span<const std::int32_t> eos_token_ids);

/// Ids that must not be sampled before min_tokens: every id that would end the sequence, and the primary eos even with
/// ignore_eos (as vLLM does).
std::vector<std::int32_t> ids_suppressed_before_min_tokens(const worker::SamplingParams& params,
                                                           std::span<const std::int32_t> eos_token_ids);

}  // namespace tandem::engine
