// SPDX-License-Identifier: Apache-2.0
// "The same tokens every way": the logits of a token are bit-equal alone or batched, chunked or whole, computed or from
// cache, on one thread or several, for each compute type and instruction set.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <tuple>

#include "model/generator.h"
#include "support/model_support.h"

namespace tandem::testing {
namespace {

using model::ComputeType;
using model::LogitsOf;
using model::SequenceInput;

// Shapes with odd head counts, and one large enough that every kernel really splits its work between threads.
struct Shape {
  std::string name;
  model::ModelConfig config;
};

Shape shape_of(const std::string& name) {
  if (!name.starts_with("wide")) return {name, load_golden(name).config};
  model::ModelConfig config = load_golden(name == "wide" ? "T7-qwen3-2kv" : "T2-qwen3moe").config;
  config.vocab_size = 500;
  config.hidden_size = 192;
  config.intermediate_size = 400;
  config.num_layers = 2;
  config.num_heads = 8;
  config.num_kv_heads = 2;
  config.head_dim = 64;
  if (config.num_experts > 0) {
    config.num_experts = 20;
    config.experts_per_token = 5;
    config.moe_intermediate_size = 100;
  }
  return {name, config};
}

using Parameter = std::tuple<std::string, ComputeType, kernels::Isa>;

class BatchInvariance : public ::testing::TestWithParam<Parameter> {
 protected:
  BatchInvariance() : config_(shape_of(std::get<0>(GetParam())).config) {
    checkpoint_ = model::make_synthetic_checkpoint(config_, "invariance:");
    prompt_ = tokens(100, 37, 11);
    reference_ = runner(1).all_logits(prompt_);
  }

  ModelRunner runner(int threads, std::int32_t block_size = 16) const {
    model::ModelOptions options;
    options.compute = std::get<1>(GetParam());
    options.isa = std::get<2>(GetParam());
    options.max_positions = 256;
    return ModelRunner(*checkpoint_, options, threads, block_size, 1600 / block_size);
  }

  Tokens tokens(int count, int factor, int offset) const {
    Tokens list;
    for (int i = 0; i < count; ++i) list.push_back((factor * i + offset) % config_.vocab_size);
    return list;
  }

  // Which rows differ in any bit.
  static std::vector<std::size_t> different_rows(const std::vector<Logits>& got, const std::vector<Logits>& expected,
                                                 std::size_t first = 0) {
    std::vector<std::size_t> rows;
    for (std::size_t i = 0; i < got.size(); ++i) {
      const Logits& other = expected.at(first + i);
      if (got[i].size() != other.size() || std::memcmp(got[i].data(), other.data(), other.size() * sizeof(float)) != 0)
        rows.push_back(first + i);
    }
    return rows;
  }

  model::ModelConfig config_;
  std::unique_ptr<model::Checkpoint> checkpoint_;
  Tokens prompt_;
  std::vector<Logits> reference_;
};

TEST_P(BatchInvariance, ThreadsAndBlockSizesChangeNothing) {
  EXPECT_THAT(different_rows(runner(2).all_logits(prompt_), reference_), ::testing::IsEmpty()) << "two threads";
  EXPECT_THAT(different_rows(runner(3).all_logits(prompt_), reference_), ::testing::IsEmpty()) << "three threads";
  EXPECT_THAT(different_rows(runner(1, 4).all_logits(prompt_), reference_), ::testing::IsEmpty()) << "blocks of 4";
  EXPECT_THAT(different_rows(runner(2, 32).all_logits(prompt_), reference_), ::testing::IsEmpty()) << "blocks of 32";
}

TEST_P(BatchInvariance, ChunksChangeNothing) {
  for (const int threads : {1, 2}) {
    ModelRunner model = runner(threads);
    for (const std::int64_t chunk : {1, 7, 64})
      EXPECT_THAT(different_rows(model.all_logits(prompt_, chunk), reference_), ::testing::IsEmpty())
          << "chunks of " << chunk << ", " << threads << " threads";
  }
}

TEST_P(BatchInvariance, NeighboursInTheBatchChangeNothing) {
  for (const int threads : {1, 2}) {
    ModelRunner model = runner(threads);
    const Tokens before = tokens(33, 5, 2);
    const Tokens after = tokens(9, 3, 1);
    const auto table_before = model.allocate(33);
    const auto table = model.allocate(100);
    const auto table_after = model.allocate(9);
    const std::vector<SequenceInput> batch = {{before, 0, table_before, LogitsOf::kNone},
                                              {prompt_, 0, table, LogitsOf::kAll},
                                              {after, 0, table_after, LogitsOf::kLast}};
    std::vector<Logits> rows = model.forward(batch);
    ASSERT_EQ(rows.size(), 101U);
    const Logits last = rows.back();
    rows.pop_back();
    EXPECT_THAT(different_rows(rows, reference_), ::testing::IsEmpty()) << threads << " threads";
    EXPECT_THAT(different_rows({last}, {runner(1).all_logits(after).back()}), ::testing::IsEmpty());
  }
}

TEST_P(BatchInvariance, DecodingTogetherChangesNothing) {
  for (const int threads : {1, 2}) {
    ModelRunner model = runner(threads);
    // Eight copies of the prompt at different positions, one token each in every pass.
    std::vector<std::vector<kv::BlockId>> tables;
    for (int i = 0; i < 8; ++i) tables.push_back(model.allocate(100));
    for (int step = 0; step < 20; ++step) {
      std::vector<SequenceInput> batch;
      for (int i = 0; i < 8; ++i) {
        const int position = step - i;
        if (position < 0) continue;
        batch.push_back({std::span(prompt_).subspan(static_cast<std::size_t>(position), 1), position,
                         tables[static_cast<std::size_t>(i)], LogitsOf::kLast});
      }
      const std::vector<Logits> rows = model.forward(batch);
      for (std::size_t i = 0; i < batch.size(); ++i)
        EXPECT_THAT(different_rows({rows[i]}, reference_, static_cast<std::size_t>(batch[i].first_position)),
                    ::testing::IsEmpty());
    }
  }
}

// More rows than go through an MLP at once, and more pairs than go through experts at once.
TEST_P(BatchInvariance, AVeryLargeBatchChangesNothing) {
  if (!std::get<0>(GetParam()).starts_with("wide")) GTEST_SKIP() << "large models only";
  ModelRunner model = runner(2);
  std::vector<std::vector<kv::BlockId>> tables;
  for (int i = 0; i < 12; ++i) tables.push_back(model.allocate(100));
  std::vector<SequenceInput> batch;
  for (const auto& table : tables) batch.push_back({prompt_, 0, table, LogitsOf::kAll});
  const std::vector<Logits> rows = model.forward(batch);
  for (std::size_t i = 0; i < 12; ++i)
    EXPECT_THAT(different_rows({rows.begin() + static_cast<std::ptrdiff_t>(100 * i),
                                rows.begin() + static_cast<std::ptrdiff_t>(100 * (i + 1))},
                               reference_),
                ::testing::IsEmpty());
}

TEST_P(BatchInvariance, PrefixFromCacheChangesNothing) {
  ModelRunner model = runner(2);
  const auto first = model.allocate(100);
  const SequenceInput whole{prompt_, 0, first, LogitsOf::kNone};
  EXPECT_TRUE(model.forward(std::span(&whole, 1)).empty());
  for (const std::int64_t prefix : {16, 64, 96}) {
    const auto shared = static_cast<std::size_t>(prefix / 16);
    std::vector<kv::BlockId> table(first.begin(), first.begin() + static_cast<std::ptrdiff_t>(shared));
    for (const kv::BlockId block : model.allocate(100 - prefix)) table.push_back(block);
    const SequenceInput rest{std::span(prompt_).subspan(static_cast<std::size_t>(prefix)), prefix, table,
                             LogitsOf::kAll};
    EXPECT_THAT(different_rows(model.forward(std::span(&rest, 1)), reference_, static_cast<std::size_t>(prefix)),
                ::testing::IsEmpty())
        << prefix << " tokens from the cache";
  }
}

TEST_P(BatchInvariance, AskingForFewerLogitsChangesNothing) {
  ModelRunner model = runner(2);
  const auto table = model.allocate(100);
  const SequenceInput input{prompt_, 0, table, LogitsOf::kLast};
  const std::vector<Logits> rows = model.forward(std::span(&input, 1));
  EXPECT_THAT(different_rows(rows, reference_, 99), ::testing::IsEmpty());
}

std::string parameter_name(const ::testing::TestParamInfo<Parameter>& parameter) {
  std::string name = std::get<0>(parameter.param) + "_" +
                     std::string(model::compute_name(std::get<1>(parameter.param))) + "_" +
                     std::string(kernels::isa_name(std::get<2>(parameter.param)));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Models, BatchInvariance,
                         ::testing::Combine(::testing::Values("T1-qwen3", "T2b-qwen3moe-mixed", "T3-qwen2",
                                                              "T4b-llama3rope", "wide", "wide-experts"),
                                            ::testing::Values(ComputeType::kFloat32, ComputeType::kBf16,
                                                              ComputeType::kW8A8),
                                            ::testing::ValuesIn(available_isas())),
                         parameter_name);

}  // namespace
}  // namespace tandem::testing
