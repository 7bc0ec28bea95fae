// SPDX-License-Identifier: Apache-2.0
#include "transfer/checksum.h"

#include <algorithm>

#include "base/status.h"
#include "transfer/crc32c.h"

namespace tandem::transfer {

TokenRange clip_to_block(std::size_t block_index, std::int32_t block_size, TokenRange range) {
  const std::int64_t start = static_cast<std::int64_t>(block_index) * block_size;
  return {std::max(range.first, start), std::min(range.end, start + block_size)};
}

void piece_checksums(const kv::Layout& layout, const std::byte* memory, std::span<const kv::BlockId> blocks,
                     std::int64_t first_block, TokenRange tokens, std::span<std::uint32_t> out) {
  TANDEM_ASSERT(out.size() == pieces_per_block(layout), "one checksum for each layer, K|V and head");
  const std::int64_t size = layout.block_size;
  std::size_t piece = 0;
  for (std::int32_t layer = 0; layer < layout.num_layers; ++layer) {
    for (int k_or_v = 0; k_or_v < 2; ++k_or_v) {
      for (std::int32_t head = 0; head < layout.num_kv_heads; ++head) {
        std::uint32_t crc = 0;
        for (std::int64_t token = tokens.first; token < tokens.end;) {
          const std::int64_t next = std::min(tokens.end, (token / size + 1) * size);
          const kv::BlockId block = blocks[static_cast<std::size_t>(token / size - first_block)];
          const std::byte* rows =
              memory + layout.offset(layer, block, k_or_v, head, static_cast<std::int32_t>(token % size));
          crc = crc32c({rows, static_cast<std::size_t>(next - token) * layout.token_bytes()}, crc);
          token = next;
        }
        out[piece++] = crc;
      }
    }
  }
}

}  // namespace tandem::transfer
