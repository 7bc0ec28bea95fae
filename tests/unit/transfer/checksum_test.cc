// SPDX-License-Identifier: Apache-2.0
// Piece checksums must not depend on how the same tokens are laid out.
#include "transfer/checksum.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "transfer/crc32c.h"

namespace tandem::transfer {
namespace {

kv::Layout layout_of(std::int32_t block_size, std::int32_t num_blocks) {
  kv::Layout layout;
  layout.num_layers = 2;
  layout.num_blocks = num_blocks;
  layout.block_size = block_size;
  layout.total_kv_heads = layout.num_kv_heads = 3;
  layout.head_dim = 4;
  return layout;
}

/// Memory in which every row says which token, layer, K|V and head it is.
std::vector<std::byte> memory_of(const kv::Layout& layout, const std::vector<kv::BlockId>& blocks) {
  std::vector<std::byte> memory(layout.total_bytes());
  for (int layer = 0; layer < layout.num_layers; ++layer)
    for (int k_or_v = 0; k_or_v < 2; ++k_or_v)
      for (int head = 0; head < layout.num_kv_heads; ++head)
        for (int token = 0; token < static_cast<int>(blocks.size()) * layout.block_size; ++token) {
          const std::uint64_t value =
              static_cast<std::uint64_t>(((layer * 2 + k_or_v) * 3 + head) * 1000 + token) * 0x9e3779b97f4a7c15ULL;
          std::memcpy(memory.data() + layout.offset(layer, blocks[static_cast<std::size_t>(token / layout.block_size)],
                                                    k_or_v, head, token % layout.block_size),
                      &value, sizeof value);
        }
  return memory;
}

TEST(ChecksumTest, TheSameTokensHaveTheSameSumsInAnyBlockSize) {
  const kv::Layout source = layout_of(16, 8);
  const std::vector<kv::BlockId> source_blocks = {5, 2};
  const std::vector<std::byte> from = memory_of(source, source_blocks);
  for (const std::int32_t size : {4, 8, 12, 32}) {
    const kv::Layout other = layout_of(size, 16);
    std::vector<kv::BlockId> blocks;
    for (kv::BlockId block = 0; block * size < 32; ++block) blocks.push_back((block * 7 + 3) % 16);
    const std::vector<std::byte> to = memory_of(other, blocks);
    for (const Extent extent : {Extent{0, 2, 0, 16}, Extent{0, 2, 16, 32}, Extent{1, 2, 3, 9}, Extent{0, 1, 31, 32}}) {
      std::vector<std::uint32_t> a(pieces_per_block(extent.num_layers(), 3));
      std::vector<std::uint32_t> b(a.size());
      piece_checksums({Shards({source}), from.data(), source_blocks}, extent, a);
      piece_checksums({Shards({other}), to.data(), blocks}, extent, b);
      EXPECT_EQ(a, b) << size << " [" << extent.first_token << ", " << extent.end_token << ")";
    }
  }
}

TEST(ChecksumTest, OrderIsLayerThenKThenVThenHead) {
  const kv::Layout layout = layout_of(8, 2);
  const std::vector<kv::BlockId> blocks = {1};
  const std::vector<std::byte> memory = memory_of(layout, blocks);
  std::vector<std::uint32_t> sums(pieces_per_block(2, 3));
  piece_checksums({Shards({layout}), memory.data(), blocks}, {0, 2, 0, 8}, sums);
  ASSERT_EQ(sums.size(), 12U);
  EXPECT_EQ(sums[1 * 6 + 1 * 3 + 2], crc32c({memory.data() + layout.offset(1, 1, 1, 2, 0), layout.head_bytes()}));
}

TEST(ChecksumTest, ClippingKeepsOnlyTheBlocksTokens) {
  EXPECT_EQ(clip_to_block(2, 8, {1, 2, 5, 19}), (Extent{1, 2, 16, 19}));
  EXPECT_EQ(clip_to_block(1, 8, {0, 3, 5, 19}), (Extent{0, 3, 8, 16}));
}

}  // namespace
}  // namespace tandem::transfer
