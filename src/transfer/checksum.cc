// SPDX-License-Identifier: Apache-2.0
#include "transfer/checksum.h"

#include <algorithm>

#include "base/status.h"
#include "transfer/crc32c.h"

namespace tandem::transfer {

Extent clip_to_block(std::int64_t block_index, std::int32_t block_size, Extent extent) {
  const std::int64_t start = block_index * block_size;
  extent.first_token = std::max(extent.first_token, start);
  extent.end_token = std::min(extent.end_token, start + block_size);
  return extent;
}

void piece_checksums(const KvView& view, const Extent& extent, std::span<std::uint32_t> out) {
  TANDEM_ASSERT(out.size() == pieces_per_block(extent.num_layers(), view.shards.num_heads()),
                "one checksum for each layer, K|V and head");
  const std::int64_t size = view.shards.common().block_size;
  const std::size_t token_bytes = view.shards.common().token_bytes();
  std::size_t piece = 0;
  for (std::int32_t layer = extent.first_layer; layer < extent.end_layer; ++layer) {
    for (int k_or_v = 0; k_or_v < 2; ++k_or_v) {
      for (std::int32_t head = 0; head < view.shards.num_heads(); ++head) {
        const Shards::Holder& holder = view.shards.holders(head).front();
        std::uint32_t crc = 0;
        for (std::int64_t token = extent.first_token; token < extent.end_token;) {
          const std::int64_t next = std::min(extent.end_token, (token / size + 1) * size);
          const std::byte* rows = view.at(holder, layer, k_or_v, token);
          crc = crc32c({rows, static_cast<std::size_t>(next - token) * token_bytes}, crc);
          token = next;
        }
        out[piece++] = crc;
      }
    }
  }
}

}  // namespace tandem::transfer
