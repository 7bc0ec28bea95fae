// SPDX-License-Identifier: Apache-2.0
// Checksums of moved KV. The unit is (block, layer, K|V, KV head): it lies in one piece on the rank that wrote it, and
// stays checkable wherever a reader of another tensor-parallel size or block size puts it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kv/layout.h"

namespace tandem::transfer {

/// Checksums a block: layers * 2 * heads.
inline std::size_t pieces_per_block(const kv::Layout& layout) {
  return std::size_t{2} * static_cast<std::size_t>(layout.num_layers) * static_cast<std::size_t>(layout.num_kv_heads);
}

/// Tokens that a block of a prompt contributes to [first, end).
struct TokenRange {
  std::int64_t first = 0;
  std::int64_t end = 0;
};
TokenRange clip_to_block(std::size_t block_index, std::int32_t block_size, TokenRange range);

/// CRC32C of the rows of `tokens` (positions in the prompt) for each (layer, K|V, head), in this order, into `out`.
/// blocks[i] holds tokens from (first_block + i) * block_size on; they may be several blocks of `layout`.
void piece_checksums(const kv::Layout& layout, const std::byte* memory, std::span<const kv::BlockId> blocks,
                     std::int64_t first_block, TokenRange tokens, std::span<std::uint32_t> out);

}  // namespace tandem::transfer
