// SPDX-License-Identifier: Apache-2.0
// Which data-parallel rank a request goes to. The rule:
//
//   load of a rank   running + 4 x waiting requests (vLLM's weights)
//   least loaded     fewest; among equals the one that knows more of the prompt; then in turn, so that idle ranks share
//                    prompts, and with them their caches, evenly
//   prefix           the rank that was given the longest prefix of the prompt takes it, unless it is much more loaded:
//                    over 2 x the least load + 4
//
// What a rank holds is not asked but remembered: the blocks of the prompts that were placed there, the latest of them,
// as many as its cache has blocks. So siblings of a prompt that is still queued find each other, and ranks in other
// processes are chosen by the same object. A block that the rank has evicted meanwhile costs a worse choice, no error.
// Not thread-safe.
#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kv/block_pool.h"

namespace tandem::engine {

struct RankLoad {
  std::int32_t num_running = 0;
  std::int32_t num_waiting = 0;  ///< also those whose remote KV is on its way
};

class RankChoice {
 public:
  /// `blocks_per_rank`: how many blocks of prompts are remembered for each rank.
  RankChoice(std::int32_t num_ranks, std::int32_t block_size, std::int32_t blocks_per_rank);

  /// The rank for this prompt, by the rule above, and remembers it there. `loads` has one entry a rank, with all that
  /// was placed before.
  std::int32_t choose(std::span<const RankLoad> loads, std::span<const std::int32_t> prompt, std::string_view salt);
  /// Somebody else has chosen `rank` for this prompt.
  void placed(std::int32_t rank, std::span<const std::int32_t> prompt, std::string_view salt);
  /// The prefix caches were emptied.
  void forget();

 private:
  /// The blocks of one rank, latest first.
  struct Memory {
    std::list<kv::BlockHash> order;
    std::unordered_map<kv::BlockHash, std::list<kv::BlockHash>::iterator, kv::BlockHashHasher> index;
  };
  std::vector<kv::BlockHash> hashes_of(std::span<const std::int32_t> prompt, std::string_view salt) const;
  void remember(std::int32_t rank, std::span<const kv::BlockHash> hashes);

  const std::size_t block_size_;
  const std::size_t blocks_per_rank_;
  std::vector<Memory> memories_;  ///< one a rank
  std::int32_t turn_ = 0;         ///< the rank that comes first among equals
};

}  // namespace tandem::engine
