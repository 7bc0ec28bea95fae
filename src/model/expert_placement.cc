// SPDX-License-Identifier: Apache-2.0
#include "model/expert_placement.h"

#include <fmt/format.h>

#include <algorithm>

namespace tandem::model {

ExpertRange experts_of_rank(std::int32_t num_experts, std::int32_t num_ranks, std::int32_t rank) {
  const std::int32_t base = num_experts / num_ranks;
  const std::int32_t rest = num_experts % num_ranks;
  const std::int32_t begin = rank * base + std::min(rank, rest);
  return {begin, begin + base + (rank < rest ? 1 : 0)};
}

ExpertRange experts_of_process(const ExpertPlacement& placement, std::int32_t num_experts, int process) {
  if (placement.group == nullptr) return {0, num_experts};
  const auto index = static_cast<std::size_t>(process);
  // A process without ranks has no experts: the begin of the rank after it, twice.
  const auto begin_of = [&](std::int32_t rank) {
    return rank == placement.num_ranks ? num_experts : experts_of_rank(num_experts, placement.num_ranks, rank).begin;
  };
  return {begin_of(placement.first_rank[index]), begin_of(placement.first_rank[index + 1])};
}

ExpertRange own_experts(const ExpertPlacement& placement, std::int32_t num_experts) {
  return experts_of_process(placement, num_experts, placement.group == nullptr ? 0 : placement.group->rank());
}

Result<void> check_placement(const ExpertPlacement& placement) {
  const auto bad = [](std::string message) {
    return Status(Code::kInvalidArgument, std::move(message), Scope::kProcess);
  };
  if (placement.num_ranks < 1)
    return bad(fmt::format("experts are placed on {} ranks, expected at least 1", placement.num_ranks));
  if (placement.group == nullptr) return {};
  const std::vector<std::int32_t>& first = placement.first_rank;
  if (first.size() != static_cast<std::size_t>(placement.group->size()) + 1)
    return bad(fmt::format("the ranks of {} processes are given for a group of {}",
                           first.empty() ? 0 : first.size() - 1, placement.group->size()));
  if (first.front() != 0 || first.back() != placement.num_ranks || !std::is_sorted(first.begin(), first.end()))
    return bad(fmt::format("the processes' ranks go from {} to {}, expected all of 0 to {} in ascending order",
                           first.front(), first.back(), placement.num_ranks));
  return {};
}

}  // namespace tandem::model
