// SPDX-License-Identifier: Apache-2.0
// The scheduler's rules one by one: order, budget, chunks, seats, admission, preemption, priority, prefix cache, remote
// KV. The randomised walk over all of them is scheduler_simulation_test.cc.
#include "engine/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace tandem::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::int32_t> prompt(std::int32_t length, std::int32_t first) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(length));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

class SchedulerTest : public ::testing::Test {
 protected:
  void make(SchedulerOptions options, std::int32_t num_blocks) {
    options.block_size = 4;
    pool_.emplace(num_blocks, std::span<std::atomic<std::uint32_t>>{});
    scheduler_.emplace(options, *pool_);
  }
  void add(SequenceId id, std::int32_t length, std::int32_t priority = 0, bool remote = false,
           std::int32_t first_token = -1) {
    const auto first = first_token >= 0 ? first_token : static_cast<std::int32_t>(id) * 1000;
    scheduler_->add({.id = id,
                     .prompt = prompt(length, first),
                     .priority = priority,
                     .arrival = TimePoint{} + std::chrono::seconds(id),
                     .remote_prefill = remote});
  }
  /// Schedules and completes a step; every sampled token is `token_`, counted up.
  Decision step() {
    Decision decision = scheduler_->schedule();
    complete(decision);
    return decision;
  }
  void complete(const Decision& decision) {
    for (const ScheduledSequence& scheduled : decision.scheduled) {
      scheduler_->advance(scheduled.id, scheduled.first_position + scheduled.num_tokens,
                          scheduled.sample ? std::optional(token_++) : std::nullopt);
    }
  }
  static std::vector<std::pair<SequenceId, std::int32_t>> shares(const Decision& decision) {
    std::vector<std::pair<SequenceId, std::int32_t>> result;
    for (const auto& scheduled : decision.scheduled) result.emplace_back(scheduled.id, scheduled.num_tokens);
    return result;
  }
  void expect_all_idle() {
    EXPECT_EQ(pool_->num_used(), 0);
    EXPECT_EQ(pool_->num_free() + pool_->num_cached(), pool_->num_blocks());
  }

  std::optional<kv::BlockPool> pool_;
  std::optional<Scheduler> scheduler_;
  std::int32_t token_ = 500'000;
};

using Share = std::pair<SequenceId, std::int32_t>;

TEST_F(SchedulerTest, RunningFirstInAdmissionOrderThenWaitingInQueueOrder) {
  make({.max_num_batched_tokens = 10}, 100);
  add(1, 6);
  EXPECT_THAT(shares(step()), ElementsAre(Share(1, 6)));
  add(2, 12);
  add(3, 4);
  EXPECT_THAT(shares(step()), ElementsAre(Share(1, 1), Share(2, 9)));
  EXPECT_THAT(shares(step()), ElementsAre(Share(1, 1), Share(2, 3), Share(3, 4)));
  EXPECT_THAT(shares(step()), ElementsAre(Share(1, 1), Share(2, 1), Share(3, 1)));
}

TEST_F(SchedulerTest, OnlyTheLastChunkSamples) {
  make({.max_num_batched_tokens = 4}, 100);
  add(1, 10);
  for (const bool sample : {false, false, true}) {
    const Decision decision = step();
    ASSERT_EQ(decision.scheduled.size(), 1U);
    EXPECT_EQ(decision.scheduled[0].sample, sample);
  }
  EXPECT_EQ(scheduler_->tokens(1).size(), 11U);
}

TEST_F(SchedulerTest, LongPrefillThresholdLeavesBudgetToOthers) {
  make({.max_num_batched_tokens = 16, .long_prefill_token_threshold = 6}, 100);
  add(1, 20);
  add(2, 3);
  EXPECT_THAT(shares(step()), ElementsAre(Share(1, 6), Share(2, 3)));
}

TEST_F(SchedulerTest, AStepScoresABoundedNumberOfTokens) {
  make({.max_num_batched_tokens = 2000}, 1000);
  for (SequenceId id = 1; id <= 2; ++id) scheduler_->add({.id = id, .prompt = prompt(700, 0), .whole_prompt = true});
  add(3, 100);
  EXPECT_THAT(shares(step()), ElementsAre(Share(1, 512)));
  EXPECT_THAT(shares(step()), ElementsAre(Share(1, 188), Share(2, 324), Share(3, 100)));
  EXPECT_THAT(shares(step()), ElementsAre(Share(1, 1), Share(2, 376), Share(3, 1)));
  EXPECT_THAT(shares(step()), ElementsAre(Share(1, 1), Share(2, 1), Share(3, 1)));
}

TEST_F(SchedulerTest, SeatsLimitRunning) {
  make({.max_num_seqs = 2, .max_num_batched_tokens = 100}, 100);
  for (SequenceId id = 1; id <= 3; ++id) add(id, 2);
  step();
  EXPECT_EQ(scheduler_->num_running(), 2);
  EXPECT_EQ(scheduler_->num_waiting(), 1);
  scheduler_->finish(1);
  EXPECT_THAT(shares(step()), ElementsAre(Share(2, 1), Share(3, 2)));
}

TEST_F(SchedulerTest, HeadWithoutRoomStopsTheQueue) {
  make({.max_num_batched_tokens = 100}, 4);
  add(1, 9);  // three of four blocks
  add(2, 8);  // two
  add(3, 2);  // one would be there
  EXPECT_THAT(shares(step()), ElementsAre(Share(1, 9)));
  scheduler_->finish(1);
  EXPECT_THAT(shares(step()), ElementsAre(Share(2, 8), Share(3, 2)));
}

TEST_F(SchedulerTest, RunningPromptsKeepTheRoomTheyWerePromised) {
  make({.max_num_batched_tokens = 4, .long_prefill_token_threshold = 2}, 4);
  add(1, 12);  // needs three blocks in the end, has one after its first chunk
  add(2, 8);
  EXPECT_THAT(shares(step()), ElementsAre(Share(1, 2))) << "two blocks are free, but promised to 1";
}

TEST_F(SchedulerTest, FcfsPreemptsTheLastAdmittedAndReturnsItToTheFront) {
  make({.max_num_batched_tokens = 100, .enable_prefix_caching = false}, 3);
  add(1, 4);
  add(2, 4);
  step();  // one block each
  add(3, 4);
  const Decision second = step();  // 1 takes the last block; 2 needs one too: it is the last admitted
  EXPECT_THAT(shares(second), ElementsAre(Share(1, 1)));
  EXPECT_THAT(second.preempted, ElementsAre(2));
  EXPECT_EQ(scheduler_->num_waiting(), 2);
  EXPECT_EQ(scheduler_->tokens(2).size(), 5U) << "its generated token is kept";
  scheduler_->finish(1);
  // Back at the front, all five tokens at once; 3 has no room left after it.
  EXPECT_THAT(shares(step()), ElementsAre(Share(2, 5), Share(3, 4)));
  scheduler_->finish(2);
  scheduler_->finish(3);
  expect_all_idle();
}

TEST_F(SchedulerTest, PinnedSequencesArePreemptedLast) {
  for (const bool both : {false, true}) {
    SCOPED_TRACE(both);
    make({.max_num_batched_tokens = 100, .enable_prefix_caching = false}, 3);
    scheduler_->add({.id = 1, .prompt = prompt(4, 10), .pinned = both});
    scheduler_->add({.id = 2, .prompt = prompt(4, 20), .pinned = true});
    step();                          // one block each
    const Decision second = step();  // 1 takes the last block; 2, the last admitted, needs one too
    EXPECT_THAT(second.preempted, ElementsAre(both ? 2 : 1));
    EXPECT_THAT(shares(second), ElementsAre(Share(both ? 1 : 2, 1)));
    scheduler_->finish(1);
    scheduler_->finish(2);
    expect_all_idle();
  }
}

TEST_F(SchedulerTest, NothingIsAdmittedInAStepWithAPreemption) {
  make({.max_num_batched_tokens = 100, .enable_prefix_caching = false}, 5);
  add(1, 8);
  add(2, 8);
  step();
  add(3, 1);
  const Decision decision = step();  // one block free: 1 takes it, 2 is preempted and frees two
  EXPECT_THAT(decision.preempted, ElementsAre(2));
  EXPECT_THAT(shares(decision), ElementsAre(Share(1, 1)));
}

TEST_F(SchedulerTest, PriorityOrdersTheQueueAndChoosesTheVictim) {
  make({.max_num_batched_tokens = 100, .enable_prefix_caching = false, .policy = SchedulingPolicy::kPriority}, 4);
  add(1, 4, /*priority=*/5);
  add(2, 4, /*priority=*/1);
  add(3, 4, /*priority=*/1);
  EXPECT_THAT(shares(step()), ElementsAre(Share(2, 4), Share(3, 4), Share(1, 4)));
  // One block is left; 2 takes it, 3 needs one: the victim is 1, the least urgent.
  const Decision decision = step();
  EXPECT_THAT(decision.preempted, ElementsAre(1));
  EXPECT_THAT(shares(decision), ElementsAre(Share(2, 1), Share(3, 1)));
}

TEST_F(SchedulerTest, PriorityVictimMayLoseItsPlaceInTheStep) {
  make({.max_num_batched_tokens = 100, .enable_prefix_caching = false, .policy = SchedulingPolicy::kPriority}, 3);
  add(1, 4, /*priority=*/9);
  step();
  add(2, 4, /*priority=*/0);  // admitted later, more urgent; 1 took the second block by decoding
  EXPECT_THAT(shares(step()), ElementsAre(Share(1, 1), Share(2, 4)));
  const Decision decision = step();  // 1 is planned first, then 2 needs its block
  EXPECT_THAT(decision.preempted, ElementsAre(1));
  EXPECT_THAT(shares(decision), ElementsAre(Share(2, 1)));
  EXPECT_EQ(decision.num_tokens, 1);
}

TEST_F(SchedulerTest, PriorityTiesGoByArrival) {
  make({.max_num_seqs = 1, .policy = SchedulingPolicy::kPriority}, 10);
  add(7, 2);
  add(4, 2);  // arrived earlier (see add)
  EXPECT_THAT(shares(step()), ElementsAre(Share(4, 2)));
}

TEST_F(SchedulerTest, PrefixHitIsAtMostAllButOneToken) {
  make({.max_num_batched_tokens = 100}, 20);
  add(1, 8, 0, false, 0);
  step();
  scheduler_->finish(1);
  EXPECT_EQ(pool_->num_cached(), 2);
  add(2, 8, 0, false, 0);  // the same prompt, an exact multiple of the block size: one block is computed again
  EXPECT_THAT(shares(step()), ElementsAre(Share(2, 4)));
  EXPECT_EQ(scheduler_->num_cached_tokens(2), 4);
  add(3, 9, 0, false, 0);  // one token longer
  EXPECT_THAT(shares(step()), ElementsAre(Share(2, 1), Share(3, 1)));
  EXPECT_EQ(scheduler_->num_cached_tokens(3), 8);
  EXPECT_EQ(scheduler_->prefix_cache_counts().queries, 8 + 8 + 9);
  EXPECT_EQ(scheduler_->prefix_cache_counts().hits, 12);
}

TEST_F(SchedulerTest, SaltsDoNotShare) {
  make({.max_num_batched_tokens = 100}, 20);
  for (SequenceId id = 1; id <= 3; ++id) {
    scheduler_->add({.id = id, .prompt = prompt(9, 0), .cache_salt = id == 3 ? "b" : "a"});
    step();
    scheduler_->finish(id);
  }
  EXPECT_EQ(scheduler_->prefix_cache_counts().hits, 8) << "only 2 may use what 1 left";
}

TEST_F(SchedulerTest, GeneratedTokensFillCachedBlocks) {
  make({.max_num_batched_tokens = 100}, 20);
  add(1, 6);
  for (int i = 0; i < 8; ++i) step();
  std::vector<std::int32_t> conversation = scheduler_->tokens(1);  // 14 tokens, KV of 13
  scheduler_->finish(1);
  EXPECT_EQ(pool_->num_cached(), 3);
  conversation.push_back(7);
  scheduler_->add({.id = 2, .prompt = conversation});
  step();
  EXPECT_EQ(scheduler_->num_cached_tokens(2), 12);
}

TEST_F(SchedulerTest, WithoutPrefixCachingNothingIsKept) {
  make({.max_num_batched_tokens = 100, .enable_prefix_caching = false}, 20);
  add(1, 8, 0, false, 0);
  step();
  scheduler_->finish(1);
  EXPECT_EQ(pool_->num_cached(), 0);
  EXPECT_EQ(scheduler_->prefix_cache_counts().queries, 0);
}

TEST_F(SchedulerTest, FinishInAStepFreesWhenTheStepIsDone) {
  make({.max_num_batched_tokens = 100}, 4);
  add(1, 8);
  const Decision decision = scheduler_->schedule();
  scheduler_->finish(1);
  EXPECT_FALSE(scheduler_->contains(1));
  EXPECT_EQ(scheduler_->num_running(), 0);
  EXPECT_EQ(pool_->num_used(), 2) << "the step in flight still writes there";
  EXPECT_THAT(scheduler_->schedule().scheduled, IsEmpty());
  complete(decision);
  EXPECT_EQ(scheduler_->num_draining(), 0);
  EXPECT_EQ(pool_->num_free(), 4) << "what nobody checked is not cached";
}

TEST_F(SchedulerTest, FailedStepFreesToo) {
  make({.max_num_batched_tokens = 100}, 4);
  add(1, 8);
  add(2, 4);
  scheduler_->schedule();
  scheduler_->finish(1);
  scheduler_->step_failed(1);
  scheduler_->step_failed(2);
  scheduler_->finish(2);
  EXPECT_EQ(pool_->num_free(), 4);
}

TEST_F(SchedulerTest, FinishAndKeepGivesThePromptsBlocks) {
  make({.max_num_batched_tokens = 100}, 8);
  add(1, 8);
  for (int i = 0; i < 3; ++i) step();
  const std::vector<kv::BlockId> table = scheduler_->block_table(1);
  ASSERT_EQ(table.size(), 3U);
  const std::vector<kv::BlockId> kept = scheduler_->finish_and_keep(1, 2);
  EXPECT_THAT(kept, ElementsAre(table[0], table[1]));
  EXPECT_EQ(pool_->num_used(), 2);
  pool_->release(kept);
  expect_all_idle();
}

// Remote KV.

TEST_F(SchedulerTest, FetchGoesOnBesideOthersAndEndsLikeAPrefixHit) {
  make({.max_num_batched_tokens = 100}, 20);
  add(1, 10, 0, /*remote=*/true);
  add(2, 3);
  const Decision first = step();
  ASSERT_EQ(first.fetches.size(), 1U);
  EXPECT_EQ(first.fetches[0].id, 1U);
  EXPECT_EQ(first.fetches[0].first_token, 0);
  EXPECT_EQ(first.fetches[0].end_token, 9);
  EXPECT_EQ(first.fetches[0].destination, scheduler_->block_table(1));
  EXPECT_THAT(shares(first), ElementsAre(Share(2, 3))) << "the fetching one is stepped over";
  EXPECT_EQ(scheduler_->num_waiting(), 1);
  EXPECT_EQ(scheduler_->num_fetching(), 1);
  EXPECT_THAT(step().fetches, IsEmpty()) << "one fetch a sequence";
  scheduler_->fetch_done(1, true);
  const Decision after = step();
  EXPECT_THAT(shares(after), ElementsAre(Share(2, 1), Share(1, 1)));
  EXPECT_EQ(after.scheduled[1].first_position, 9);
  EXPECT_TRUE(after.scheduled[1].sample);
  EXPECT_EQ(scheduler_->num_cached_tokens(1), 0);
}

TEST_F(SchedulerTest, FetchedBlocksAreSharedOnlyAfterTheFetch) {
  make({.max_num_batched_tokens = 100}, 20);
  add(1, 9, 0, /*remote=*/true, 0);
  step();
  add(2, 9, 0, false, 0);
  EXPECT_THAT(shares(step()), ElementsAre(Share(2, 9))) << "unverified blocks are nobody's prefix";
  scheduler_->finish(2);
  scheduler_->fetch_done(1, true);
  add(3, 9, 0, false, 0);
  step();
  EXPECT_EQ(scheduler_->num_cached_tokens(3), 8);
}

TEST_F(SchedulerTest, SiblingsWaitForOneFetchAndFindItsBlocks) {
  make({.max_num_batched_tokens = 100}, 20);
  const auto add_sibling = [this](SequenceId id, std::int32_t length, SequenceId of, bool remote) {
    scheduler_->add({.id = id, .prompt = prompt(length, 0), .remote_prefill = remote, .sibling = of});
  };
  add(1, 11, 0, /*remote=*/true, 0);
  add_sibling(2, 11, 1, /*remote=*/false);
  add_sibling(3, 11, 1, /*remote=*/true);
  add_sibling(4, 4, 1, /*remote=*/false);  // less than a block before its last token: there is nothing to find
  scheduler_->add({.id = 5, .prompt = prompt(11, 5000), .sibling = 77});  // of one that is not here
  Decision decision = step();
  ASSERT_EQ(decision.fetches.size(), 1U);
  EXPECT_EQ(decision.fetches[0].id, 1U);
  EXPECT_THAT(shares(decision), ElementsAre(Share(4, 4), Share(5, 11)));
  scheduler_->finish(4);
  scheduler_->finish(5);
  EXPECT_THAT(shares(step()), IsEmpty());
  scheduler_->fetch_done(1, true);
  decision = step();
  EXPECT_THAT(shares(decision), ElementsAre(Share(1, 1), Share(2, 3))) << "two of its three blocks are there";
  ASSERT_EQ(decision.fetches.size(), 1U) << "one whose KV comes too fetches what is left";
  EXPECT_EQ(decision.fetches[0].first_token, 8);
  EXPECT_EQ(scheduler_->num_cached_tokens(2), 8);
  scheduler_->fetch_done(3, true);
  EXPECT_THAT(shares(step()), ElementsAre(Share(1, 1), Share(2, 1), Share(3, 1)));
  for (const SequenceId id : {1, 2, 3}) scheduler_->finish(id);
  expect_all_idle();
}

TEST_F(SchedulerTest, SiblingsGoOnWhenTheFetchIsNotMade) {
  for (const bool fails : {true, false}) {
    make({.max_num_batched_tokens = 100}, 20);
    add(1, 11, 0, /*remote=*/true, 0);
    scheduler_->add({.id = 2, .prompt = prompt(11, 0), .sibling = 1});
    step();
    if (!fails) scheduler_->finish(1);
    scheduler_->fetch_done(1, false);
    EXPECT_EQ(shares(step()).back(), Share(2, 11));
  }
  make({.enable_prefix_caching = false}, 20);
  add(1, 11, 0, /*remote=*/true, 0);
  scheduler_->add({.id = 2, .prompt = prompt(11, 0), .sibling = 1});
  EXPECT_THAT(shares(step()), ElementsAre(Share(2, 11))) << "without a cache there is nothing to wait for";
}

TEST_F(SchedulerTest, FetchStartsAfterTheLocalHit) {
  make({.max_num_batched_tokens = 100}, 20);
  add(1, 8, 0, false, 0);
  step();
  scheduler_->finish(1);
  add(2, 13, 0, /*remote=*/true, 0);
  const Decision decision = step();
  ASSERT_EQ(decision.fetches.size(), 1U);
  EXPECT_EQ(decision.fetches[0].first_token, 8);
  EXPECT_EQ(decision.fetches[0].end_token, 12);
  // Token 12 has a block of its own, into which nothing is fetched.
  EXPECT_THAT(decision.fetches[0].destination, ElementsAre(scheduler_->block_table(2)[2]));
  EXPECT_EQ(scheduler_->block_table(2).size(), 4U);
  EXPECT_EQ(scheduler_->num_cached_tokens(2), 8);
}

TEST_F(SchedulerTest, NothingLeftToFetchRunsLocally) {
  make({.max_num_batched_tokens = 100}, 20);
  add(1, 8, 0, false, 0);
  add(2, 1, 0, /*remote=*/true);  // one token: nothing but the last one
  Decision decision = step();
  EXPECT_THAT(decision.unneeded_remote, ElementsAre(2));
  EXPECT_THAT(shares(decision), ElementsAre(Share(1, 8), Share(2, 1)));
  add(3, 9, 0, /*remote=*/true, 0);
  decision = step();
  EXPECT_THAT(decision.unneeded_remote, ElementsAre(3));
  EXPECT_THAT(decision.fetches, IsEmpty());
  EXPECT_EQ(scheduler_->num_cached_tokens(3), 8);
}

TEST_F(SchedulerTest, FailedFetchIsPrefilledHere) {
  make({.max_num_batched_tokens = 100}, 20);
  add(1, 10, 0, /*remote=*/true);
  step();
  scheduler_->fetch_done(1, false);
  EXPECT_EQ(pool_->num_free(), 20);
  const Decision decision = step();
  EXPECT_THAT(decision.fetches, IsEmpty());
  EXPECT_THAT(shares(decision), ElementsAre(Share(1, 10)));
}

TEST_F(SchedulerTest, BlocksOfAnAbortedFetchStayUntilItEnds) {
  for (const bool succeeded : {true, false}) {
    make({.max_num_batched_tokens = 100}, 4);
    add(1, 10, 0, /*remote=*/true);
    step();
    scheduler_->finish(1);
    EXPECT_EQ(pool_->num_used(), 3);
    EXPECT_EQ(scheduler_->num_fetching(), 0);
    EXPECT_EQ(scheduler_->num_waiting(), 0);
    scheduler_->fetch_done(1, succeeded);
    EXPECT_EQ(pool_->num_free(), 4);
  }
}

TEST_F(SchedulerTest, FetchesTakeSeatsInAdvance) {
  make({.max_num_seqs = 2, .max_num_batched_tokens = 100}, 100);
  for (SequenceId id = 1; id <= 5; ++id) add(id, 6, 0, /*remote=*/true);
  EXPECT_EQ(step().fetches.size(), 2U);
  scheduler_->fetch_done(1, true);
  scheduler_->fetch_done(2, true);
  EXPECT_THAT(shares(step()), ElementsAre(Share(1, 1), Share(2, 1)));
  EXPECT_EQ(scheduler_->num_running(), 2);
}

TEST_F(SchedulerTest, PreemptedFetchedSequenceIsRecomputedNotFetchedAgain) {
  make({.max_num_batched_tokens = 100, .enable_prefix_caching = false}, 4);
  add(1, 4);
  add(2, 8, 0, /*remote=*/true);
  step();
  scheduler_->fetch_done(2, true);
  step();                            // both run; 1 has taken the fourth block
  const Decision decision = step();  // 2 needs a third one: preempted
  EXPECT_THAT(decision.preempted, ElementsAre(2));
  scheduler_->finish(1);
  const Decision after = step();
  EXPECT_THAT(after.fetches, IsEmpty());
  EXPECT_THAT(shares(after), ElementsAre(Share(2, 9)));
}

TEST_F(SchedulerTest, FetchedSequencesPassAHeadThatWaitsForTheirBlocks) {
  // 1 runs, 2 has its KV but no seat yet. 1 outgrows the pool, gives way to nobody (2 is not running) and waits at the
  // head for the blocks that 2 holds: 2 must be let through, or both wait for ever.
  make({.max_num_seqs = 1, .max_num_batched_tokens = 100, .enable_prefix_caching = false}, 4);
  add(2, 8, 0, /*remote=*/true);
  step();
  add(1, 7);
  step();
  scheduler_->fetch_done(2, true);
  ASSERT_EQ(scheduler_->num_running(), 1);
  step();
  const Decision full = step();
  EXPECT_THAT(full.preempted, ElementsAre(1));
  EXPECT_THAT(shares(step()), ElementsAre(Share(2, 1)));
  scheduler_->finish(2);
  EXPECT_THAT(shares(step()), ElementsAre(Share(1, 9)));
}

// Running ahead.

TEST_F(SchedulerTest, AStepAheadGoesOnWithWhatIsInFlight) {
  make({.max_num_batched_tokens = 6, .run_ahead = true}, 16);
  add(1, 9);
  const Decision chunk = scheduler_->schedule();
  EXPECT_THAT(shares(chunk), ElementsAre(Share(1, 6)));
  const Decision rest = scheduler_->schedule();
  EXPECT_THAT(shares(rest), ElementsAre(Share(1, 3)));
  EXPECT_TRUE(rest.scheduled[0].sample);
  EXPECT_FALSE(rest.scheduled[0].sampled_before);
  complete(chunk);
  const Decision ahead = scheduler_->schedule();
  ASSERT_THAT(shares(ahead), ElementsAre(Share(1, 1)));
  EXPECT_TRUE(ahead.scheduled[0].sampled_before) << "the token of the step before, not known yet";
  EXPECT_EQ(ahead.scheduled[0].first_position, 9);
  complete(rest);
  EXPECT_EQ(scheduler_->tokens(1).size(), 10U);
  complete(ahead);
  EXPECT_EQ(scheduler_->tokens(1).size(), 11U);
  const Decision next = scheduler_->schedule();
  EXPECT_FALSE(next.scheduled[0].sampled_before) << "nothing was in flight";
  complete(next);
  scheduler_->finish(1);
  expect_all_idle();
}

TEST_F(SchedulerTest, WithoutRunningAheadASequenceIsInOneStep) {
  make({.max_num_batched_tokens = 6}, 16);
  add(1, 9);
  const Decision chunk = scheduler_->schedule();
  EXPECT_THAT(scheduler_->schedule().scheduled, IsEmpty());
  complete(chunk);
}

TEST_F(SchedulerTest, NobodyRunsPastItsLastToken) {
  make({.run_ahead = true}, 16);
  scheduler_->add({.id = 1, .prompt = prompt(5, 0), .max_tokens = 7});
  const Decision first = scheduler_->schedule();
  const Decision second = scheduler_->schedule();
  EXPECT_THAT(shares(second), ElementsAre(Share(1, 1)));
  complete(first);
  EXPECT_THAT(scheduler_->schedule().scheduled, IsEmpty()) << "the seventh token is being sampled";
  complete(second);
  EXPECT_EQ(scheduler_->tokens(1).size(), 7U);
}

TEST_F(SchedulerTest, NobodyIsPreemptedForAStepAhead) {
  make({.run_ahead = true}, 4);
  add(1, 7);
  add(2, 7);
  const Decision first = scheduler_->schedule();
  EXPECT_THAT(shares(first), ElementsAre(Share(1, 7), Share(2, 7)));
  const Decision ahead = scheduler_->schedule();
  EXPECT_THAT(shares(ahead), ElementsAre(Share(1, 1), Share(2, 1))) << "the eighth slots";
  complete(first);
  const Decision short_of_blocks = scheduler_->schedule();
  EXPECT_THAT(short_of_blocks.scheduled, IsEmpty());
  EXPECT_THAT(short_of_blocks.preempted, IsEmpty());
  complete(ahead);
  const Decision after = step();
  EXPECT_THAT(after.preempted, ElementsAre(2)) << "as it would have been without running ahead";
  EXPECT_THAT(shares(after), ElementsAre(Share(1, 1)));
  scheduler_->finish(1);
  scheduler_->finish(2);
  expect_all_idle();
}

TEST_F(SchedulerTest, KvBehindTheEndOfASequenceIsNotFiled) {
  make({.run_ahead = true}, 8);
  add(1, 7);
  const Decision first = scheduler_->schedule();
  const Decision ahead = scheduler_->schedule();  // fills the second block
  complete(first);
  scheduler_->finish(1);
  EXPECT_EQ(pool_->num_used(), 2) << "the step ahead still writes there";
  complete(ahead);
  expect_all_idle();
  EXPECT_EQ(pool_->num_cached(), 1);
}

}  // namespace
}  // namespace tandem::engine
