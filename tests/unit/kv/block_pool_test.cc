// SPDX-License-Identifier: Apache-2.0
// BlockPool and block hashes: states of a block, eviction order, sharing, isolation by salt, and a random walk against
// a simple model of what must hold.
#include "kv/block_pool.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <set>

namespace tandem::kv {
namespace {

std::vector<std::int32_t> range(std::int32_t count, std::int32_t first = 0) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

/// The chain over the full blocks of `tokens`.
std::vector<BlockHash> block_hashes(std::span<const std::int32_t> tokens, std::size_t block_size,
                                    std::string_view salt) {
  std::vector<BlockHash> hashes;
  for (; tokens.size() >= block_size; tokens = tokens.subspan(block_size)) {
    hashes.push_back(next_block_hash(hashes.empty() ? nullptr : &hashes.back(), tokens.first(block_size), salt));
  }
  return hashes;
}

void expect_counts(const BlockPool& pool, std::int32_t used, std::int32_t cached, std::int32_t free) {
  EXPECT_EQ(pool.num_used(), used);
  EXPECT_EQ(pool.num_cached(), cached);
  EXPECT_EQ(pool.num_free(), free);
}

TEST(BlockHash, ChainsDependOnEverythingBefore) {
  auto tokens = range(12);
  const auto hashes = block_hashes(tokens, 4, "");
  ASSERT_EQ(hashes.size(), 3U);
  tokens[1] = 99;
  const auto changed = block_hashes(tokens, 4, "");
  for (std::size_t i = 0; i < 3; ++i) EXPECT_FALSE(hashes[i] == changed[i]) << i;
  // The same tokens at another place in the chain are another block.
  const auto repeated = block_hashes(std::vector<std::int32_t>{1, 2, 1, 2}, 2, "");
  EXPECT_FALSE(repeated[0] == repeated[1]);
}

TEST(TokenHash, IsXxh3OfTheIds) {
  EXPECT_EQ(token_hash({}), 0x2d06800538d394c2ULL);  // XXH3-64 of nothing, as its authors publish it
  const std::vector<std::int32_t> tokens = {1, 2, 3};
  const std::vector<std::int32_t> swapped = {2, 1, 3};
  EXPECT_EQ(token_hash(tokens), token_hash(std::vector<std::int32_t>{1, 2, 3}));
  EXPECT_NE(token_hash(tokens), token_hash(swapped));
  EXPECT_NE(token_hash(tokens), token_hash(std::span(tokens).first(2)));
}

TEST(BlockHash, SaltsIsolate) {
  const auto tokens = range(8);
  const auto none = block_hashes(tokens, 4, "");
  const auto a = block_hashes(tokens, 4, "a");
  const auto b = block_hashes(tokens, 4, "b");
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_FALSE(none[i] == a[i]);
    EXPECT_FALSE(a[i] == b[i]);
  }
  EXPECT_EQ(a, block_hashes(tokens, 4, "a"));
}

TEST(BlockPool, AllocatesAllOrNothing) {
  BlockPool pool(3, {});
  expect_counts(pool, 0, 0, 3);
  const auto two = pool.allocate(2);
  ASSERT_TRUE(two);
  EXPECT_FALSE(pool.allocate(2));
  expect_counts(pool, 2, 0, 1);
  EXPECT_TRUE(pool.allocate(0)->empty());
  pool.release(*two);
  expect_counts(pool, 0, 0, 3);
}

TEST(BlockPool, CachedBlocksAreFoundAndSharedAndTakenOldestFirst) {
  BlockPool pool(3, {});
  const auto hashes = block_hashes(range(6), 2, "");
  const auto blocks = *pool.allocate(3);
  for (std::size_t i = 0; i < 3; ++i) pool.insert(blocks[i], hashes[i]);
  pool.release(blocks);
  expect_counts(pool, 0, 3, 0);
  ASSERT_EQ(pool.find(hashes[0]), blocks[0]);

  pool.acquire(blocks[0]);
  pool.acquire(blocks[0]);
  EXPECT_EQ(pool.references(blocks[0]), 2);
  expect_counts(pool, 1, 2, 0);
  // The tail of the chain was freed first, so it is the oldest: prefixes live longest.
  EXPECT_EQ(pool.allocate(1)->front(), blocks[2]);
  EXPECT_FALSE(pool.find(hashes[2]));
  EXPECT_EQ(pool.find(hashes[1]), blocks[1]);
  pool.release(std::vector<BlockId>{blocks[0]});
  EXPECT_EQ(pool.references(blocks[0]), 1);
  expect_counts(pool, 2, 1, 0);
}

TEST(BlockPool, EmptyBlocksGoBeforeCachedOnes) {
  BlockPool pool(2, {});
  const auto hashes = block_hashes(range(2), 2, "");
  const auto block = *pool.allocate(1);
  pool.insert(block[0], hashes[0]);
  pool.release(block);
  EXPECT_NE(pool.allocate(1)->front(), block[0]);
  EXPECT_TRUE(pool.find(hashes[0]));
}

TEST(BlockPool, OlderBlockKeepsTheHash) {
  BlockPool pool(2, {});
  const auto hashes = block_hashes(range(2), 2, "");
  const auto blocks = *pool.allocate(2);
  pool.insert(blocks[0], hashes[0]);
  pool.insert(blocks[1], hashes[0]);
  pool.insert(blocks[0], hashes[0]);  // filing twice is harmless
  EXPECT_EQ(pool.find(hashes[0]), blocks[0]);
  pool.release(blocks);
  expect_counts(pool, 0, 1, 1);
}

TEST(BlockPool, ResetOnlyWhenIdle) {
  BlockPool pool(2, {});
  const auto hashes = block_hashes(range(2), 2, "");
  const auto blocks = *pool.allocate(1);
  pool.insert(blocks[0], hashes[0]);
  EXPECT_FALSE(pool.reset_prefix_cache());
  EXPECT_TRUE(pool.find(hashes[0]));
  pool.release(blocks);
  EXPECT_TRUE(pool.reset_prefix_cache());
  EXPECT_FALSE(pool.find(hashes[0]));
  expect_counts(pool, 0, 0, 2);
}

TEST(BlockPool, GenerationGrowsWithEachNewOwner) {
  std::vector<std::atomic<std::uint32_t>> generations(1);
  BlockPool pool(1, generations);
  const auto hashes = block_hashes(range(2), 2, "");
  const auto first = *pool.allocate(1);
  EXPECT_EQ(generations[0], 1U);
  pool.insert(first[0], hashes[0]);
  pool.release(first);
  pool.acquire(first[0]);  // the same content: a reader may go on
  EXPECT_EQ(generations[0], 1U);
  pool.release(first);
  ASSERT_TRUE(pool.allocate(1));
  EXPECT_EQ(generations[0], 2U);
}

TEST(BlockPool, RandomWalkKeepsTheInvariants) {
  const std::uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const auto hashes = block_hashes(range(400), 4, "");
  BlockPool pool(20, {});
  std::vector<std::vector<BlockId>> owners;
  std::vector<std::int32_t> references(20, 0);
  for (int step = 0; step < 20'000; ++step) {
    switch (random() % 4) {
      case 0: {
        const auto count = static_cast<std::int32_t>(random() % 6);
        const bool fits = count <= pool.num_available();
        auto blocks = pool.allocate(count);
        ASSERT_EQ(blocks.has_value(), fits);
        if (!blocks) break;
        for (const BlockId block : *blocks) ASSERT_EQ(references[static_cast<std::size_t>(block)]++, 0);
        owners.push_back(*blocks);
        break;
      }
      case 1: {
        if (owners.empty()) break;
        std::swap(owners[random() % owners.size()], owners.back());
        for (const BlockId block : owners.back()) --references[static_cast<std::size_t>(block)];
        pool.release(owners.back());
        owners.pop_back();
        break;
      }
      case 2: {
        if (owners.empty() || owners.back().empty()) break;
        const BlockId block = owners.back().front();
        const BlockHash& hash = hashes[random() % hashes.size()];
        bool has_hash = false;
        for (const BlockHash& other : hashes) has_hash = has_hash || pool.find(other) == block;
        if (!has_hash) pool.insert(block, hash);
        ASSERT_TRUE(pool.find(hash) || has_hash);
        break;
      }
      default: {
        const auto found = pool.find(hashes[random() % hashes.size()]);
        if (!found) break;
        pool.acquire(*found);
        ++references[static_cast<std::size_t>(*found)];
        owners.push_back({*found});
      }
    }
    std::int32_t used = 0;
    for (std::size_t i = 0; i < references.size(); ++i) {
      ASSERT_EQ(pool.references(static_cast<BlockId>(i)), references[i]);
      used += references[i] > 0 ? 1 : 0;
    }
    ASSERT_EQ(pool.num_used(), used);
    ASSERT_EQ(pool.num_used() + pool.num_cached() + pool.num_free(), pool.num_blocks());
  }
}

TEST(BlockPool, OwnsAShareOfTheIds) {
  std::vector<std::atomic<std::uint32_t>> generations(9);
  BlockPool pool(3, std::span(generations).subspan(6), 6);
  EXPECT_EQ(*pool.allocate(3), (std::vector<BlockId>{6, 7, 8}));
  EXPECT_FALSE(pool.allocate(1));
  for (std::size_t block = 0; block < 9; ++block) EXPECT_EQ(generations[block], block < 6 ? 0U : 1U);
  pool.release(std::vector<BlockId>{7});
  EXPECT_EQ(*pool.allocate(1), std::vector<BlockId>{7});
  EXPECT_EQ(pool.references(8), 1);
  EXPECT_EQ(pool.num_blocks(), 3);
}

}  // namespace
}  // namespace tandem::kv
