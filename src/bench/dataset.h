// SPDX-License-Identifier: Apache-2.0
// What a run asks: prompts and lengths of answers (vllm_api.md 17.3). The constructions are those of `vllm bench
// serve`; the random numbers are our own (mt19937_64 from --seed), so a run here and one there have prompts of the same
// kind and lengths, not the same prompts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "config/bench_config.h"
#include "text/tokenizer.h"

namespace tandem::bench {

struct Sample {
  std::string prompt;
  std::int64_t prompt_tokens = 0;  ///< of the prompt by itself, without special tokens that a server may add
  std::int64_t output_tokens = 0;  ///< what the request asks for at most
};

/// Every request of a run. Bounded: an error if the prompts together are larger than 2 GiB, or a file has not enough
/// entries that can be used.
Result<std::vector<Sample>> make_samples(const config::BenchConfig& config, const text::Tokenizer& tokenizer);

}  // namespace tandem::bench
