// SPDX-License-Identifier: Apache-2.0
#include "worker/sampled_before.h"

#include <gtest/gtest.h>

namespace tandem::worker {
namespace {

SequencePlan plan_of(std::uint64_t sequence, std::vector<std::int32_t> tokens, bool sample = true) {
  SequencePlan plan;
  plan.sequence = sequence;
  plan.tokens = std::move(tokens);
  plan.sample = sample;
  plan.sampling = std::make_shared<SamplingParams>();
  return plan;
}

SampledToken token_of(std::uint64_t sequence, std::int32_t token, Status error = {}) {
  return {.sequence = sequence, .token = token, .logprobs = {}, .error = std::move(error)};
}

/// The step before: 9 and 4 got tokens, 6 got none.
SampledBefore after_a_step() {
  SampledBefore before;
  Result<StepResult> result = StepResult{.step = 1, .prompts = {}, .sampled = {token_of(9, 90), token_of(4, 40)}};
  result->sampled.push_back(token_of(6, -1, Status(Code::kInternal, "none")));
  before.complete(result);
  EXPECT_EQ(result->sampled.size(), 3U);
  return before;
}

TEST(SampledBefore, TokensGoToTheirSequences) {
  SampledBefore before = after_a_step();
  StepPlan plan;
  plan.sequences = {plan_of(4, {kSampledBefore}), plan_of(7, {1, 2}), plan_of(9, {kSampledBefore})};
  plan.sequences[0].output_tokens = {5};
  plan.sequences.push_back(plan_of(9, {kSampledBefore}));
  const auto params = std::make_shared<SamplingParams>();
  params->bad_words = {{90, 1}};
  plan.sequences[3].sampling = params;
  plan.sequences[2].prompt_tokens = {1};
  plan.sequences[2].output_tokens = {6};
  before.fill_in(plan);
  ASSERT_EQ(plan.sequences.size(), 4U);
  EXPECT_EQ(plan.sequences[0].tokens, std::vector<std::int32_t>{40});
  EXPECT_EQ(plan.sequences[0].output_tokens, std::vector<std::int32_t>{5}) << "nobody looks at it";
  EXPECT_EQ(plan.sequences[3].output_tokens, std::vector<std::int32_t>{90}) << "bad words see it";
  EXPECT_EQ(plan.sequences[1].tokens, (std::vector<std::int32_t>{1, 2}));
  EXPECT_EQ(plan.sequences[2].tokens, std::vector<std::int32_t>{90});
  EXPECT_EQ(plan.sequences[2].output_tokens, (std::vector<std::int32_t>{6, 90})) << "penalties see it";
}

TEST(SampledBefore, WhoGotNoneIsLeftOutAndGetsAnErrorAtItsPlace) {
  SampledBefore before = after_a_step();
  StepPlan plan;
  plan.sequences = {plan_of(6, {kSampledBefore}), plan_of(7, {1}, false), plan_of(9, {kSampledBefore}),
                    plan_of(5, {kSampledBefore})};
  before.fill_in(plan);
  ASSERT_EQ(plan.sequences.size(), 2U);
  Result<StepResult> result = StepResult{.step = 2, .prompts = {}, .sampled = {token_of(9, 91)}};
  before.complete(result);
  ASSERT_EQ(result->sampled.size(), 3U);
  EXPECT_EQ(result->sampled[0].sequence, 6U);
  EXPECT_EQ(result->sampled[1].sequence, 9U);
  EXPECT_EQ(result->sampled[1].token, 91);
  EXPECT_EQ(result->sampled[2].sequence, 5U);
  for (const std::size_t lost : {0U, 2U}) EXPECT_EQ(result->sampled[lost].error.code(), Code::kCancelled);
}

TEST(SampledBefore, AStepThatFailsLeavesNothing) {
  SampledBefore before = after_a_step();
  Result<StepResult> failed = Status(Code::kInternal, "failed");
  before.complete(failed);
  StepPlan plan;
  plan.sequences = {plan_of(9, {kSampledBefore})};
  before.fill_in(plan);
  EXPECT_TRUE(plan.sequences.empty());
}

}  // namespace
}  // namespace tandem::worker
