// SPDX-License-Identifier: Apache-2.0
// Runs models over a text for `tandem quantize`: the ranges of each module's inputs, and what quantisation changes.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/thread_team.h"
#include "model/checkpoint.h"
#include "model/model.h"

namespace tandem::model {

struct InputRange {
  float min = 0.0F;  ///< at most 0
  float max = 0.0F;  ///< at least 0
};
/// By module: "model.layers.0.mlp.up_proj".
using InputRanges = std::map<std::string, InputRange>;

/// What a module's outputs lose, over the same inputs (those of the float model): |y - y'| / |y|, RMS over all tokens.
struct OutputError {
  std::string module;
  double relative_rms = 0.0;
};

struct Comparison {
  std::vector<OutputError> modules;  ///< in the order of the layers; a module that no token reached has none
  double float_perplexity = 0.0;
  double quantised_perplexity = 0.0;
  std::size_t num_tokens = 0;  ///< that were predicted
};

/// How texts are cut: windows of this many tokens, each a sequence of its own. The last one may be shorter.
struct TextWindows {
  std::span<const std::int32_t> tokens;
  std::int64_t window = 512;
};

/// Inputs of all linear layers of the float model in `options.compute`, over the text.
Result<InputRanges> measure_inputs(const Checkpoint& checkpoint, ModelOptions options, kernels::ThreadTeam& team,
                                   const TextWindows& text);

/// Both models over the text; both are in memory at once.
Result<Comparison> compare_models(const Checkpoint& original, const Checkpoint& quantised, ModelOptions options,
                                  kernels::ThreadTeam& team, const TextWindows& text);

}  // namespace tandem::model
