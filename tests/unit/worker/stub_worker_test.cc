// SPDX-License-Identifier: Apache-2.0
// The stub's contract: its tokens follow from the KV it reads back, its timing from the script.
#include "worker/stub_worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <future>

namespace tandem::worker {
namespace {

using namespace std::chrono_literals;

std::shared_ptr<const SamplingParams> greedy_params() {
  auto params = std::make_shared<SamplingParams>();
  params->temperature = 0.0;
  return params;
}

SequencePlan plan_of(std::vector<std::int32_t> tokens, std::int64_t first, std::vector<kv::BlockId> blocks,
                     bool sample) {
  SequencePlan plan;
  plan.sequence = 5;
  plan.tokens = std::move(tokens);
  plan.first_position = first;
  plan.block_table = std::move(blocks);
  plan.sample = sample;
  if (sample) plan.sampling = greedy_params();
  return plan;
}

std::future<Result<StepResult>> submit(Worker& worker, std::vector<SequencePlan> sequences) {
  auto plan = std::make_shared<StepPlan>();
  plan->step = 1;
  plan->sequences = std::move(sequences);
  auto promise = std::make_shared<std::promise<Result<StepResult>>>();
  auto future = promise->get_future();
  worker.submit(std::move(plan), [promise](Result<StepResult> result) { promise->set_value(std::move(result)); });
  return future;
}

Result<StepResult> run(Worker& worker, std::vector<SequencePlan> sequences) {
  auto future = submit(worker, std::move(sequences));
  if (future.wait_for(20s) != std::future_status::ready) return Status(Code::kDeadlineExceeded, "no answer");
  return future.get();
}

std::unique_ptr<StubWorker> make_stub(StubOptions options = {}) {
  options.block_size = 4;
  options.num_blocks = 16;
  auto worker = StubWorker::create(std::move(options));
  EXPECT_TRUE(worker.has_value());
  return std::move(*worker);
}

const std::vector<std::int32_t> kPrompt{11, 7, 3, 900, 0, 5, 6};

TEST(StubWorker, TokensAreTheDocumentedFunctionOfTheContext) {
  auto worker = make_stub();
  const auto expected = StubWorker::greedy(kPrompt, 1000, 3);
  EXPECT_NE(expected[0], expected[1]);
  // A chunk, the rest, then two decode steps, over blocks out of order.
  const std::vector<kv::BlockId> blocks{9, 2, 14};
  ASSERT_TRUE(run(*worker, {plan_of({11, 7, 3}, 0, {9}, false)}));
  auto result = run(*worker, {plan_of({900, 0, 5, 6}, 3, {9, 2}, true)});
  ASSERT_TRUE(result);
  ASSERT_EQ(result->sampled.size(), 1U);
  EXPECT_EQ(result->sampled[0].sequence, 5U);
  EXPECT_EQ(result->sampled[0].token, expected[0]);
  for (int i = 0; i < 2; ++i) {
    result = run(*worker, {plan_of({expected[i]}, 7 + i, blocks, true)});
    ASSERT_TRUE(result);
    EXPECT_EQ(result->sampled[0].token, expected[i + 1]);
  }
}

TEST(StubWorker, EveryByteOfTheContextMatters) {
  auto worker = make_stub();
  const auto expected = StubWorker::greedy(kPrompt, 1000, 2);
  auto result = run(*worker, {plan_of(kPrompt, 0, {3, 4}, true)});
  ASSERT_TRUE(result);
  ASSERT_EQ(result->sampled[0].token, expected[0]);

  const kv::Layout& layout = worker->cache().layout();
  const auto next = [&] { return run(*worker, {plan_of({expected[0]}, 7, {3, 4}, true)})->sampled[0].token; };
  EXPECT_EQ(next(), expected[1]);
  int changed = 0;
  int tried = 0;
  for (std::int32_t layer = 0; layer < layout.num_layers; ++layer) {
    for (int k_or_v = 0; k_or_v < 2; ++k_or_v) {
      for (std::int32_t head = 0; head < layout.num_kv_heads; ++head) {
        for (std::int32_t token = 0; token < 4; ++token) {
          std::byte* slot = worker->cache().data() + layout.offset(layer, 3, k_or_v, head, token);
          for (std::size_t byte = 0; byte < layout.token_bytes(); byte += 4) {
            slot[byte] ^= std::byte{1};
            changed += next() != expected[1] ? 1 : 0;
            slot[byte] ^= std::byte{1};
            ++tried;
          }
        }
      }
    }
  }
  EXPECT_GE(changed, tried - 2) << "two hashes may share their best token by chance";
  EXPECT_EQ(next(), expected[1]);
}

TEST(StubWorker, ABlockInTheWrongPlaceChangesTheToken) {
  auto worker = make_stub();
  const std::vector<std::int32_t> prompt{1, 2, 3, 4, 1, 2, 3, 4, 8};
  ASSERT_TRUE(run(*worker, {plan_of({1, 2, 3, 4, 1, 2, 3, 4}, 0, {0, 1}, false)}));
  const auto right = run(*worker, {plan_of({8}, 8, {0, 1, 2}, true)});
  const auto wrong = run(*worker, {plan_of({8}, 8, {1, 0, 2}, true)});
  ASSERT_TRUE(right && wrong);
  EXPECT_EQ(right->sampled[0].token, StubWorker::greedy(prompt, 1000, 1)[0]);
  EXPECT_NE(wrong->sampled[0].token, right->sampled[0].token) << "equal tokens, but other positions";
}

TEST(StubWorker, BatchesAnswerInPlanOrder) {
  auto worker = make_stub();
  auto first = plan_of({1, 2}, 0, {0}, true);
  auto second = plan_of({3, 4}, 0, {1}, false);
  auto third = plan_of({5, 6}, 0, {2}, true);
  third.sequence = 8;
  const auto result = run(*worker, {first, second, third});
  ASSERT_TRUE(result);
  ASSERT_EQ(result->sampled.size(), 2U);
  EXPECT_EQ(result->sampled[0].token, StubWorker::greedy({1, 2}, 1000, 1)[0]);
  EXPECT_EQ(result->sampled[1].sequence, 8U);
  EXPECT_EQ(result->sampled[1].token, StubWorker::greedy({5, 6}, 1000, 1)[0]);
}

TEST(StubWorker, OneSequencesErrorLeavesTheOthers) {
  auto worker = make_stub();
  auto params = std::make_shared<SamplingParams>();
  params->allowed_token_ids = {1};
  auto impossible = plan_of({1, 2}, 0, {0}, true);
  impossible.sampling = params;
  impossible.suppressed = {1};
  const auto result = run(*worker, {impossible, plan_of({5, 6}, 0, {2}, true)});
  ASSERT_TRUE(result);
  ASSERT_EQ(result->sampled.size(), 2U);
  EXPECT_EQ(result->sampled[0].error.code(), Code::kInvalidArgument);
  EXPECT_EQ(result->sampled[0].token, -1);
  EXPECT_TRUE(result->sampled[1].error.ok());
  EXPECT_EQ(result->sampled[1].token, StubWorker::greedy({5, 6}, 1000, 1)[0]);
}

TEST(StubWorker, TimeFollowsTheScript) {
  StubOptions options;
  options.seconds_per_step = 0.01;
  options.seconds_per_prefill_token = 0.01;
  options.seconds_per_decode_token = 0.02;
  auto worker = make_stub(options);
  const auto start = std::chrono::steady_clock::now();
  ASSERT_TRUE(run(*worker, {plan_of({1, 2, 3}, 0, {0}, false), plan_of({4}, 0, {1}, false)}));
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(60));
}

TEST(StubWorker, AScriptedFailureFailsTheStepAndNoOther) {
  StubOptions options;
  auto failures = std::make_shared<int>(1);
  options.before_step = [failures](const StepPlan&) {
    return (*failures)-- > 0 ? Status(Code::kInternal, "scripted", Scope::kDevice) : Status();
  };
  auto worker = make_stub(options);
  const auto failed = run(*worker, {plan_of({1}, 0, {0}, true)});
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().scope(), Scope::kDevice);
  EXPECT_TRUE(run(*worker, {plan_of({1}, 0, {0}, true)}));
}

TEST(StubWorker, StoppingEndsAStepThatSleepsAndCancelsTheOneBehind) {
  StubOptions options;
  options.seconds_per_step = 1000.0;
  auto worker = make_stub(options);
  auto running = submit(*worker, {plan_of({1}, 0, {0}, true)});
  auto queued = submit(*worker, {plan_of({1}, 0, {0}, true)});
  worker.reset();
  for (auto* future : {&running, &queued}) {
    ASSERT_EQ(future->wait_for(0s), std::future_status::ready);
    const auto result = future->get();
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code(), Code::kCancelled);
  }
}

TEST(StubWorker, TheNextPlanMayBeSubmittedFromTheAnswer) {
  auto worker = make_stub();
  auto plan = std::make_shared<StepPlan>();
  plan->sequences = {plan_of({1}, 0, {0}, true)};
  std::promise<int> finished;
  int steps = 0;
  std::function<void(Result<StepResult>)> again = [&](const Result<StepResult>& result) {
    ASSERT_TRUE(result);
    if (++steps == 100) {
      finished.set_value(steps);
    } else {
      worker->submit(plan, again);
    }
  };
  worker->submit(plan, again);
  worker->submit(plan, [](const Result<StepResult>&) {});
  auto future = finished.get_future();
  ASSERT_EQ(future.wait_for(20s), std::future_status::ready);
}

}  // namespace
}  // namespace tandem::worker
