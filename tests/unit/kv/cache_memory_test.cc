// SPDX-License-Identifier: Apache-2.0
// KV memory: the byte arithmetic of a layout, what another mapping of the same memfd sees, and refusals.
#include "kv/cache_memory.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <utility>
#include <vector>

namespace tandem::kv {
namespace {

using ::testing::HasSubstr;

Layout small_layout() {
  Layout layout;
  layout.num_layers = 3;
  layout.num_blocks = 5;
  layout.block_size = 4;
  layout.total_kv_heads = 6;
  layout.first_kv_head = 2;
  layout.num_kv_heads = 2;
  layout.head_dim = 8;
  return layout;
}

TEST(LayoutTest, EveryElementRowHasItsOwnPlaceInOrder) {
  const Layout layout = small_layout();
  std::size_t expected = 0;  // layer, block, K|V, head, token: each row follows the one before
  for (int layer = 0; layer < layout.num_layers; ++layer)
    for (int block = 0; block < layout.num_blocks; ++block)
      for (int k_or_v = 0; k_or_v < 2; ++k_or_v)
        for (int head = 0; head < layout.num_kv_heads; ++head)
          for (int token = 0; token < layout.block_size; ++token, expected += layout.token_bytes())
            ASSERT_EQ(layout.offset(layer, block, k_or_v, head, token), expected);
  EXPECT_EQ(expected, layout.total_bytes());
  EXPECT_EQ(layout.bytes_per_token() * static_cast<std::size_t>(layout.block_size * layout.num_blocks),
            layout.total_bytes());
}

/// 12 query heads over `kv_heads`.
Result<std::vector<Layout>> split(std::int32_t kv_heads, std::int32_t tp_size) {
  Layout whole = small_layout();
  whole.total_kv_heads = kv_heads;
  whole.first_kv_head = 0;
  whole.num_kv_heads = kv_heads;
  return split_heads(whole, 12, tp_size);
}

std::vector<std::pair<int, int>> heads_of(const std::vector<Layout>& ranks) {
  std::vector<std::pair<int, int>> heads;  // first, number
  for (const Layout& rank : ranks) heads.emplace_back(rank.first_kv_head, rank.num_kv_heads);
  return heads;
}

TEST(SplitHeadsTest, ARankHoldsWhatItsQueryHeadsRead) {
  using Heads = std::vector<std::pair<int, int>>;
  EXPECT_EQ(heads_of(*split(12, 1)), (Heads{{0, 12}}));
  EXPECT_EQ(heads_of(*split(12, 3)), (Heads{{0, 4}, {4, 4}, {8, 4}}));
  EXPECT_EQ(heads_of(*split(2, 2)), (Heads{{0, 1}, {1, 1}}));
  EXPECT_EQ(heads_of(*split(2, 3)), (Heads{{0, 1}, {0, 2}, {1, 1}}));  // rank 1: query heads 4..7 of 0..5 and 6..11
  EXPECT_EQ(heads_of(*split(2, 4)), (Heads{{0, 1}, {0, 1}, {1, 1}, {1, 1}}));
  EXPECT_EQ(heads_of(*split(2, 6)), (Heads{{0, 1}, {0, 1}, {0, 1}, {1, 1}, {1, 1}, {1, 1}}));
  EXPECT_EQ(split(2, 12)->at(5).first_kv_head, 0);
  EXPECT_EQ(split(2, 12)->at(6).first_kv_head, 1);
  EXPECT_EQ(total_bytes(*split(2, 12)), 6 * split(2, 1)->front().total_bytes());
}

TEST(SplitHeadsTest, HeadsThatCannotBeSplitAreRefused) {
  for (const std::int32_t tp_size : {5, 7, 8, 24, 0, -1}) {
    auto refused = split(2, tp_size);
    ASSERT_FALSE(refused) << tp_size;
    EXPECT_THAT(refused.error().message(), HasSubstr("does not divide the model's 12 attention heads"));
  }
}

TEST(LayoutTest, ElementsHaveSizesAndNames) {
  EXPECT_EQ(vector_bytes(ElementType::kBf16, 64), 128U);
  EXPECT_EQ(vector_bytes(ElementType::kF32, 64), 256U);
  EXPECT_EQ(vector_bytes(ElementType::kInt8, 64), 68U);
  EXPECT_EQ(element_name(ElementType::kBf16), "bfloat16");
  EXPECT_EQ(element_name(ElementType::kF32), "float32");
  EXPECT_EQ(element_name(ElementType::kInt8), "int8");
}

TEST(CacheMemoryTest, StartsZeroedWithOneGenerationABlock) {
  auto memory = CacheMemory::create(small_layout());
  ASSERT_TRUE(memory) << memory.error().to_string();
  const std::size_t bytes = (*memory)->layout().total_bytes();
  EXPECT_TRUE(std::all_of((*memory)->data(), (*memory)->data() + bytes, [](std::byte b) { return b == std::byte{0}; }));
  ASSERT_EQ((*memory)->generations().size(), 5U);
  EXPECT_GE((*memory)->generations_offset(), bytes);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>((*memory)->data()) % 4096, 0U);
}

TEST(CacheMemoryTest, RanksHaveRegionsOfTheirOwn) {
  auto memory = CacheMemory::create(*split(2, 3));
  ASSERT_TRUE(memory) << memory.error().to_string();
  CacheMemory& cache = **memory;
  ASSERT_EQ(cache.ranks().size(), 3U);
  std::size_t end = 0;
  for (std::size_t rank = 0; rank < 3; ++rank) {
    const Layout& layout = cache.ranks()[rank];
    EXPECT_EQ(layout.base % 65536, 0U) << "mbind wants whole pages, and arm64 kernels may have large ones";
    EXPECT_GE(layout.base, end);
    end = layout.base + layout.total_bytes();
    EXPECT_EQ(layout.offset(2, 4, 1, layout.num_kv_heads - 1, 3) + layout.token_bytes(), end);
    cache.prefer_node(rank, rank == 0 ? 0 : -1);  // a hint; memory stays what it was
    cache.prefer_node(rank, 100'000);
    std::fill(cache.data() + layout.base, cache.data() + end, static_cast<std::byte>(rank + 1));
  }
  EXPECT_GE(cache.generations_offset(), end);
  EXPECT_EQ(cache.generations()[0].load(), 0U);
  for (std::size_t rank = 0; rank < 3; ++rank)
    EXPECT_EQ(cache.data()[cache.ranks()[rank].base], static_cast<std::byte>(rank + 1));
}

TEST(CacheMemoryTest, ASecondMappingSeesWritesAndGenerations) {
  auto memory = CacheMemory::create(small_layout());
  ASSERT_TRUE(memory) << memory.error().to_string();
  CacheMemory& owner = **memory;
  void* mapped = mmap(nullptr, owner.mapped_bytes(), PROT_READ, MAP_SHARED, owner.fd(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  const auto* bytes = static_cast<const std::byte*>(mapped);
  const std::size_t last = owner.layout().total_bytes() - 1;
  owner.data()[last] = std::byte{42};
  owner.generations()[4].store(7);
  EXPECT_EQ(bytes[last], std::byte{42});
  const auto* counters = reinterpret_cast<const std::atomic<std::uint32_t>*>(bytes + owner.generations_offset());
  EXPECT_EQ(counters[4].load(), 7U);
  munmap(mapped, owner.mapped_bytes());
}

TEST(CacheMemoryTest, TheFileCannotShrinkUnderAReader) {
  auto memory = CacheMemory::create(small_layout());
  ASSERT_TRUE(memory) << memory.error().to_string();
  EXPECT_EQ(ftruncate((*memory)->fd(), 0), -1);
  EXPECT_EQ(errno, EPERM);
}

TEST(CacheMemoryTest, ImpossibleLayoutsAreRefusedByName) {
  Layout none = small_layout();
  none.num_blocks = 0;
  auto refused = CacheMemory::create(none);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(refused.error().message(), HasSubstr("0 blocks"));

  Layout outside = small_layout();
  outside.first_kv_head = 5;  // 5 + 2 > 6
  EXPECT_FALSE(CacheMemory::create(outside));

  Layout overflow = small_layout();
  overflow.num_layers = overflow.num_blocks = overflow.block_size = overflow.head_dim = 0x7fffffff;
  EXPECT_EQ(CacheMemory::create(overflow).error().code(), Code::kInvalidArgument);
}

TEST(CacheMemoryTest, TooMuchMemoryNamesTheSize) {
  Layout huge = small_layout();
  huge.num_blocks = 0x7fffffff;
  huge.block_size = 1 << 10;
  huge.head_dim = 256;
  auto refused = CacheMemory::create(huge);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kResourceExhausted);
  EXPECT_THAT(refused.error().message(), HasSubstr("GiB"));
}

}  // namespace
}  // namespace tandem::kv
