// SPDX-License-Identifier: Apache-2.0
// The engine over the stub worker, whose tokens depend on every KV slot of the context: results, limits, aborts at
// every moment, failures. Hand-overs are in engine_handover_test.cc, text in engine_text_test.cc,
// what is counted in engine_counts_test.cc.
#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/engine/engine_fixture.h"

namespace tandem::engine {
namespace {

using testing::Collector;
using ::testing::ElementsAreArray;
using testing::EngineTest;
using testing::eventually;
using ::testing::HasSubstr;
using testing::kVocab;
using testing::prompt;
using worker::StubWorker;

TEST_P(EngineTest, GivesTheModelsTokens) {
  start({.max_num_batched_tokens = 8});
  Collector collector;
  ASSERT_TRUE(submit(collector, prompt(21), greedy(9)));
  const Output last = collector.last();
  EXPECT_THAT(collector.tokens(), ElementsAreArray(StubWorker::greedy(prompt(21), kVocab, 9)));
  EXPECT_EQ(last.finish, FinishReason::kLength);
  EXPECT_EQ(last.stop_reason.index(), 0U);
  EXPECT_EQ(collector.num_outputs(), 9U) << "one output a token";
  EXPECT_GT(last.times.prefill, 0.0);
  EXPECT_GT(last.times.decode, 0.0);
  expect_idle();
}

TEST_P(EngineTest, ManyRequestsThroughAPoolForThreeGetTheSameTokens) {
  for (const SchedulingPolicy policy : {SchedulingPolicy::kFcfs, SchedulingPolicy::kPriority}) {
    start({.max_num_seqs = 64, .max_num_batched_tokens = 24, .policy = policy}, /*num_blocks=*/30);
    std::vector<Collector> collectors(64);
    for (std::int32_t i = 0; i < 64; ++i) {
      ASSERT_TRUE(submit(collectors[static_cast<std::size_t>(i)], prompt(10 + i % 13, i % 7), greedy(20), i % 3));
    }
    for (std::int32_t i = 0; i < 64; ++i) {
      Collector& collector = collectors[static_cast<std::size_t>(i)];
      EXPECT_TRUE(collector.last().error.ok());
      EXPECT_THAT(collector.tokens(), ElementsAreArray(StubWorker::greedy(prompt(10 + i % 13, i % 7), kVocab, 20)));
    }
    expect_idle();
    EXPECT_GT(metric("vllm:num_preemptions_total{engine=\"0\",model_name=\"m\"}"), 0.0);
  }
}

TEST_P(EngineTest, LengthsAroundBlocksAndChunks) {
  start({.max_num_batched_tokens = 8}, 64, 4);
  for (int round = 0; round < 2; ++round) {  // the second time from the prefix cache
    for (const std::int32_t length : {1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33}) {
      Collector collector;
      ASSERT_TRUE(submit(collector, prompt(length), greedy(6)));
      EXPECT_EQ(collector.last().num_cached_tokens,
                round == 0 ? collector.last().num_cached_tokens : (length - 1) / 4 * 4);
      EXPECT_THAT(collector.tokens(), ElementsAreArray(StubWorker::greedy(prompt(length), kVocab, 6))) << length;
    }
  }
  expect_idle();
}

TEST_P(EngineTest, SeededSamplingDoesNotDependOnPreemption) {
  const auto generate = [&](std::int32_t num_blocks, std::int32_t num_requests) {
    start({.max_num_seqs = 64, .max_num_batched_tokens = 16}, num_blocks);
    std::vector<Collector> collectors(static_cast<std::size_t>(num_requests));
    std::vector<std::vector<std::int32_t>> results;
    for (std::int32_t i = 0; i < num_requests; ++i) {
      worker::SamplingParams params = greedy(16);
      params.temperature = 0.8;
      params.presence_penalty = 0.5;
      params.repetition_penalty = 1.1;
      params.seed = static_cast<std::uint64_t>(i);
      EXPECT_TRUE(submit(collectors[static_cast<std::size_t>(i)], prompt(9, i), params));
    }
    for (Collector& collector : collectors) {
      EXPECT_TRUE(collector.last().error.ok());
      results.push_back(collector.tokens());
    }
    return results;
  };
  const auto roomy = generate(400, 12);
  EXPECT_EQ(generate(12, 12), roomy);
  EXPECT_GT(metric("vllm:num_preemptions_total{engine=\"0\",model_name=\"m\"}"), 0.0);
}

// How a request ends.

TEST_P(EngineTest, EosAndStopIds) {
  const auto expected = StubWorker::greedy(prompt(5), kVocab, 8);
  const std::int32_t third = expected[2];
  ASSERT_EQ(std::count(expected.begin(), expected.begin() + 2, third), 0) << "the test needs a fresh token there";
  struct Case {
    std::vector<std::int32_t> eos, stop_ids;
    bool ignore_eos;
    std::size_t num_tokens;
    FinishReason finish;
    std::variant<std::monostate, std::int32_t, std::string> reason;
  };
  const std::int32_t unused = (third + 1) % kVocab == expected[0] ? third + 2 : third + 1;
  const std::vector<Case> cases = {
      {{third}, {}, false, 3, FinishReason::kStop, std::monostate{}},
      {{unused % kVocab, third}, {}, false, 3, FinishReason::kStop, third},
      {{}, {third}, false, 3, FinishReason::kStop, third},
      {{third}, {third}, false, 3, FinishReason::kStop, std::monostate{}},
      {{third}, {}, true, 8, FinishReason::kLength, std::monostate{}},
      {{third}, {third}, true, 3, FinishReason::kStop, third},
  };
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE("case " + std::to_string(i));
    start({.eos_token_ids = cases[i].eos});
    worker::SamplingParams params = greedy(8);
    params.stop_token_ids = cases[i].stop_ids;
    params.ignore_eos = cases[i].ignore_eos;
    Collector collector;
    ASSERT_TRUE(submit(collector, prompt(5), params));
    const Output last = collector.last();
    EXPECT_EQ(last.finish, cases[i].finish);
    EXPECT_EQ(last.stop_reason, cases[i].reason);
    EXPECT_EQ(collector.tokens().size(), cases[i].num_tokens);
  }
}

TEST_P(EngineTest, EosAsTheLastAllowedTokenIsAStop) {
  const auto expected = StubWorker::greedy(prompt(5), kVocab, 1);
  start({.eos_token_ids = {expected[0]}});
  Collector collector;
  ASSERT_TRUE(submit(collector, prompt(5), greedy(1)));
  EXPECT_EQ(collector.last().finish, FinishReason::kStop);
}

TEST_P(EngineTest, MinTokensSuppressesWhatWouldEnd) {
  const auto expected = StubWorker::greedy(prompt(5), kVocab, 2);
  start({.eos_token_ids = {expected[0], expected[1]}});
  worker::SamplingParams params = greedy(8);
  params.min_tokens = 4;
  params.stop_token_ids = {7};
  Collector collector;
  ASSERT_TRUE(submit(collector, prompt(5), params));
  collector.last();
  const auto tokens = collector.tokens();
  ASSERT_GE(tokens.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) {
    for (const std::int32_t banned : {expected[0], expected[1], 7}) EXPECT_NE(tokens[i], banned) << i;
  }
}

TEST_P(EngineTest, MaxModelLenEndsWithLength) {
  start({.max_model_len = 20});
  Collector collector;
  ASSERT_TRUE(submit(collector, prompt(15), greedy(100)));
  EXPECT_EQ(collector.last().finish, FinishReason::kLength);
  EXPECT_EQ(collector.tokens().size(), 5U);
}

TEST_P(EngineTest, ASequenceThatFillsThePoolEndsWithLength) {
  start({}, /*num_blocks=*/5, /*block_size=*/4);
  Collector collector;
  ASSERT_TRUE(submit(collector, prompt(9), greedy(500)));
  EXPECT_EQ(collector.last().finish, FinishReason::kLength);
  EXPECT_EQ(collector.tokens().size(), 12U) << "20 slots, and the last token needs none";
  EXPECT_THAT(collector.tokens(), ElementsAreArray(StubWorker::greedy(prompt(9), kVocab, 12)));
  expect_idle();
}

TEST_P(EngineTest, LogprobsArePassedThrough) {
  start({});
  worker::SamplingParams params = greedy(3);
  params.logprobs = 2;
  Collector collector;
  ASSERT_TRUE(submit(collector, prompt(5), params));
  const Output last = collector.last();
  ASSERT_EQ(last.logprobs.size(), 1U);
  ASSERT_GE(last.logprobs[0].size(), 2U);
  EXPECT_EQ(last.logprobs[0][0].token, last.tokens[0]);
}

// What is refused.

TEST_P(EngineTest, RefusesWhatCannotRun) {
  start({.max_model_len = 50}, /*num_blocks=*/10, /*block_size=*/4);
  EXPECT_THAT(refusal({}, greedy(1)).message(), HasSubstr("empty"));
  EXPECT_THAT(refusal(prompt(5), greedy(0)).message(), HasSubstr("max_tokens must be at least 1"));
  EXPECT_THAT(refusal(prompt(50), greedy(1)).message(), HasSubstr("maximum context length is 50 tokens"));
  EXPECT_THAT(refusal(prompt(40), greedy(1)).message(), HasSubstr("holds 40 tokens"));
  EXPECT_THAT(refusal({1, kVocab}, greedy(1)).message(), HasSubstr("token id 100"));
  EXPECT_THAT(refusal({-1}, greedy(1)).message(), HasSubstr("token id -1"));
  worker::SamplingParams biased = greedy(1);
  biased.logit_bias = {{kVocab + 5, 1.0F}};
  EXPECT_THAT(refusal({1}, biased).message(), HasSubstr("logit_bias"));
  EXPECT_EQ(refusal({1}, biased).code(), Code::kInvalidArgument);
  EXPECT_EQ(refusal(prompt(39), greedy(1)).code(), Code::kOk);
}

TEST_P(EngineTest, RefusesListsThatWouldSlowEveryTokenDown) {
  start({});
  worker::SamplingParams params = greedy(1);
  params.stop.assign(1025, "x");
  EXPECT_THAT(refusal({1}, params).message(), HasSubstr("stop has 1025 strings"));
  params.stop = {std::string(70'000, 'x')};
  EXPECT_EQ(refusal({1}, params).code(), Code::kInvalidArgument);
  params.stop.assign(1024, "x");
  EXPECT_TRUE(refusal({1}, params).ok());
  params.stop_token_ids.assign(kVocab + 1, 3);
  EXPECT_THAT(refusal({1}, params).message(), HasSubstr("stop_token_ids has 101 entries"));
  params.stop_token_ids.clear();
  params.allowed_token_ids.assign(kVocab + 1, 3);
  EXPECT_THAT(refusal({1}, params).message(), HasSubstr("allowed_token_ids has 101 entries"));
}

TEST_P(EngineTest, RefusesMoreThanTheQueueHolds) {
  gate_.close();
  start({.max_num_seqs = 1, .max_waiting = 2});
  std::vector<Collector> collectors(6);
  ASSERT_TRUE(submit(collectors[0], prompt(3), greedy(2)));
  ASSERT_TRUE(gate_.wait_for_arrivals(1));
  ASSERT_TRUE(submit(collectors[1], prompt(3), greedy(2)));
  ASSERT_TRUE(submit(collectors[2], prompt(3), greedy(2)));
  const auto refused = submit(collectors[3], prompt(3), greedy(2));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kResourceExhausted);
  gate_.open();
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(collectors[i].last().finish, FinishReason::kLength);
  expect_idle();
  EXPECT_TRUE(submit(collectors[4], prompt(3), greedy(2))) << "later it works again";
  collectors[4].last();
}

// Abort.

TEST_P(EngineTest, AbortDuringAStepIsAnsweredAtOnceAndFreesWhenTheStepEnds) {
  gate_.close();
  start({}, 16);
  Collector collector;
  const auto handle = submit(collector, prompt(10), greedy(5));
  ASSERT_TRUE(gate_.wait_for_arrivals(1));
  engine_->abort(*handle);
  EXPECT_EQ(collector.last().finish, FinishReason::kAbort);
  EXPECT_EQ(engine_->stats().num_running, 0);
  EXPECT_LT(engine_->stats().num_free_blocks, 16) << "the step still writes to them";
  gate_.open();
  expect_idle();
  EXPECT_EQ(metric("vllm:request_success_total{engine=\"0\",finished_reason=\"abort\",model_name=\"m\"}"), 0.0);
}

TEST_P(EngineTest, BlocksThatComeBackAfterAnAnswerOfTheSameStepAreReported) {
  gate_.close();
  start({}, 16);
  Collector first;
  Collector second;
  ASSERT_TRUE(submit(first, prompt(6), greedy(2)));
  ASSERT_TRUE(gate_.wait_for_arrivals(1));
  const auto aborted = submit(second, prompt(40), greedy(5));
  gate_.let_one_pass();
  ASSERT_TRUE(gate_.wait_for_arrivals(2));
  engine_->abort(*aborted);
  EXPECT_EQ(second.last().finish, FinishReason::kAbort);
  gate_.open();
  EXPECT_EQ(first.last().finish, FinishReason::kLength) << "its last token was in the step with the aborted request";
  expect_idle();
}

TEST_P(EngineTest, AbortAtEveryStep) {
  for (int steps = 0; steps < 12; ++steps) {
    SCOPED_TRACE(steps);
    gate_.close();
    start({.max_num_batched_tokens = 6}, 16);
    const int before = gate_.arrivals();
    Collector victim;
    Collector other;
    const auto handle = submit(victim, prompt(20), greedy(5));
    ASSERT_TRUE(submit(other, prompt(7, 3), greedy(12)));
    for (int i = 0; i < steps; ++i) {
      ASSERT_TRUE(gate_.wait_for_arrivals(before + i + 1));
      gate_.let_one_pass();
    }
    ASSERT_TRUE(gate_.wait_for_arrivals(before + steps + 1));
    engine_->abort(*handle);
    const FinishReason finish = *victim.last().finish;
    EXPECT_TRUE(finish == FinishReason::kAbort || finish == FinishReason::kLength);
    gate_.open();
    EXPECT_EQ(other.last().finish, FinishReason::kLength);
    EXPECT_THAT(other.tokens(), ElementsAreArray(StubWorker::greedy(prompt(7, 3), kVocab, 12)));
    expect_idle();
  }
}

TEST_P(EngineTest, AbortStormLeavesNothing) {
  start({.max_num_seqs = 8, .max_num_batched_tokens = 16}, 40);
  std::vector<Collector> collectors(100);
  std::vector<RequestHandle> handles;
  for (std::size_t i = 0; i < collectors.size(); ++i) {
    handles.push_back(*submit(collectors[i], prompt(12, static_cast<std::int32_t>(i)), greedy(30)));
    if (i % 3 == 0) engine_->abort(handles[i / 2]);
  }
  for (const RequestHandle handle : handles) engine_->abort(handle);
  for (const RequestHandle handle : handles) engine_->abort(handle);  // twice is harmless
  for (Collector& collector : collectors) EXPECT_TRUE(collector.last().finish.has_value());
  expect_idle();
  Collector next;
  ASSERT_TRUE(submit(next, prompt(12), greedy(4)));
  EXPECT_EQ(next.last().finish, FinishReason::kLength);
}

// Failures.

TEST_P(EngineTest, AStepThatFailsFailsItsRequestsOnly) {
  gate_.close();
  start({.max_num_seqs = 2}, 32);
  std::vector<Collector> collectors(3);
  fail_next_step(Status(Code::kInternal, "the step broke"));
  for (std::size_t i = 0; i < 2; ++i) ASSERT_TRUE(submit(collectors[i], prompt(6), greedy(3)));
  ASSERT_TRUE(gate_.wait_for_arrivals(1));
  ASSERT_TRUE(submit(collectors[2], prompt(6), greedy(3)));
  gate_.open();
  EXPECT_THAT(collectors[0].last().error.message(), HasSubstr("the step broke"));
  EXPECT_EQ(collectors[2].last().finish, FinishReason::kLength);
  EXPECT_THAT(collectors[2].tokens(), ElementsAreArray(StubWorker::greedy(prompt(6), kVocab, 3)));
  EXPECT_TRUE(engine_->healthy());
  expect_idle();
}

TEST_P(EngineTest, ASequenceWithoutATokenFailsAlone) {
  start({}, 32);
  worker::SamplingParams impossible = greedy(3);
  impossible.allowed_token_ids = {5};
  impossible.stop_token_ids = {5};
  impossible.min_tokens = 2;  // the only allowed id is suppressed
  Collector bad;
  Collector good;
  ASSERT_TRUE(submit(bad, prompt(6), impossible));
  ASSERT_TRUE(submit(good, prompt(7), greedy(3)));
  EXPECT_FALSE(bad.last().error.ok());
  EXPECT_THAT(good.tokens(), ::testing::SizeIs(good.last().finish ? 3 : 0));
  expect_idle();
}

TEST_P(EngineTest, ADeadDeviceFailsEverything) {
  gate_.close();
  start({.max_num_seqs = 1}, 32);
  fail_next_step(Status(Code::kInternal, "the device is gone", Scope::kDevice));
  Collector running;
  Collector waiting;
  ASSERT_TRUE(submit(running, prompt(6), greedy(3)));
  ASSERT_TRUE(gate_.wait_for_arrivals(1));
  ASSERT_TRUE(submit(waiting, prompt(6), greedy(3)));
  gate_.open();
  for (Collector* collector : {&running, &waiting}) {
    EXPECT_EQ(http_mapping(collector->last().error.code()).status, 500);
    EXPECT_THAT(collector->last().error.message(), HasSubstr("the device is gone"));
  }
  EXPECT_FALSE(engine_->healthy());
  const Status refused = refusal(prompt(6), greedy(3));
  EXPECT_EQ(http_mapping(refused.code()).status, 500);
  expect_idle();
}

TEST_P(EngineTest, AStalledStepMakesItUnhealthyUntilItEnds) {
  gate_.close();
  start({.step_timeout = std::chrono::seconds(0)}, 32);
  Collector collector;
  ASSERT_TRUE(submit(collector, prompt(6), greedy(1)));
  EXPECT_TRUE(eventually([this] { return !engine_->healthy(); }));
  gate_.open();
  collector.last();
  EXPECT_TRUE(eventually([this] { return engine_->healthy(); }));
}

TEST_P(EngineTest, StopAbortsEverything) {
  gate_.close();
  start({.max_num_seqs = 1}, 32);
  Collector running;
  Collector waiting;
  ASSERT_TRUE(submit(running, prompt(6), greedy(3)));
  ASSERT_TRUE(gate_.wait_for_arrivals(1));
  ASSERT_TRUE(submit(waiting, prompt(6), greedy(3)));
  std::thread stopper([this] { engine_->stop(); });
  EXPECT_EQ(running.last().finish, FinishReason::kAbort);
  EXPECT_EQ(waiting.last().finish, FinishReason::kAbort);
  gate_.open();
  stopper.join();
  EXPECT_EQ(refusal(prompt(6), greedy(3)).code(), Code::kUnavailable);
  EXPECT_FALSE(engine_->healthy());
  EXPECT_FALSE(engine_->reset_prefix_cache());
  expect_idle();
}

TEST_P(EngineTest, ResetPrefixCacheOnlyWhenIdle) {
  start({}, 32);
  Collector first;
  ASSERT_TRUE(submit(first, prompt(20), greedy(2)));
  first.last();
  expect_idle();
  EXPECT_GT(engine_->stats().num_cached_blocks, 0);
  gate_.close();
  Collector running;
  ASSERT_TRUE(submit(running, prompt(20), greedy(2)));
  ASSERT_TRUE(gate_.wait_for_arrivals(3));
  EXPECT_FALSE(engine_->reset_prefix_cache());
  gate_.open();
  EXPECT_EQ(running.last().num_cached_tokens, 16);
  expect_idle();
  EXPECT_TRUE(engine_->reset_prefix_cache());
  EXPECT_TRUE(eventually([this] { return engine_->stats().num_free_blocks == 32; }));
}

TEST_P(EngineTest, PlansCarryWhatSamplingNeeds) {
  gate_.close();
  start({.eos_token_ids = {3}}, 32);
  worker::SamplingParams params = greedy(4);
  params.min_tokens = 2;
  Collector collector;
  ASSERT_TRUE(submit(collector, prompt(6), params));
  const std::vector<std::size_t> suppressed = {1, 1, 0, 0};
  for (std::size_t i = 0; i < 4; ++i) {
    gate_.let_one_pass();
    ASSERT_TRUE(collector.wait_for_outputs(i + 1));
    const worker::SequencePlan plan = last_plan().sequences.at(0);
    EXPECT_EQ(plan.num_output_tokens, static_cast<std::int32_t>(i));
    EXPECT_EQ(plan.suppressed.size(), suppressed[i]);
    EXPECT_EQ(plan.prompt_tokens.size(), suppressed[i] > 0 ? 6U : 0U);
    EXPECT_EQ(plan.output_tokens.size(), suppressed[i] > 0 ? i : 0U);
  }
  collector.last();
}

INSTANTIATE_TEST_SUITE_P(Scheduling, EngineTest, ::testing::Bool(), testing::scheduling_name);

}  // namespace
}  // namespace tandem::engine
