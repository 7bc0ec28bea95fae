// SPDX-License-Identifier: Apache-2.0
#include "bench/stream_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kChat = config::BenchBackend::kChat;
constexpr auto kCompletions = config::BenchBackend::kCompletions;

TimePoint at(double s) { return TimePoint() + std::chrono::duration_cast<Duration>(std::chrono::duration<double>(s)); }

struct Scripted {
  explicit Scripted(config::BenchBackend backend) : account(backend, record) { record.start = at(1.0); }
  void event(double when, std::string_view data) {
    const auto taken = account.on_event(data, at(when));
    EXPECT_TRUE(taken) << taken.error().message();
  }
  StreamRecord record;
  StreamAccount account;
};

TEST(StreamAccount, Completions) {
  Scripted answer(kCompletions);
  answer.event(1.5, R"({"choices":[{"index":0,"text":"one"}]})");
  answer.event(1.75, R"({"choices":[{"index":0,"text":""}]})");  // a token without text is a token
  answer.event(2.25, R"({"choices":[{"index":0,"text":" two"}],"usage":{"completion_tokens":99}})");
  answer.event(3.0, R"({"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":3}})");
  answer.event(3.5, "[DONE]");
  ASSERT_TRUE(answer.account.finish());
  EXPECT_TRUE(answer.record.success);
  EXPECT_DOUBLE_EQ(answer.record.ttft, 0.5);
  EXPECT_THAT(answer.record.itls, ElementsAre(FloatNear(0.25F, 1e-6F), FloatNear(0.5F, 1e-6F)));
  EXPECT_DOUBLE_EQ(answer.record.latency, 1.25) << "usage comes after the last token and does not count";
  EXPECT_EQ(answer.record.output_tokens, 3) << "usage beside choices is that of continuous usage";
  EXPECT_EQ(answer.record.text, "one two");
}

TEST(StreamAccount, ChatCountsTheRoleAndWaitsForUsage) {
  Scripted answer(kChat);
  answer.event(1.25, R"({"choices":[{"delta":{"role":"assistant","content":""}}]})");
  answer.event(1.5, R"({"choices":[{"delta":{"content":"hi"}}]})");
  answer.event(1.75, R"({"choices":[{"delta":{"content":null},"finish_reason":"length"}]})");
  answer.event(2.0, R"({"choices":[],"usage":{"completion_tokens":2}})");
  answer.event(9.0, "[DONE]");
  ASSERT_TRUE(answer.account.finish());
  EXPECT_DOUBLE_EQ(answer.record.ttft, 0.25);
  EXPECT_THAT(answer.record.itls, ElementsAre(FloatNear(0.25F, 1e-6F), FloatNear(0.25F, 1e-6F)));
  EXPECT_DOUBLE_EQ(answer.record.latency, 1.0) << "to the last event before [DONE]";
  EXPECT_EQ(answer.record.output_tokens, 2);
  EXPECT_EQ(answer.record.text, "hi");
}

TEST(StreamAccount, EventsWithoutChoicesAreNoTokens) {
  Scripted answer(kCompletions);
  answer.event(1.5, R"({"choices":[]})");
  answer.event(2.0, R"({"object":"text_completion"})");
  EXPECT_FALSE(answer.account.finish());
  EXPECT_FALSE(answer.record.success);
  EXPECT_THAT(answer.account.finish().error().message(), HasSubstr("without an event that has choices"));
}

TEST(StreamAccount, AnAnswerWithoutDoneIsBroken) {
  Scripted answer(kCompletions);
  answer.event(1.5, R"({"choices":[{"text":"one"}]})");
  EXPECT_THAT(answer.account.finish().error().message(), HasSubstr("without [DONE]"));
  EXPECT_FALSE(answer.record.success);
}

TEST(StreamAccount, AnErrorInTheStreamIsAFailure) {
  Scripted answer(kChat);
  answer.event(1.5, R"({"choices":[{"delta":{"content":"x"}}]})");
  const auto taken = answer.account.on_event(R"({"error":{"message":"the prefiller is gone","code":500}})", at(2.0));
  ASSERT_FALSE(taken);
  EXPECT_THAT(taken.error().message(), HasSubstr("the prefiller is gone"));
}

TEST(StreamAccount, WhatIsNoJsonIsAFailure) {
  for (const char* data : {"{", "[1]", "hello", ""}) {
    Scripted answer(kCompletions);
    EXPECT_FALSE(answer.account.on_event(data, at(2.0))) << data;
  }
}

TEST(StreamAccount, OddShapesAreTokensWithoutText) {
  Scripted answer(kChat);
  answer.event(1.5, R"({"choices":[7]})");
  answer.event(1.6, R"({"choices":[{"delta":null}]})");
  answer.event(1.7, R"({"choices":"none"})");
  EXPECT_THAT(answer.record.text, IsEmpty());
  EXPECT_EQ(answer.record.itls.size(), 1u);
}

}  // namespace
}  // namespace tandem::bench
