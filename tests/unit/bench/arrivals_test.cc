// SPDX-License-Identifier: Apache-2.0
#include "bench/arrivals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace tandem::bench {
namespace {

using ::testing::Each;
using ::testing::SizeIs;

double relative_deviation(const std::vector<double>& times) {
  std::vector<double> gaps;
  for (std::size_t i = 0; i < times.size(); ++i) gaps.push_back(times[i] - (i == 0 ? 0.0 : times[i - 1]));
  double mean = 0.0, squares = 0.0;
  for (const double gap : gaps) mean += gap / static_cast<double>(gaps.size());
  for (const double gap : gaps) squares += (gap - mean) * (gap - mean) / static_cast<double>(gaps.size());
  return std::sqrt(squares) / mean;
}

TEST(Arrivals, WithoutARateAllAreDueAtOnce) {
  const auto times = arrival_times(config::BenchConfig(), 5);
  EXPECT_THAT(times, SizeIs(5));
  EXPECT_THAT(times, Each(0.0));
}

TEST(Arrivals, TheLastIsDueAtCountOverRate) {
  for (const double burstiness : {0.3, 1.0, 20.0}) {
    config::BenchConfig config;
    config.request_rate = 8.0;
    config.burstiness = burstiness;
    const auto times = arrival_times(config, 400);
    EXPECT_NEAR(times.back(), 50.0, 1e-9);
    EXPECT_TRUE(std::is_sorted(times.begin(), times.end()));
    EXPECT_GT(times.front(), 0.0);
  }
}

TEST(Arrivals, BurstinessIsTheShapeOfTheGaps) {
  // The relative deviation of gamma distributed gaps is 1/sqrt(shape).
  for (const double burstiness : {0.25, 1.0, 16.0}) {
    config::BenchConfig config;
    config.request_rate = 100.0;
    config.burstiness = burstiness;
    EXPECT_NEAR(relative_deviation(arrival_times(config, 20'000)) * std::sqrt(burstiness), 1.0, 0.05) << burstiness;
  }
}

TEST(Arrivals, SeedDecides) {
  config::BenchConfig config;
  config.request_rate = 10.0;
  const auto first = arrival_times(config, 10);
  EXPECT_EQ(arrival_times(config, 10), first);
  config.seed = 1;
  EXPECT_NE(arrival_times(config, 10), first);
}

TEST(Arrivals, Ramps) {
  config::BenchConfig config;
  config.ramp_up = config::RampUp::kLinear;
  config.ramp_up_start_rps = 10;
  config.ramp_up_end_rps = 30;
  EXPECT_DOUBLE_EQ(rate_at(config, 0, 101), 10.0);
  EXPECT_DOUBLE_EQ(rate_at(config, 50, 101), 20.0);
  EXPECT_DOUBLE_EQ(rate_at(config, 100, 101), 30.0);
  config.ramp_up = config::RampUp::kExponential;
  config.ramp_up_end_rps = 1000;
  EXPECT_NEAR(rate_at(config, 50, 101), 100.0, 1e-9);
  config.burstiness = 1e6;  // gaps of the rates, without chance
  const auto times = arrival_times(config, 101);
  EXPECT_NEAR(times[0], 1.0 / 10.0, 1e-3);
  EXPECT_NEAR(times[100] - times[99], 1.0 / 1000.0, 1e-5);
}

TEST(Arrivals, ARampFromZeroSendsTheFirstAtOnce) {
  config::BenchConfig config;
  config.ramp_up = config::RampUp::kLinear;
  config.ramp_up_end_rps = 10;
  const auto times = arrival_times(config, 3);
  EXPECT_EQ(times[0], 0.0);
  EXPECT_GT(times[1], 0.0);
}

}  // namespace
}  // namespace tandem::bench
