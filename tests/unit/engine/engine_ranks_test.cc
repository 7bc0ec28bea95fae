// SPDX-License-Identifier: Apache-2.0
// Data-parallel ranks of one process over the stub worker: joined steps, results and failures split again, blocks of
// one's own, placing, hand-overs to and from any rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "unit/engine/instance.h"

namespace tandem::engine {
namespace {

using testing::Collector;
using testing::eventually;
using testing::expect_right;
using testing::greedy;
using ::testing::HasSubstr;
using testing::Instance;
using testing::kBlockSize;
using testing::kVocab;
using testing::prompt;

/// Each test runs step by step and with async scheduling.
class EngineRanksTest : public ::testing::TestWithParam<bool> {
 protected:
  void start(EngineOptions options, std::int32_t num_blocks = 96) {
    instance_.watch = [this](const worker::StepPlan& plan) {
      const std::lock_guard lock(mutex_);
      plans_.push_back(plan);
    };
    options.async_scheduling = GetParam();
    instance_.start("I", 7, num_blocks, std::move(options));
  }
  void TearDown() override { instance_.gate.open(); }

  Result<RequestHandle> submit(Collector& collector, std::vector<std::int32_t> tokens, std::int32_t max_tokens = 8,
                               std::optional<std::int32_t> rank = std::nullopt) {
    GenerationRequest request;
    request.id = "test";
    request.prompt = std::move(tokens);
    request.sampling = greedy(max_tokens);
    request.rank = rank;
    return instance_.engine->submit(std::move(request), collector.sink());
  }
  std::vector<worker::StepPlan> plans() {
    const std::lock_guard lock(mutex_);
    return plans_;
  }
  double generated(std::int32_t rank) const { return instance_.metric("vllm:generation_tokens_total", rank); }

  Instance instance_;
  std::mutex mutex_;
  std::vector<worker::StepPlan> plans_;
};

TEST_P(EngineRanksTest, RanksShareAStepAndKeepTheirBlocks) {
  start({.num_ranks = 3});
  instance_.gate.close();
  std::vector<Collector> collectors(7);
  ASSERT_TRUE(submit(collectors[0], prompt(9)));
  ASSERT_TRUE(instance_.gate.wait_for_arrivals(1));
  for (std::int32_t i = 1; i < 7; ++i) {
    ASSERT_TRUE(submit(collectors[static_cast<std::size_t>(i)], prompt(9, i), 8, i % 3));
  }
  instance_.gate.open();
  for (std::size_t i = 0; i < 7; ++i) expect_right(collectors[i], prompt(9, static_cast<std::int32_t>(i)));

  std::size_t most = 0;
  for (const worker::StepPlan& plan : plans()) {
    std::set<std::int32_t> shares;
    for (const worker::SequencePlan& sequence : plan.sequences) {
      const auto rank = static_cast<std::int32_t>(sequence.sequence % 3);
      shares.insert(rank);
      for (const kv::BlockId block : sequence.block_table) EXPECT_EQ(block / 32, rank) << "blocks of its own share";
    }
    most = std::max(most, shares.size());
  }
  EXPECT_EQ(most, 3U) << "a step of all ranks";
  for (std::int32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(generated(rank), rank == 0 ? 24 : 16);
  EXPECT_TRUE(eventually([this] { return instance_.all_blocks_back(); }));
  EXPECT_EQ(instance_.engine->stats().num_blocks, 96);
}

TEST_P(EngineRanksTest, NothingRunsWhenAllAreIdle) {
  start({.num_ranks = 4});
  Collector collector;
  ASSERT_TRUE(submit(collector, prompt(5), 3));
  expect_right(collector, prompt(5), 3);
  EXPECT_EQ(plans().size(), 3U);
  for (const worker::StepPlan& plan : plans()) EXPECT_EQ(plan.sequences.size(), 1U);
}

TEST_P(EngineRanksTest, LimitsAreEachRanks) {
  start({.num_ranks = 2, .max_num_seqs = 2, .max_num_batched_tokens = 8});
  instance_.gate.close();
  std::vector<Collector> collectors(6);
  ASSERT_TRUE(submit(collectors[0], prompt(20), 4, 0));
  ASSERT_TRUE(instance_.gate.wait_for_arrivals(1));
  for (std::size_t i = 1; i < 6; ++i) {
    ASSERT_TRUE(submit(collectors[i], prompt(20, static_cast<std::int32_t>(i)), 4, static_cast<std::int32_t>(i % 2)));
  }
  instance_.gate.open();
  for (std::size_t i = 0; i < 6; ++i) expect_right(collectors[i], prompt(20, static_cast<std::int32_t>(i)), 4);
  std::size_t most_tokens = 0;
  for (const worker::StepPlan& plan : plans()) {
    std::size_t tokens[2] = {0, 0};
    std::size_t seats[2] = {0, 0};
    for (const worker::SequencePlan& sequence : plan.sequences) {
      tokens[sequence.sequence % 2] += sequence.tokens.size();
      ++seats[sequence.sequence % 2];
    }
    for (const int rank : {0, 1}) {
      EXPECT_LE(tokens[rank], 8U);
      EXPECT_LE(seats[rank], 2U);
    }
    most_tokens = std::max(most_tokens, tokens[0] + tokens[1]);
  }
  EXPECT_GT(most_tokens, 8U);
  EXPECT_TRUE(eventually([this] { return instance_.all_blocks_back(); }));
}

TEST_P(EngineRanksTest, ARankMayBeNamed) {
  start({.num_ranks = 3, .first_rank = 4});
  std::vector<Collector> collectors(3);
  for (std::size_t i = 0; i < 3; ++i) ASSERT_TRUE(submit(collectors[i], prompt(9), 8, 5));
  for (Collector& collector : collectors) expect_right(collector, prompt(9));
  EXPECT_EQ(generated(5), 24);
  EXPECT_EQ(generated(4) + generated(6), 0);
  Collector refused;
  for (const std::int32_t rank : {3, 7}) {
    const auto handle = submit(refused, prompt(9), 8, rank);
    ASSERT_FALSE(handle);
    EXPECT_THAT(handle.error().message(), HasSubstr("expected 4 to 6"));
  }
}

TEST_P(EngineRanksTest, PromptsGoToTheRankThatKnowsThem) {
  start({.num_ranks = 3});
  std::vector<Collector> collectors(9);
  for (std::size_t i = 0; i < 9; ++i) {
    ASSERT_TRUE(submit(collectors[i], prompt(17, static_cast<std::int32_t>(i % 3 == 2 ? 0 : i))));
    EXPECT_TRUE(collectors[i].last().error.ok());
    if (i % 3 == 2) {
      EXPECT_EQ(collectors[i].last().num_cached_tokens, 16) << i;
    }
  }
  EXPECT_TRUE(instance_.engine->reset_prefix_cache());
  Collector again;
  ASSERT_TRUE(submit(again, prompt(17)));
  EXPECT_EQ(again.last().num_cached_tokens, 0);
}

TEST_P(EngineRanksTest, LoadsCountWhatWasSubmitted) {
  start({.num_ranks = 2, .max_num_seqs = 1});
  instance_.gate.close();
  std::vector<Collector> collectors(5);
  for (std::size_t i = 0; i < 5; ++i) {
    ASSERT_TRUE(submit(collectors[i], prompt(9, static_cast<std::int32_t>(i)), 2, i == 0 ? 1 : 0));
  }
  EXPECT_TRUE(eventually([this] {
    const std::vector<RankLoad> loads = instance_.engine->rank_loads();
    return loads.at(0).num_waiting >= 3 && loads.at(0).num_running + loads.at(0).num_waiting == 4 &&
           loads.at(1).num_running + loads.at(1).num_waiting == 1;
  }));
  Collector sixth;
  ASSERT_TRUE(submit(sixth, prompt(9, 6), 2));
  instance_.gate.open();
  for (Collector& collector : collectors) EXPECT_TRUE(collector.last().error.ok());
  EXPECT_TRUE(sixth.last().error.ok());
  EXPECT_EQ(generated(1), 4) << "the sixth went where nobody waits";
}

TEST_P(EngineRanksTest, AStepThatFailsFailsThoseInItAndNobodyElse) {
  start({.num_ranks = 3});
  instance_.gate.close();
  Collector first;
  ASSERT_TRUE(submit(first, prompt(3, 9), 1, 2));
  ASSERT_TRUE(instance_.gate.wait_for_arrivals(1));
  std::vector<Collector> collectors(3);
  for (const std::int32_t rank : {0, 1}) {
    ASSERT_TRUE(submit(collectors[static_cast<std::size_t>(rank)], prompt(9, rank), 8, rank));
  }
  instance_.gate.let_one_pass();
  ASSERT_TRUE(instance_.gate.wait_for_arrivals(2));
  ASSERT_TRUE(submit(collectors[2], prompt(9, 2), 8, 2));
  instance_.fail_next_step = true;
  instance_.gate.open();
  for (const std::int32_t rank : {0, 1}) collectors[static_cast<std::size_t>(rank)].last();
  std::set<std::uint64_t> in_it;  // planned ahead it may have been made before the second one came
  const worker::StepPlan failed = plans().at(1);
  for (const worker::SequencePlan& sequence : failed.sequences) in_it.insert(sequence.sequence % 3);
  EXPECT_GE(in_it.size(), GetParam() ? 1U : 2U);
  for (const std::int32_t rank : {0, 1}) {
    Collector& collector = collectors[static_cast<std::size_t>(rank)];
    if (in_it.contains(static_cast<std::uint64_t>(rank))) {
      EXPECT_THAT(collector.last().error.message(), HasSubstr("step failed"));
    } else {
      expect_right(collector, prompt(9, rank));
    }
  }
  expect_right(collectors[2], prompt(9, 2));
  expect_right(first, prompt(3, 9), 1);
  EXPECT_TRUE(instance_.engine->healthy());
  EXPECT_TRUE(eventually([this] { return instance_.all_blocks_back(); }));
}

TEST_P(EngineRanksTest, ASequenceWithoutATokenFailsAlone) {
  start({.num_ranks = 2});
  instance_.gate.close();
  Collector blocker;
  ASSERT_TRUE(submit(blocker, prompt(3, 9), 1, 0));
  ASSERT_TRUE(instance_.gate.wait_for_arrivals(1));
  auto nothing = greedy(8);
  nothing->allowed_token_ids = {3};
  nothing->min_tokens = 8;
  nothing->stop_token_ids = {3};
  Collector bad;
  GenerationRequest request;
  request.prompt = prompt(9);
  request.sampling = nothing;
  request.rank = 0;
  ASSERT_TRUE(instance_.engine->submit(std::move(request), bad.sink()));
  Collector good[2];
  for (const std::int32_t rank : {0, 1}) ASSERT_TRUE(submit(good[rank], prompt(9, rank + 1), 8, rank));
  instance_.gate.open();
  EXPECT_THAT(bad.last().error.message(), HasSubstr("no token may be sampled"));
  for (const std::int32_t rank : {0, 1}) expect_right(good[rank], prompt(9, rank + 1));
}

TEST_P(EngineRanksTest, AbortsReachTheRank) {
  start({.num_ranks = 3});
  instance_.gate.close();
  std::vector<Collector> collectors(6);
  std::vector<RequestHandle> handles;
  for (std::size_t i = 0; i < 6; ++i) {
    auto handle = submit(collectors[i], prompt(9, static_cast<std::int32_t>(i)), 50);
    ASSERT_TRUE(handle);
    handles.push_back(*handle);
  }
  for (const std::size_t i : {1U, 5U}) instance_.engine->abort(handles[i]);
  for (const std::size_t i : {1U, 5U}) EXPECT_EQ(collectors[i].last().finish, FinishReason::kAbort);
  instance_.gate.open();
  for (const std::size_t i : {0U, 2U, 3U, 4U}) expect_right(collectors[i], prompt(9, static_cast<std::int32_t>(i)), 50);
  EXPECT_TRUE(eventually([this] { return instance_.all_blocks_back(); }));
}

TEST_P(EngineRanksTest, PoolsForThreeUnderPressureGiveTheSameTokens) {
  start({.num_ranks = 4, .max_num_seqs = 64, .max_num_batched_tokens = 24}, /*num_blocks=*/4 * 30);
  std::vector<Collector> collectors(64);
  for (std::int32_t i = 0; i < 64; ++i) {
    ASSERT_TRUE(submit(collectors[static_cast<std::size_t>(i)], prompt(10 + i % 13, i % 7), 20));
  }
  for (std::int32_t i = 0; i < 64; ++i) {
    expect_right(collectors[static_cast<std::size_t>(i)], prompt(10 + i % 13, i % 7), 20);
  }
  EXPECT_TRUE(eventually([this] { return instance_.all_blocks_back(); }));
}

TEST_P(EngineRanksTest, HandoversGoFromAnyRankToAnyRank) {
  Instance decoder;
  instance_.start("P", 1, 2 * 40, {.num_ranks = 2, .async_scheduling = GetParam()});
  decoder.start("D", 2, 4 * 40, {.num_ranks = 4, .async_scheduling = GetParam()});
  decoder.transfer->connect(*instance_.transfer);
  std::vector<transfer::Handover> handovers;
  for (std::int32_t i = 0; i < 8; ++i) {
    Collector collector;
    GenerationRequest request;
    request.prompt = prompt(21, i);
    request.sampling = greedy(1);
    request.remote_decode = true;
    request.rank = i % 2;
    ASSERT_TRUE(instance_.engine->submit(std::move(request), collector.sink()));
    ASSERT_TRUE(collector.last().handover);
    handovers.push_back(*collector.last().handover);
  }
  EXPECT_EQ(instance_.engine->stats().num_leased, 8);
  std::vector<Collector> collectors(8);
  for (std::int32_t i = 0; i < 7; ++i) {
    const auto index = static_cast<std::size_t>(i);
    GenerationRequest request;
    request.prompt = prompt(21, i);
    request.sampling = greedy(8);
    request.remote_prefill = handovers[index];
    request.rank = (i * 3) % 4;
    ASSERT_TRUE(decoder.engine->submit(std::move(request), collectors[index].sink()));
  }
  for (std::int32_t i = 0; i < 7; ++i) expect_right(collectors[static_cast<std::size_t>(i)], prompt(21, i));
  double received = 0.0;
  for (std::int32_t rank = 0; rank < 4; ++rank) {
    const double here = decoder.metric("vllm:prompt_tokens_by_source_total{source=\"external_kv_transfer\"}", rank);
    EXPECT_GT(here, 0.0) << rank;
    received += here;
  }
  EXPECT_EQ(received, 7 * 20);
  EXPECT_TRUE(eventually([&] { return instance_.engine->stats().num_leased == 1; }));
  instance_.engine->release_lease(handovers[7].lease);
  EXPECT_TRUE(eventually([&] { return instance_.all_blocks_back() && decoder.all_blocks_back(); }));
  decoder.engine.reset();
}

TEST_P(EngineRanksTest, ResetWantsAllRanksIdle) {
  start({.num_ranks = 2});
  Collector done;
  ASSERT_TRUE(submit(done, prompt(9), 8, 0));
  expect_right(done, prompt(9));
  instance_.gate.close();
  Collector busy;
  ASSERT_TRUE(submit(busy, prompt(9), 8, 1));
  ASSERT_TRUE(eventually([this] { return instance_.engine->stats().num_running == 1; }));
  const std::int32_t cached = instance_.engine->stats().num_cached_blocks;
  EXPECT_GT(cached, 0);
  EXPECT_FALSE(instance_.engine->reset_prefix_cache());
  EXPECT_EQ(instance_.engine->stats().num_cached_blocks, cached) << "none is reset";
  instance_.gate.open();
  expect_right(busy, prompt(9));
  EXPECT_TRUE(eventually([this] { return instance_.engine->reset_prefix_cache(); }));
  EXPECT_EQ(instance_.engine->stats().num_cached_blocks, 0);
}

INSTANTIATE_TEST_SUITE_P(Scheduling, EngineRanksTest, ::testing::Bool(), testing::scheduling_name);

}  // namespace
}  // namespace tandem::engine
