// SPDX-License-Identifier: Apache-2.0
// Tokens from one step to the next: a plan that was made while the step before it computed has kSampledBefore where
// that step's token belongs. Used on the worker's thread, around each step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/status.h"
#include "worker/worker.h"

namespace tandem::worker {

class SampledBefore {
 public:
  /// Takes room for steps of so many sequences, so that they allocate nothing here.
  void reserve(std::size_t num_sequences);
  /// Puts the tokens of the step before into the plan. A sequence that got none there (an error of its own, or the
  /// step failed) cannot run: it is taken out of the plan.
  void fill_in(StepPlan& plan);
  /// Adds an error for each sequence that was taken out, at its place, and keeps the tokens for the next plan.
  void complete(Result<StepResult>& result);

 private:
  struct Lost {
    std::size_t place = 0;  ///< in the result
    std::uint64_t sequence = 0;
  };
  std::vector<std::pair<std::uint64_t, std::int32_t>> tokens_;  ///< of the last step, by sequence, ascending
  std::vector<Lost> lost_;                                      ///< from the plan that runs, by place
};

}  // namespace tandem::worker
