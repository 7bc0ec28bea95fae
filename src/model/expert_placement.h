// SPDX-License-Identifier: Apache-2.0
// Which process has which expert (spec: model_formats.md 7.1).
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "model/model.h"

namespace tandem::model {

/// Experts [begin, end).
struct ExpertRange {
  std::int32_t begin = 0;
  std::int32_t end = 0;
  std::int32_t size() const { return end - begin; }
  bool contains(std::int64_t expert) const { return expert >= begin && expert < end; }
  bool operator==(const ExpertRange&) const = default;
};

/// The remainder rule: consecutive experts, num_experts / num_ranks each, and one more for each of the first
/// num_experts % num_ranks ranks. With more ranks than experts the last ones have none.
ExpertRange experts_of_rank(std::int32_t num_experts, std::int32_t num_ranks, std::int32_t rank);

/// The experts of a process: those of its ranks. All of them without a group.
ExpertRange experts_of_process(const ExpertPlacement& placement, std::int32_t num_experts, int process);
/// The experts of the process that calls.
ExpertRange own_experts(const ExpertPlacement& placement, std::int32_t num_experts);

/// Whether ranks and processes fit together. An error says which number does not.
Result<void> check_placement(const ExpertPlacement& placement);

}  // namespace tandem::model
