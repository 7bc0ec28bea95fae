// SPDX-License-Identifier: Apache-2.0
// The copy plan against an oracle that moves one element at a time, over random layouts: any tensor-parallel sizes,
// head ranges, block sizes, block lists and token ranges.
#include "transfer/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

namespace tandem::transfer {
namespace {

using ::testing::HasSubstr;

kv::Layout base_layout(std::int32_t heads, std::int32_t block_size, std::int32_t num_blocks) {
  kv::Layout layout;
  layout.num_layers = 2;
  layout.num_blocks = num_blocks;
  layout.block_size = block_size;
  layout.total_kv_heads = layout.num_kv_heads = heads;
  layout.head_dim = 4;
  return layout;
}

/// Ranks of a tensor-parallel group. Sizes that do not divide the heads give ranks of different widths; more ranks than
/// heads replicate them.
std::vector<kv::Layout> shard(const kv::Layout& whole, std::int32_t tp) {
  std::vector<kv::Layout> ranks;
  for (std::int32_t rank = 0; rank < tp; ++rank) {
    kv::Layout layout = whole;
    const std::int32_t heads = whole.total_kv_heads;
    layout.first_kv_head = rank * heads / tp;
    layout.num_kv_heads = std::max(1, (rank + 1) * heads / tp - layout.first_kv_head);
    ranks.push_back(layout);
  }
  return ranks;
}

/// The ranks' regions one behind the other, sometimes with a gap, as a process has them.
Shards in_one_memory(std::vector<kv::Layout> ranks, std::size_t gap) {
  std::size_t end = 0;
  for (kv::Layout& rank : ranks) {
    rank.base = end;
    end += rank.total_bytes() + gap;
  }
  return Shards(std::move(ranks));
}

struct Case {
  Shards source;
  Shards destination;
  std::vector<kv::BlockId> source_blocks;  ///< of the extent
  std::vector<kv::BlockId> destination_blocks;
  Extent extent;
};

std::vector<kv::BlockId> some_blocks(std::mt19937& random, std::int32_t num_blocks, std::int64_t count) {
  std::vector<kv::BlockId> all(static_cast<std::size_t>(num_blocks));
  std::iota(all.begin(), all.end(), 0);
  // Often runs of neighbours, as a fresh pool gives them; sometimes all mixed.
  if (random() % 2 == 0) {
    std::shuffle(all.begin(), all.end(), random);
  } else {
    std::rotate(all.begin(), all.begin() + random() % 5, all.end());
  }
  all.resize(static_cast<std::size_t>(count));
  return all;
}

Case random_case(std::mt19937& random) {
  const auto pick = [&](std::initializer_list<std::int32_t> of) { return *(of.begin() + random() % of.size()); };
  const std::int32_t heads = pick({1, 2, 3, 4, 6, 8});
  const std::int32_t from_size = pick({1, 4, 6, 16});
  const std::int32_t to_size = random() % 2 == 0 ? from_size : pick({1, 4, 6, 16});
  const auto source = shard(base_layout(heads, from_size, 70), pick({1, 2, 3, 4, 6, 8}));
  const auto destination = shard(base_layout(heads, to_size, 75), pick({1, 2, 3, 4, 6, 8}));
  Extent extent;
  extent.first_layer = pick({0, 0, 1});
  extent.end_layer = extent.first_layer == 1 ? 2 : pick({1, 2});
  extent.end_token = 1 + static_cast<std::int64_t>(random() % 60);
  extent.first_token = static_cast<std::int64_t>(random() % static_cast<std::uint32_t>(extent.end_token));
  if (random() % 2 == 0) extent.first_token = extent.first_token / to_size * to_size;
  return {in_one_memory(source, random() % 2 * 24), in_one_memory(destination, random() % 2 * 40),
          some_blocks(random, 70, blocks_of(extent, from_size).count),
          some_blocks(random, 75, blocks_of(extent, to_size).count), extent};
}

std::uint16_t element_at(std::int32_t layer, int k_or_v, std::int32_t head, std::int64_t token, std::int32_t dim) {
  return static_cast<std::uint16_t>(
      1 + ((((layer * 2 + k_or_v) * 8 + head) * 64 + static_cast<std::int32_t>(token)) * 4 + dim));
}

/// Memory with the elements of the extent, zero everywhere else; of each head on its first holder or on all of them.
std::vector<std::byte> memory_with(const Shards& shards, const std::vector<kv::BlockId>& blocks, const Extent& extent,
                                   bool all_holders) {
  std::vector<std::byte> memory(shards.end());
  const std::int32_t size = shards.common().block_size;
  for (std::int64_t token = extent.first_token; token < extent.end_token; ++token)
    for (int layer = extent.first_layer; layer < extent.end_layer; ++layer)
      for (int k_or_v = 0; k_or_v < 2; ++k_or_v)
        for (int head = 0; head < shards.num_heads(); ++head)
          for (const Shards::Holder& holder : shards.holders(head).first(all_holders ? shards.holders(head).size() : 1))
            for (int dim = 0; dim < shards.common().head_dim; ++dim) {
              const std::uint16_t value = element_at(layer, k_or_v, head, token, dim);
              const auto index = static_cast<std::size_t>(token / size - extent.first_token / size);
              std::memcpy(
                  memory.data() +
                      shards.offset(holder, layer, blocks[index], k_or_v, static_cast<std::int32_t>(token % size)) +
                      static_cast<std::size_t>(dim) * 2,
                  &value, 2);
            }
  return memory;
}

TEST(PlanTest, MovesExactlyTheElementsOfTheExtentInAnyGeometry) {
  for (std::uint32_t seed = 0; seed < 600; ++seed) {
    std::mt19937 random(seed);
    const Case c = random_case(random);
    const std::vector<std::byte> source = memory_with(c.source, c.source_blocks, c.extent, true);
    const auto plan = make_plan({c.source, c.destination, c.source_blocks, c.destination_blocks, c.extent});
    ASSERT_TRUE(plan) << "seed " << seed << ": " << plan.error().to_string();
    std::vector<std::byte> moved(c.destination.end());
    std::uint64_t bytes = 0;
    for (const Copy& copy : plan->copies) {
      ASSERT_LE(copy.source_offset + copy.length, source.size()) << "seed " << seed;
      ASSERT_LE(copy.destination_offset + copy.length, moved.size()) << "seed " << seed;
      std::memcpy(moved.data() + copy.destination_offset, source.data() + copy.source_offset, copy.length);
      bytes += copy.length;
    }
    ASSERT_EQ(moved, memory_with(c.destination, c.destination_blocks, c.extent, false)) << "seed " << seed;
    EXPECT_EQ(bytes, plan->bytes);
    EXPECT_EQ(bytes, static_cast<std::uint64_t>(c.extent.num_tokens() * c.extent.num_layers() * 2 *
                                                c.source.num_heads() * 4 * 2))
        << "each head once, seed " << seed;
  }
}

TEST(PlanTest, RunsThatTouchAreOne) {
  const kv::Layout layout = base_layout(4, 8, 16);
  const Shards shards({layout});
  const std::vector<kv::BlockId> from = {3, 4, 5, 9};
  const std::vector<kv::BlockId> to = {7, 8, 9, 2};
  auto plan = make_plan({shards, shards, from, to, {0, 2, 0, 32}});
  ASSERT_TRUE(plan);
  // A layer is [3,4,5] -> [7,8,9] and 9 -> 2.
  ASSERT_EQ(plan->copies.size(), 4U);
  EXPECT_EQ(plan->copies[0],
            (Copy{layout.offset(0, 3, 0, 0, 0), layout.offset(0, 7, 0, 0, 0), 3 * layout.block_bytes()}));
  // The whole memory in place is a single run, over the borders of layers too.
  std::vector<kv::BlockId> all(16);
  std::iota(all.begin(), all.end(), 0);
  plan = make_plan({shards, shards, all, all, {0, 2, 0, 128}});
  ASSERT_TRUE(plan);
  ASSERT_EQ(plan->copies.size(), 1U);
  EXPECT_EQ(plan->copies[0].length, layout.total_bytes());
}

TEST(PlanTest, AHeadRangeOfABlockIsOneRun) {
  const kv::Layout whole = base_layout(8, 8, 4);
  const Shards two = in_one_memory(shard(whole, 2), 0);
  const std::vector<kv::BlockId> blocks = {2};
  const auto plan = make_plan({Shards({whole}), two, blocks, blocks, {0, 2, 0, 8}});
  ASSERT_TRUE(plan);
  ASSERT_EQ(plan->copies.size(), 8U);  // two layers, K and V, two ranks
  EXPECT_EQ(plan->copies[0].length, 4 * whole.head_bytes());
}

TEST(PlanTest, U043ReplicatedHeadsMoveOnceFromTheFirstRankToTheFirst) {
  const kv::Layout whole = base_layout(2, 8, 4);
  const Shards four = in_one_memory(shard(whole, 4), 0);  // heads 0, 0, 1, 1
  const std::vector<kv::BlockId> blocks = {1};
  for (const auto& [from, to] : {std::pair(four, Shards({whole})), std::pair(Shards({whole}), four)}) {
    const auto plan = make_plan({from, to, blocks, blocks, {0, 2, 0, 8}});
    ASSERT_TRUE(plan) << plan.error().to_string();
    EXPECT_EQ(plan->bytes, 8 * whole.bytes_per_token());
    for (const Copy& copy : plan->copies) {
      const std::size_t in_four = from.ranks().size() == 4 ? copy.source_offset : copy.destination_offset;
      const std::size_t rank = in_four / four.ranks()[0].total_bytes();
      EXPECT_TRUE(rank == 0 || rank == 2) << rank;
    }
  }
}

TEST(PlanTest, ABufferOfAFewLayersIsADestinationToo) {
  const kv::Layout layout = base_layout(2, 8, 4);
  kv::Layout buffer = layout;
  buffer.num_layers = buffer.num_blocks = 1;
  const std::vector<kv::BlockId> from = {3};
  const std::vector<kv::BlockId> to = {0};
  PlanInput input{Shards({layout}), Shards({buffer}), from, to, {1, 2, 8, 16}, 1};
  const auto plan = make_plan(input);
  ASSERT_TRUE(plan) << plan.error().to_string();
  ASSERT_EQ(plan->copies.size(), 1U);
  EXPECT_EQ(plan->copies[0], (Copy{layout.offset(1, 3, 0, 0, 0), 0, layout.block_bytes()}));
}

TEST(PlanTest, WhatDoesNotFitIsAnError) {
  const kv::Layout layout = base_layout(4, 8, 16);
  const std::vector<kv::BlockId> one = {3};
  const std::vector<kv::BlockId> outside = {16};
  const auto error = [](const kv::Layout& from, const kv::Layout& to, const std::vector<kv::BlockId>& from_blocks,
                        const std::vector<kv::BlockId>& to_blocks, Extent extent) {
    const auto plan = make_plan({Shards({from}), Shards({to}), from_blocks, to_blocks, extent});
    EXPECT_FALSE(plan);
    return plan ? std::string() : plan.error().message();
  };
  const std::vector<kv::BlockId> two = {3, 4};
  EXPECT_THAT(error(layout, layout, one, two, {0, 2, 0, 9}), HasSubstr("1 source blocks"));
  EXPECT_THAT(error(layout, layout, two, one, {0, 2, 0, 9}), HasSubstr("1 destination blocks"));
  EXPECT_THAT(error(layout, layout, outside, one, {0, 2, 0, 8}), HasSubstr("source block id 16"));
  EXPECT_THAT(error(layout, layout, one, outside, {0, 2, 0, 8}), HasSubstr("destination block id 16"));
  EXPECT_THAT(error(layout, layout, one, one, {0, 2, 5, 4}), HasSubstr("not a range"));
  EXPECT_THAT(error(layout, layout, one, one, {0, 3, 0, 8}), HasSubstr("layers [0, 3)"));
  kv::Layout deeper = layout;
  deeper.num_layers = 3;
  EXPECT_THAT(error(deeper, layout, one, one, {0, 3, 0, 8}), HasSubstr("the destination 2"));
  kv::Layout other = layout;
  other.element = kv::ElementType::kInt8;
  EXPECT_THAT(error(layout, other, one, one, {0, 2, 0, 8}), HasSubstr("int8"));
}

TEST(ShardsTest, RanksThatCannotBeAreNamed) {
  const kv::Layout layout = base_layout(4, 8, 16);
  const auto error = [](const std::vector<kv::Layout>& ranks) { return check_ranks(ranks).message(); };
  EXPECT_THAT(error({}), HasSubstr("0 ranks"));
  EXPECT_THAT(error(std::vector<kv::Layout>(kMaxRanks + 1, layout)), HasSubstr("1025 ranks"));
  auto ranks = shard(layout, 2);
  EXPECT_THAT(error(ranks), HasSubstr("rank 1 begins at 0, within"));
  ranks[1].base = ranks[0].total_bytes();
  EXPECT_TRUE(check_ranks(ranks).ok());
  EXPECT_THAT(error({ranks[0]}), HasSubstr("no rank holds KV head 2"));
  ranks[1].block_size = 4;
  EXPECT_THAT(error(ranks), HasSubstr("rank 1 differs"));
  kv::Layout huge = layout;
  huge.num_layers = huge.num_blocks = huge.block_size = 0x7fffffff;
  EXPECT_THAT(error({huge}), HasSubstr("impossible"));
}

}  // namespace
}  // namespace tandem::transfer
