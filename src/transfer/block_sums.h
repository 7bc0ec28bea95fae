// SPDX-License-Identifier: Apache-2.0
// Checksums of the owner's blocks, kept as long as a block has the same generation and the same number of valid tokens:
// a prefix that many prompts share is summed once. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kv/cache_memory.h"

namespace tandem::transfer {

/// Checksums of one block in order layer, K|V, head. Filled layer by layer while a prompt is computed, constant then.
using Sums = std::shared_ptr<std::vector<std::uint32_t>>;

class BlockSums {
 public:
  explicit BlockSums(kv::CacheMemory& memory) : memory_(memory) {}

  std::uint32_t generation(kv::BlockId block) const {
    return memory_.generations()[static_cast<std::size_t>(block)].load(std::memory_order_acquire);
  }
  /// nullptr if not known for this generation of the block with `num_tokens` valid tokens.
  Sums find(kv::BlockId block, std::uint32_t generation, std::int32_t num_tokens) const {
    const auto found = entries_.find(block);
    const bool fits =
        found != entries_.end() && found->second.generation == generation && found->second.num_tokens == num_tokens;
    return fits ? found->second.sums : nullptr;
  }
  void put(kv::BlockId block, std::uint32_t generation, std::int32_t num_tokens, Sums sums) {
    entries_[block] = Entry{generation, num_tokens, std::move(sums)};
  }

 private:
  struct Entry {
    std::uint32_t generation = 0;
    std::int32_t num_tokens = 0;
    Sums sums;
  };
  kv::CacheMemory& memory_;
  std::unordered_map<kv::BlockId, Entry> entries_;  ///< at most one a block
};

}  // namespace tandem::transfer
