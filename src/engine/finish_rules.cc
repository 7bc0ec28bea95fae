// SPDX-License-Identifier: Apache-2.0
#include "engine/finish_rules.h"

#include <algorithm>

namespace tandem::engine {
namespace {

bool contains(std::span<const std::int32_t> ids, std::int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

std::optional<Finish> finish_after_token(std::int32_t token, std::int64_t num_output, std::int64_t num_total,
                                         std::int64_t max_total, const worker::SamplingParams& params,
                                         std::span<const std::int32_t> eos_token_ids) {
  if (num_output >= params.min_tokens) {
    const bool is_eos = !params.ignore_eos && contains(eos_token_ids, token);
    // The primary eos tells nothing new; any other id that ended the sequence is named.
    if (is_eos && token == eos_token_ids.front()) return Finish{FinishReason::kStop, std::monostate{}, true};
    if (is_eos || contains(params.stop_token_ids, token)) return Finish{FinishReason::kStop, token, true};
  }
  if (num_output >= params.max_tokens || num_total >= max_total) {
    return Finish{FinishReason::kLength, std::monostate{}, false};
  }
  return std::nullopt;
}

std::vector<std::int32_t> ids_suppressed_before_min_tokens(const worker::SamplingParams& params,
                                                           std::span<const std::int32_t> eos_token_ids) {
  std::vector<std::int32_t> ids;
  if (params.min_tokens <= 0) return ids;
  if (!eos_token_ids.empty()) ids.push_back(eos_token_ids.front());
  if (!params.ignore_eos) ids.insert(ids.end(), eos_token_ids.begin(), eos_token_ids.end());
  ids.insert(ids.end(), params.stop_token_ids.begin(), params.stop_token_ids.end());
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

}  // namespace tandem::engine
