// SPDX-License-Identifier: Apache-2.0
// Checksums of moved KV. The unit is (block of the owner, layer, K|V, KV head of the model): it lies in one piece on
// the rank that wrote it, and stays checkable wherever a reader of other ranks or another block size puts it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "transfer/plan.h"
#include "transfer/shards.h"

namespace tandem::transfer {

/// Checksums a block has in `num_layers` layers.
inline std::size_t pieces_per_block(std::int32_t num_layers, std::int32_t num_heads) {
  return std::size_t{2} * static_cast<std::size_t>(num_layers) * static_cast<std::size_t>(num_heads);
}

/// What block `block_index` of a prompt contributes to an extent.
Extent clip_to_block(std::int64_t block_index, std::int32_t block_size, Extent extent);

/// A part of a prompt's KV as it lies in some memory.
template <class Byte>
struct BasicKvView {
  const Shards& shards;
  Byte* memory = nullptr;  ///< that the shards' offsets count from
  std::span<const kv::BlockId> blocks;
  std::int64_t first_block = 0;  ///< blocks[i] holds tokens from (first_block + i) * block size on
  std::int32_t first_layer = 0;  ///< of the model, that is the memory's first one

  Byte* at(const Shards::Holder& holder, std::int32_t layer, int k_or_v, std::int64_t token) const {
    const std::int64_t size = shards.common().block_size;
    return memory + shards.offset(holder, layer - first_layer,
                                  blocks[static_cast<std::size_t>(token / size - first_block)], k_or_v,
                                  static_cast<std::int32_t>(token % size));
  }
};
using KvView = BasicKvView<const std::byte>;
using MutableKvView = BasicKvView<std::byte>;

/// CRC32C of the rows of `extent` for each (layer, K|V, head), in this order, into `out`; of each head as the first
/// rank that holds it has it.
void piece_checksums(const KvView& view, const Extent& extent, std::span<std::uint32_t> out);

}  // namespace tandem::transfer
