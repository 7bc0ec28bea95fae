// SPDX-License-Identifier: Apache-2.0
#include "bench/summary.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tandem::bench {
namespace {

TEST(Percentile, InterpolatesBetweenNeighbours) {
  const std::vector<double> values = {10.0, 20.0, 30.0, 40.0};
  EXPECT_DOUBLE_EQ(percentile(values, 0), 10.0);
  EXPECT_DOUBLE_EQ(percentile(values, 50), 25.0);
  EXPECT_DOUBLE_EQ(percentile(values, 90), 37.0);
  EXPECT_DOUBLE_EQ(percentile(values, 99), 39.7);
  EXPECT_DOUBLE_EQ(percentile(values, 100), 40.0);
  EXPECT_DOUBLE_EQ(percentile(std::vector<double>{7.0}, 99), 7.0);
  EXPECT_DOUBLE_EQ(percentile({}, 99), 0.0);
}

TEST(Distribution, IsOfThePopulationAndInMilliseconds) {
  const auto result = distribution({0.004, 0.002, 0.004, 0.004, 0.005, 0.005, 0.007, 0.009}, std::vector<double>{25.0});
  EXPECT_NEAR(result.mean, 5.0, 1e-9);
  EXPECT_NEAR(result.std, 2.0, 1e-9);
  EXPECT_NEAR(result.median, 4.5, 1e-9);
  ASSERT_EQ(result.percentiles.size(), 1u);
  EXPECT_NEAR(result.percentiles[0].second, 4.0, 1e-9);
  EXPECT_EQ(distribution({}, {}).mean, 0.0);
}

StreamRecord answer(double start, double ttft, std::vector<float> itls, std::int64_t tokens) {
  StreamRecord record;
  record.success = true;
  record.status = 200;
  record.start = TimePoint() + std::chrono::duration_cast<Duration>(std::chrono::duration<double>(start));
  record.ttft = ttft;
  record.latency = ttft;
  for (const float itl : itls) record.latency += double{itl};
  record.itls = std::move(itls);
  record.prompt_tokens = 10;
  record.output_tokens = tokens;
  return record;
}

TEST(Summary, CountsAndRates) {
  StreamRecord failed;
  failed.error = "HTTP 500";
  failed.prompt_tokens = 10;
  const std::vector<StreamRecord> records = {answer(0.0, 0.1, {0.1F, 0.3F}, 3), failed, answer(0.5, 0.2, {}, 1)};
  const auto summary = summarise(records, 2.0, config::BenchConfig());
  EXPECT_EQ(summary.completed, 2);
  EXPECT_EQ(summary.failed, 1);
  EXPECT_EQ(summary.total_input, 20) << "prompts of failed requests do not count";
  EXPECT_EQ(summary.total_output, 4);
  EXPECT_DOUBLE_EQ(summary.request_throughput, 1.0);
  EXPECT_DOUBLE_EQ(summary.output_throughput, 2.0);
  EXPECT_DOUBLE_EQ(summary.total_token_throughput, 12.0);
  EXPECT_NEAR(summary.ttft.mean, 150.0, 1e-6);
  EXPECT_NEAR(summary.tpot.mean, 200.0, 1e-4) << "of the request with more than one token only";
  EXPECT_NEAR(summary.itl.median, 200.0, 1e-4);
  EXPECT_NEAR(summary.e2el.mean, 350.0, 1e-4);
}

TEST(Summary, GoodputNeedsAllGoals) {
  config::BenchConfig config;
  config.goodput = {{"ttft", 150.0}, {"tpot", 150.0}};
  const std::vector<StreamRecord> records = {
      answer(0.0, 0.1, {0.1F}, 2),  // good
      answer(0.0, 0.2, {0.1F}, 2),  // first token too late
      answer(0.0, 0.1, {0.2F}, 2),  // tokens too slow
      answer(0.0, 0.1, {}, 1),      // one token: its time per token counts as 0
  };
  EXPECT_DOUBLE_EQ(summarise(records, 4.0, config).request_goodput, 0.5);
  config.goodput = {{"e2el", 199.0}};
  EXPECT_DOUBLE_EQ(summarise(records, 4.0, config).request_goodput, 0.25);
}

TEST(Summary, PeaksAreOfWholeSecondsFromTheFirstRequest) {
  // Seconds of tokens: 5.0 is the start, so 5.1 5.2 | 6.2 6.9 7.0(=second 2).
  const std::vector<StreamRecord> records = {answer(5.0, 0.125, {0.125F, 1.0F}, 3),
                                             answer(5.75, 0.5, {0.25F, 0.5F}, 3)};
  const auto summary = summarise(records, 2.0, config::BenchConfig());
  EXPECT_DOUBLE_EQ(summary.max_output_tokens_per_s, 3.0);  // 6.25 of the first, 6.25 and 6.5 of the second
  EXPECT_EQ(summary.max_concurrent_requests, 2);
}

TEST(Summary, OfNothingIsZeros) {
  const auto summary = summarise({}, 0.0, config::BenchConfig());
  EXPECT_EQ(summary.completed, 0);
  EXPECT_EQ(summary.output_throughput, 0.0);
  EXPECT_EQ(summary.itl.percentiles.size(), 1u);
}

}  // namespace
}  // namespace tandem::bench
