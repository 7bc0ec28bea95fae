// SPDX-License-Identifier: Apache-2.0
#include "app/sizing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/model.h"

namespace tandem::app {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

/// 1 KiB of KV a token in BF16, 256 MiB of weights.
model::ModelConfig small_model() {
  model::ModelConfig model;
  model.num_layers = 2;
  model.num_heads = 4;
  model.num_kv_heads = 2;
  model.head_dim = 64;
  model.hidden_size = 256;
  model.intermediate_size = 512;
  model.vocab_size = 500'000;
  model.tie_word_embeddings = true;
  model.max_context = 4096;
  return model;
}

std::vector<kv::Layout> one_block(kv::ElementType element = kv::ElementType::kBf16, std::int32_t ranks = 1) {
  model::ModelOptions options;
  options.kv_element = element;
  options.tensor_parallel_size = ranks;
  return *model::kv_layouts(small_model(), options, 16, 1);
}

config::ServeConfig flags() {
  config::ServeConfig config;
  config.max_num_seqs = 8;
  return config;
}

TEST(Sizing, TakesWhatAllRequestsCanUse) {
  auto sizing = size_instance(flags(), small_model(), one_block(), 64 * kGiB);
  ASSERT_TRUE(sizing) << sizing.error().message();
  EXPECT_EQ(sizing->max_model_len, 4096);
  EXPECT_EQ(sizing->num_blocks, 8 * 4096 / 16);
  EXPECT_EQ(sizing->note, "");
}

TEST(Sizing, StaysModestWithoutAWordFromTheUser) {
  config::ServeConfig config = flags();
  config.max_num_seqs = 1 << 16;
  EXPECT_EQ(size_instance(config, small_model(), one_block(), 64 * kGiB)->num_blocks, 4 * kGiB / (16 * 1024));
  EXPECT_EQ(size_instance(config, small_model(), one_block(), 8 * kGiB)->num_blocks, 2 * kGiB / (16 * 1024));
}

TEST(Sizing, TakesTheShareThatTheUserGivesToWeightsAndKv) {
  config::ServeConfig config = flags();
  config.max_num_seqs = 1 << 16;
  config.memory_utilization = 0.5;
  const std::int64_t weights = estimated_weight_bytes(small_model(), config);
  EXPECT_EQ(size_instance(config, small_model(), one_block(), 64 * kGiB)->num_blocks,
            (32 * kGiB - weights - estimated_activation_bytes(small_model(), config)) / (16 * 1024));
  // Never more than all requests together can use.
  config.max_num_seqs = 8;
  EXPECT_EQ(size_instance(config, small_model(), one_block(), 64 * kGiB)->num_blocks, 8 * 4096 / 16);
}

TEST(Sizing, ExpertsCountWhereTheyAre) {
  model::ModelConfig model = small_model();
  config::ServeConfig config = flags();
  const std::int64_t dense = estimated_weight_bytes(model, config);
  model.num_experts = 40;
  model.moe_intermediate_size = model.intermediate_size;
  const std::int64_t all = estimated_weight_bytes(model, config);
  const std::int64_t mlps = std::int64_t{2} * 3 * model.hidden_size * model.intermediate_size * model.num_layers;
  EXPECT_EQ(all - dense, 39 * mlps);
  // The first of two processes with 16 of 32 ranks each: half of the experts.
  config.expert_parallel = true;
  config.data_parallel.size = 32;
  config.data_parallel.local = 16;
  EXPECT_EQ(all - estimated_weight_bytes(model, config), 20 * mlps);
}

TEST(Sizing, ResultsOfExpertsTakeMemory) {
  model::ModelConfig model = small_model();
  config::ServeConfig config = flags();
  const std::int64_t dense = estimated_activation_bytes(model, config);
  model.num_experts = 40;
  model.moe_intermediate_size = 1;
  model.experts_per_token = 8;
  const std::int64_t here = estimated_activation_bytes(model, config);
  EXPECT_GT(here, dense);
  config.expert_parallel = true;
  EXPECT_EQ(estimated_activation_bytes(model, config), here) << "one process";
  config.data_parallel.size = 2;
  EXPECT_GT(estimated_activation_bytes(model, config), here) << "the other process's results and the messages";
}

TEST(Sizing, ShortMemoryShortensTheContextOrIsRefused) {
  const std::int64_t memory = 270LL << 20;  // weights and activations take nearly all of it
  config::ServeConfig config = flags();
  config.memory_utilization = 1.0;
  auto sizing = size_instance(config, small_model(), one_block(), memory);
  ASSERT_TRUE(sizing) << sizing.error().message();
  EXPECT_LT(sizing->max_model_len, 4096);
  config.max_model_len = 4096;
  config.memory_utilization = 0.95;
  EXPECT_FALSE(size_instance(config, small_model(), one_block(), memory));
  EXPECT_THAT(size_instance(flags(), small_model(), one_block(), 64LL << 20).error().message(),
              HasSubstr("--kv-cache-memory-bytes"));
}

TEST(Sizing, WhatTheUserSaysCounts) {
  config::ServeConfig config = flags();
  config.kv_cache_bytes = 32 * 16 * 1024 + 5;
  EXPECT_EQ(size_instance(config, small_model(), one_block(), kGiB)->num_blocks, 32);
  EXPECT_EQ(size_instance(config, small_model(), one_block(), kGiB)->max_model_len, 512);
  config.num_blocks = 7;
  EXPECT_EQ(size_instance(config, small_model(), one_block(), kGiB)->num_blocks, 7);
  config.max_model_len = 1000;
  auto sizing = size_instance(config, small_model(), one_block(), kGiB);
  ASSERT_TRUE(sizing);
  EXPECT_EQ(sizing->max_model_len, 1000);
  EXPECT_THAT(sizing->note, HasSubstr("longer requests are refused"));
}

TEST(Sizing, LongerThanTheModelIsRefusedUnlessForced) {
  config::ServeConfig config = flags();
  config.max_model_len = 5000;
  EXPECT_THAT(size_instance(config, small_model(), one_block(), kGiB).error().message(),
              HasSubstr("User-specified max_model_len (5000) is greater than the derived max_model_len "
                        "(max_position_embeddings=4096"));
  config.allow_long_max_model_len = true;
  EXPECT_EQ(size_instance(config, small_model(), one_block(), 64 * kGiB)->max_model_len, 5000);
}

TEST(Sizing, BytesFollowTypeAndRanks) {
  config::ServeConfig config = flags();
  config.kv_cache_bytes = 64 * 16 * 1024;
  const auto blocks = [&](kv::ElementType element, std::int32_t ranks) {
    return size_instance(config, small_model(), one_block(element, ranks), kGiB)->num_blocks;
  };
  EXPECT_EQ(blocks(kv::ElementType::kBf16, 1), 64);
  EXPECT_EQ(blocks(kv::ElementType::kF32, 1), 32);
  EXPECT_EQ(blocks(kv::ElementType::kInt8, 1), 64 * 128 / 68);  // head_dim bytes and a float
  EXPECT_EQ(blocks(kv::ElementType::kBf16, 2), 64);
  EXPECT_EQ(blocks(kv::ElementType::kBf16, 4), 32);  // two KV heads, each held twice
}

TEST(Sizing, DataParallelRanksShareTheMemoryAndHaveLimitsOfTheirOwn) {
  config::ServeConfig config = flags();
  config.data_parallel.size = config.data_parallel.local = 4;
  EXPECT_EQ(size_instance(config, small_model(), one_block(), 64 * kGiB)->num_blocks, 8 * 4096 / 16);
  config.kv_cache_bytes = 64 * 16 * 1024;
  EXPECT_EQ(size_instance(config, small_model(), one_block(), kGiB)->num_blocks, 16);
  EXPECT_EQ(size_instance(config, small_model(), one_block(), kGiB)->max_model_len, 256) << "what one rank holds";
  config.num_blocks = 7;
  EXPECT_EQ(size_instance(config, small_model(), one_block(), kGiB)->num_blocks, 7);

  config = flags();
  const std::int64_t alone = estimated_activation_bytes(small_model(), config);
  config.data_parallel.size = config.data_parallel.local = 2;
  const std::int64_t both = estimated_activation_bytes(small_model(), config);
  EXPECT_EQ(both, 2 * alone) << "a step may have the tokens of both";
  config.data_parallel.local = 1;
  EXPECT_EQ(estimated_activation_bytes(small_model(), config), alone) << "only those of this process";
}

TEST(Sizing, ThisMachineHasMemory) { EXPECT_GT(available_memory_bytes(), 0); }

}  // namespace
}  // namespace tandem::app
