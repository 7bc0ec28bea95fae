// SPDX-License-Identifier: Apache-2.0
#include "engine/rank_choice.h"

#include <algorithm>
#include <tuple>

namespace tandem::engine {
namespace {

constexpr std::int64_t kWaitingWeight = 4;
constexpr std::int64_t kLoadFactor = 2;
constexpr std::int64_t kLoadSlack = 4;

}  // namespace

RankChoice::RankChoice(std::int32_t num_ranks, std::int32_t block_size, std::int32_t blocks_per_rank)
    : block_size_(static_cast<std::size_t>(block_size)),
      blocks_per_rank_(static_cast<std::size_t>(blocks_per_rank)),
      memories_(static_cast<std::size_t>(num_ranks)) {
  TANDEM_ASSERT(num_ranks > 0 && block_size > 0 && blocks_per_rank > 0, "there are ranks, and they have blocks");
}

std::int32_t RankChoice::choose(std::span<const RankLoad> loads, std::span<const std::int32_t> prompt,
                                std::string_view salt) {
  TANDEM_ASSERT(loads.size() == memories_.size(), "one load a rank");
  struct Candidate {
    std::int64_t load = 0;
    std::int64_t unknown = 0;  ///< blocks of the prompt that the rank does not hold
    std::int32_t turn = 0;     ///< how long until it is this rank's turn
    std::int32_t rank = 0;
  };
  const std::vector<kv::BlockHash> hashes = hashes_of(prompt, salt);
  const auto num_ranks = static_cast<std::int32_t>(loads.size());
  std::vector<Candidate> candidates;
  for (std::int32_t rank = 0; rank < num_ranks; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    const auto known = std::find_if_not(
        hashes.begin(), hashes.end(), [&](const kv::BlockHash& hash) { return memories_[index].index.contains(hash); });
    candidates.push_back({.load = loads[index].num_running + kWaitingWeight * loads[index].num_waiting,
                          .unknown = hashes.end() - known,
                          .turn = (rank - turn_ + num_ranks) % num_ranks,
                          .rank = rank});
  }
  const auto by_load = [](const Candidate& a, const Candidate& b) {
    return std::tie(a.load, a.unknown, a.turn) < std::tie(b.load, b.unknown, b.turn);
  };
  const auto by_prefix = [](const Candidate& a, const Candidate& b) {
    return std::tie(a.unknown, a.load, a.turn) < std::tie(b.unknown, b.load, b.turn);
  };
  const Candidate& least = *std::min_element(candidates.begin(), candidates.end(), by_load);
  const Candidate& warm = *std::min_element(candidates.begin(), candidates.end(), by_prefix);
  // If nobody knows anything of the prompt the two are the same.
  const std::int32_t chosen = warm.load <= kLoadFactor * least.load + kLoadSlack ? warm.rank : least.rank;
  turn_ = (chosen + 1) % num_ranks;
  remember(chosen, hashes);
  return chosen;
}

void RankChoice::placed(std::int32_t rank, std::span<const std::int32_t> prompt, std::string_view salt) {
  remember(rank, hashes_of(prompt, salt));
}

void RankChoice::forget() {
  for (Memory& memory : memories_) memory = Memory();
}

std::vector<kv::BlockHash> RankChoice::hashes_of(std::span<const std::int32_t> prompt, std::string_view salt) const {
  std::vector<kv::BlockHash> hashes;
  hashes.reserve(prompt.size() / block_size_);
  for (; prompt.size() >= block_size_; prompt = prompt.subspan(block_size_)) {
    const kv::BlockHash* parent = hashes.empty() ? nullptr : &hashes.back();
    const kv::BlockHash hash = kv::next_block_hash(parent, prompt.first(block_size_), salt);
    hashes.push_back(hash);
  }
  return hashes;
}

void RankChoice::remember(std::int32_t rank, std::span<const kv::BlockHash> hashes) {
  Memory& memory = memories_.at(static_cast<std::size_t>(rank));
  // The first block last: a prefix lives longer than what follows it.
  for (auto hash = hashes.rbegin(); hash != hashes.rend(); ++hash) {
    const auto [place, fresh] = memory.index.try_emplace(*hash);
    if (!fresh) memory.order.erase(place->second);
    place->second = memory.order.insert(memory.order.begin(), *hash);
  }
  while (memory.order.size() > blocks_per_rank_) {
    memory.index.erase(memory.order.back());
    memory.order.pop_back();
  }
}

}  // namespace tandem::engine
