// SPDX-License-Identifier: Apache-2.0
// The KV of one process over all its tensor-parallel ranks: which rank holds which head of the model, and where. Ranks
// may hold any ranges of heads, also the same ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "kv/layout.h"

namespace tandem::transfer {

/// Ranks of one process: bounds what a peer may claim.
inline constexpr std::size_t kMaxRanks = 1024;

/// ok if the ranks are of one model and shape, have positive sizes that do not overflow, lie one behind the other in
/// the memory of their process, and together hold every head.
Status check_ranks(std::span<const kv::Layout> ranks);

class Shards {
 public:
  /// One copy of a head.
  struct Holder {
    std::uint32_t rank = 0;
    std::int32_t head = 0;  ///< index on that rank
  };

  /// `ranks` must have passed check_ranks().
  explicit Shards(std::vector<kv::Layout> ranks);

  std::span<const kv::Layout> ranks() const { return ranks_; }
  /// What all ranks agree in. Heads and base are the first rank's.
  const kv::Layout& common() const { return ranks_.front(); }
  std::int32_t num_heads() const { return common().total_kv_heads; }  ///< of the model
  /// Who has this head of the model, in order of rank. The first one is the one that moves and is summed.
  std::span<const Holder> holders(std::int32_t head) const {
    const auto at = static_cast<std::size_t>(head);
    return std::span(holders_).subspan(first_holder_[at], first_holder_[at + 1] - first_holder_[at]);
  }
  /// Byte in the process's memory of (layer, block, K|V, head, token) as `holder` has it.
  std::size_t offset(const Holder& holder, std::int32_t layer, kv::BlockId block, int k_or_v,
                     std::int32_t token) const {
    return ranks_[holder.rank].offset(layer, block, k_or_v, holder.head, token);
  }
  /// Bytes of a block in one layer, each head counted once.
  std::size_t block_bytes() const { return 2 * static_cast<std::size_t>(num_heads()) * common().head_bytes(); }
  /// One past the last byte of the last rank.
  std::size_t end() const { return ranks_.back().base + ranks_.back().total_bytes(); }

 private:
  std::vector<kv::Layout> ranks_;
  std::vector<Holder> holders_;            ///< in order of head
  std::vector<std::size_t> first_holder_;  ///< by head, and one past the last
};

}  // namespace tandem::transfer
