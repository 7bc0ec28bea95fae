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

struct Case {
  std::vector<kv::Layout> sources;
  std::vector<kv::Layout> destinations;
  std::vector<kv::BlockId> source_blocks;
  std::vector<kv::BlockId> destination_blocks;
  std::int64_t first = 0;
  std::int64_t end = 0;
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
  Case c;
  const auto tokens = static_cast<std::int64_t>(1 + random() % 60);
  c.sources = shard(base_layout(heads, from_size, 70), pick({1, 2, 3, 4}));
  c.destinations = shard(base_layout(heads, to_size, 75), pick({1, 2, 3, 4}));
  c.source_blocks = some_blocks(random, 70, (tokens + from_size - 1) / from_size);
  c.end = 1 + static_cast<std::int64_t>(random() % static_cast<std::uint32_t>(tokens));
  c.first = static_cast<std::int64_t>(random() % static_cast<std::uint32_t>(c.end));
  if (random() % 2 == 0) c.first = c.first / to_size * to_size;
  const std::int64_t base = c.first / to_size;
  c.destination_blocks = some_blocks(random, 75, (c.end + to_size - 1) / to_size - base);
  return c;
}

std::uint16_t element_at(std::int32_t layer, int k_or_v, std::int32_t head, std::int64_t token, std::int32_t dim) {
  return static_cast<std::uint16_t>(
      1 + ((((layer * 2 + k_or_v) * 8 + head) * 64 + static_cast<std::int32_t>(token)) * 4 + dim));
}

std::vector<std::byte> fill_source(const Case& c, const kv::Layout& rank) {
  std::vector<std::byte> memory(rank.total_bytes());
  for (int layer = 0; layer < rank.num_layers; ++layer)
    for (int k_or_v = 0; k_or_v < 2; ++k_or_v)
      for (int head = 0; head < rank.num_kv_heads; ++head)
        for (std::int64_t token = 0; token < static_cast<std::int64_t>(c.source_blocks.size()) * rank.block_size;
             ++token)
          for (int dim = 0; dim < rank.head_dim; ++dim) {
            const std::uint16_t value = element_at(layer, k_or_v, rank.first_kv_head + head, token, dim);
            const kv::BlockId block = c.source_blocks[static_cast<std::size_t>(token / rank.block_size)];
            std::memcpy(
                memory.data() +
                    rank.offset(layer, block, k_or_v, head, static_cast<std::int32_t>(token % rank.block_size)) +
                    static_cast<std::size_t>(dim) * 2,
                &value, 2);
          }
  return memory;
}

/// What the destination must hold: the elements of the range, zero everywhere else.
std::vector<std::byte> oracle(const Case& c, const kv::Layout& rank) {
  std::vector<std::byte> memory(rank.total_bytes());
  for (std::int64_t token = c.first; token < c.end; ++token)
    for (int layer = 0; layer < rank.num_layers; ++layer)
      for (int k_or_v = 0; k_or_v < 2; ++k_or_v)
        for (int head = 0; head < rank.num_kv_heads; ++head)
          for (int dim = 0; dim < rank.head_dim; ++dim) {
            const std::uint16_t value = element_at(layer, k_or_v, rank.first_kv_head + head, token, dim);
            const auto index = static_cast<std::size_t>(token / rank.block_size - c.first / rank.block_size);
            std::memcpy(memory.data() +
                            rank.offset(layer, c.destination_blocks[index], k_or_v, head,
                                        static_cast<std::int32_t>(token % rank.block_size)) +
                            static_cast<std::size_t>(dim) * 2,
                        &value, 2);
          }
  return memory;
}

PlanInput input_of(const Case& c, const kv::Layout& destination) {
  PlanInput input;
  input.sources = c.sources;
  input.destination = destination;
  input.source_blocks = c.source_blocks;
  input.destination_blocks = c.destination_blocks;
  input.first_token = c.first;
  input.end_token = c.end;
  return input;
}

TEST(PlanTest, MovesExactlyTheElementsOfTheRangeInAnyGeometry) {
  for (std::uint32_t seed = 0; seed < 400; ++seed) {
    std::mt19937 random(seed);
    const Case c = random_case(random);
    std::vector<std::vector<std::byte>> sources;
    for (const kv::Layout& rank : c.sources) sources.push_back(fill_source(c, rank));
    for (const kv::Layout& destination : c.destinations) {
      const auto plan = make_plan(input_of(c, destination));
      ASSERT_TRUE(plan) << "seed " << seed << ": " << plan.error().to_string();
      std::vector<std::byte> moved(destination.total_bytes());
      std::uint64_t bytes = 0;
      for (const Copy& copy : plan->copies) {
        const auto& from = sources[static_cast<std::size_t>(copy.source_rank)];
        ASSERT_LE(copy.source_offset + copy.length, from.size()) << "seed " << seed;
        ASSERT_LE(copy.destination_offset + copy.length, moved.size()) << "seed " << seed;
        std::memcpy(moved.data() + copy.destination_offset, from.data() + copy.source_offset, copy.length);
        bytes += copy.length;
      }
      ASSERT_EQ(moved, oracle(c, destination)) << "seed " << seed;
      EXPECT_EQ(bytes, plan->source_bytes);
      EXPECT_EQ(bytes, static_cast<std::uint64_t>(c.end - c.first) * destination.bytes_per_token()) << "seed " << seed;
    }
  }
}

TEST(PlanTest, RunsThatTouchAreOne) {
  const kv::Layout layout = base_layout(4, 8, 16);
  const std::vector<kv::BlockId> from = {3, 4, 5, 9};
  const std::vector<kv::BlockId> to = {7, 8, 9, 2};
  PlanInput input{{&layout, 1}, layout, from, to, 0, 32};
  auto plan = make_plan(input);
  ASSERT_TRUE(plan);
  // A layer is [3,4,5] -> [7,8,9] and 9 -> 2.
  ASSERT_EQ(plan->copies.size(), 4U);
  EXPECT_EQ(plan->copies[0],
            (Copy{0, 0, 0, layout.offset(0, 3, 0, 0, 0), layout.offset(0, 7, 0, 0, 0), 3 * layout.block_bytes()}));
  EXPECT_EQ(plan->copies[3].layer, 1);
  EXPECT_FALSE(plan->convert);
  // The whole memory in place is a single run, over the borders of layers too.
  std::vector<kv::BlockId> all(16);
  std::iota(all.begin(), all.end(), 0);
  input.source_blocks = input.destination_blocks = all;
  input.end_token = 128;
  plan = make_plan(input);
  ASSERT_TRUE(plan);
  ASSERT_EQ(plan->copies.size(), 1U);
  EXPECT_EQ(plan->copies[0].length, layout.total_bytes());
}

TEST(PlanTest, AHeadRangeOfABlockIsOneRun) {
  const kv::Layout whole = base_layout(8, 8, 4);
  const kv::Layout right = shard(whole, 2)[1];
  const std::vector<kv::BlockId> blocks = {2};
  const auto plan = make_plan({{&whole, 1}, right, blocks, blocks, 0, 8});
  ASSERT_TRUE(plan);
  ASSERT_EQ(plan->copies.size(), 4U);  // two layers, K and V
  EXPECT_EQ(plan->copies[0].length, 4 * whole.head_bytes());
}

TEST(PlanTest, U043ReplicatedHeadsComeFromOneRank) {
  const kv::Layout whole = base_layout(2, 8, 4);
  const std::vector<kv::Layout> four = shard(whole, 4);  // heads 0, 0, 1, 1
  const std::vector<kv::BlockId> blocks = {1};
  const auto plan = make_plan({four, whole, blocks, blocks, 0, 8});
  ASSERT_TRUE(plan) << plan.error().to_string();
  for (const Copy& copy : plan->copies) EXPECT_TRUE(copy.source_rank == 0 || copy.source_rank == 2);
  EXPECT_EQ(plan->source_bytes, 8 * whole.bytes_per_token());
}

TEST(PlanTest, OtherElementTypesAreFlaggedAndKeepTheirOwnLengths) {
  kv::Layout from = base_layout(2, 8, 4);
  kv::Layout to = from;
  to.element = kv::ElementType::kF32;
  const std::vector<kv::BlockId> blocks = {1, 2};
  const auto plan = make_plan({{&from, 1}, to, blocks, blocks, 0, 16});
  ASSERT_TRUE(plan);
  EXPECT_TRUE(plan->convert);
  ASSERT_EQ(plan->copies.size(), 2U);
  EXPECT_EQ(plan->copies[1].length, 2 * from.block_bytes());
  EXPECT_EQ(plan->copies[1].destination_offset, to.offset(1, 1, 0, 0, 0));
}

TEST(PlanTest, WhatDoesNotFitIsAnError) {
  const kv::Layout layout = base_layout(4, 8, 16);
  const std::vector<kv::BlockId> one = {3};
  const std::vector<kv::BlockId> outside = {16};
  const auto error = [](const PlanInput& input) {
    const auto plan = make_plan(input);
    EXPECT_FALSE(plan);
    return plan ? std::string() : plan.error().message();
  };
  EXPECT_THAT(error({{&layout, 1}, layout, one, one, 0, 9}), HasSubstr("source blocks hold 8 tokens"));
  const std::vector<kv::BlockId> two = {3, 4};
  EXPECT_THAT(error({{&layout, 1}, layout, two, one, 0, 9}), HasSubstr("destination blocks end at 8"));
  EXPECT_THAT(error({{&layout, 1}, layout, outside, one, 0, 8}), HasSubstr("source block id 16"));
  EXPECT_THAT(error({{&layout, 1}, layout, one, outside, 0, 8}), HasSubstr("destination block id 16"));
  EXPECT_THAT(error({{&layout, 1}, layout, one, one, 5, 4}), HasSubstr("not a range"));
  EXPECT_THAT(error({{}, layout, one, one, 0, 8}), HasSubstr("at least one source"));
  const std::vector<kv::Layout> half = {shard(layout, 2)[0]};
  EXPECT_THAT(error({half, layout, one, one, 0, 8}), HasSubstr("KV head 2"));
  kv::Layout deeper = layout;
  deeper.num_layers = 3;
  EXPECT_THAT(error({{&deeper, 1}, layout, one, one, 0, 8}), HasSubstr("3 layers"));
}

}  // namespace
}  // namespace tandem::transfer
