// SPDX-License-Identifier: Apache-2.0
// Exposition text as vLLM's clients read it, and the identity of series.
#include "obs/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <thread>

#include "obs/exposition.h"

namespace tandem::obs {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Metrics, CounterIsExposedByItsNameWithZeroFromTheStart) {
  Registry registry(Labels{{"model_name", "m"}, {"engine", "0"}});
  auto counter = registry.counter("vllm:prompt_tokens_total", "Number of prefill tokens processed.");
  EXPECT_EQ(registry.expose(),
            "# HELP vllm:prompt_tokens_total Number of prefill tokens processed.\n"
            "# TYPE vllm:prompt_tokens_total counter\n"
            "vllm:prompt_tokens_total{engine=\"0\",model_name=\"m\"} 0.0\n");
  counter.add();
  counter.add(2.5);
  EXPECT_EQ(counter.value(), 3.5);
  EXPECT_THAT(registry.expose(), HasSubstr("{engine=\"0\",model_name=\"m\"} 3.5\n"));
}

TEST(Metrics, HistogramHasFloatBoundsInclusiveAndCumulative) {
  Registry registry(Labels{{"model_name", "m"}, {"engine", "0"}});
  auto histogram = registry.histogram("vllm:time_to_first_token_seconds", "TTFT.", {0.001, 1, 2560});
  histogram.observe(1.0);  // le is inclusive
  histogram.observe(0.0005);
  histogram.observe(1e9);
  EXPECT_EQ(registry.expose(),
            "# HELP vllm:time_to_first_token_seconds TTFT.\n"
            "# TYPE vllm:time_to_first_token_seconds histogram\n"
            "vllm:time_to_first_token_seconds_bucket{engine=\"0\",le=\"0.001\",model_name=\"m\"} 1.0\n"
            "vllm:time_to_first_token_seconds_bucket{engine=\"0\",le=\"1.0\",model_name=\"m\"} 2.0\n"
            "vllm:time_to_first_token_seconds_bucket{engine=\"0\",le=\"2560.0\",model_name=\"m\"} 2.0\n"
            "vllm:time_to_first_token_seconds_bucket{engine=\"0\",le=\"+Inf\",model_name=\"m\"} 3.0\n"
            "vllm:time_to_first_token_seconds_count{engine=\"0\",model_name=\"m\"} 3.0\n"
            "vllm:time_to_first_token_seconds_sum{engine=\"0\",model_name=\"m\"} 1.0000000010005e+09\n");
}

TEST(Metrics, GaugeWithoutCommonLabelsHasNoBraces) {
  Registry registry(Labels{{"engine", "0"}});
  auto gauge = registry.gauge("up", "Whether it runs.", {}, false);
  gauge.set(3);
  gauge.add(-1);
  EXPECT_EQ(gauge.value(), 2.0);
  EXPECT_EQ(registry.expose(), "# HELP up Whether it runs.\n# TYPE up gauge\nup 2.0\n");
}

TEST(Metrics, SeriesOfOneFamilyShareTheHeadAndComeInLabelOrder) {
  Registry registry(Labels{{"engine", "0"}});
  registry.counter("vllm:request_success_total", "Finished.", {{"finished_reason", "stop"}}).add(7);
  registry.counter("vllm:request_success_total", "Finished.", {{"finished_reason", "abort"}});
  // An engine label of the series wins over the common one.
  registry.counter("vllm:request_success_total", "Finished.", {{"finished_reason", "stop"}, {"engine", "1"}}).add(2);
  EXPECT_EQ(registry.expose(),
            "# HELP vllm:request_success_total Finished.\n"
            "# TYPE vllm:request_success_total counter\n"
            "vllm:request_success_total{engine=\"0\",finished_reason=\"abort\"} 0.0\n"
            "vllm:request_success_total{engine=\"0\",finished_reason=\"stop\"} 7.0\n"
            "vllm:request_success_total{engine=\"1\",finished_reason=\"stop\"} 2.0\n");
}

TEST(Metrics, SameNameAndLabelsGiveTheSameSeries) {
  Registry registry;
  auto first = registry.counter("a_total", "A.", {{"x", "1"}});
  auto second = registry.counter("a_total", "A.", {{"x", "1"}});
  auto other = registry.counter("a_total", "A.", {{"x", "2"}});
  first.add(1);
  second.add(1);
  EXPECT_EQ(first.value(), 2.0);
  EXPECT_EQ(other.value(), 0.0);
}

TEST(Metrics, LabelValuesAndHelpAreEscaped) {
  Registry registry;
  registry.gauge("g", "two\nlines \\ \"q\"", {{"name", "a\"b\\c\nd"}});
  EXPECT_EQ(registry.expose(), "# HELP g two\\nlines \\\\ \"q\"\n# TYPE g gauge\ng{name=\"a\\\"b\\\\c\\nd\"} 0.0\n");
}

TEST(Metrics, FamiliesComeByName) {
  Registry registry;
  registry.gauge("b", "B.");
  registry.histogram("a", "A.", {1});
  registry.counter("c_total", "C.");
  const std::string text = registry.expose();
  EXPECT_LT(text.find("# TYPE a "), text.find("# TYPE b "));
  EXPECT_LT(text.find("# TYPE b "), text.find("# TYPE c_total "));
}

TEST(Metrics, NumbersAreWrittenAsThePythonClientWritesThem) {
  EXPECT_EQ(format_number(0), "0.0");
  EXPECT_EQ(format_number(1), "1.0");
  EXPECT_EQ(format_number(-2.5), "-2.5");
  EXPECT_EQ(format_number(0.005), "0.005");
  EXPECT_EQ(format_number(0.0001), "0.0001");
  EXPECT_EQ(format_number(0.00001), "1e-05");
  EXPECT_EQ(format_number(200000), "200000.0");
  EXPECT_EQ(format_number(1e6), "1e+06");
  EXPECT_EQ(format_number(1234567), "1.234567e+06");
  EXPECT_EQ(format_number(std::numeric_limits<double>::infinity()), "+Inf");
  EXPECT_EQ(format_number(-std::numeric_limits<double>::infinity()), "-Inf");
  EXPECT_EQ(format_number(std::numeric_limits<double>::quiet_NaN()), "NaN");
}

TEST(Metrics, ProcessStartTimeIsNowAndUnlabelled) {
  Registry registry(Labels{{"engine", "0"}});
  add_process_start_time(registry);
  const std::string text = registry.expose();
  EXPECT_THAT(text, HasSubstr("\nprocess_start_time_seconds 1."));
  EXPECT_THAT(text, HasSubstr("e+09\n"));
  EXPECT_THAT(text, Not(HasSubstr("engine")));
}

TEST(Metrics, HandlesWorkFromManyThreads) {
  Registry registry;
  auto counter = registry.counter("n_total", "N.");
  auto histogram = registry.histogram("h", "H.", {1});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([counter, histogram, &registry]() mutable {
      for (int i = 0; i < 1000; ++i) {
        counter.add();
        histogram.observe(0.5);
        if (i % 250 == 0) {
          EXPECT_FALSE(registry.expose().empty());
          registry.gauge("made_late", "Made while others expose.");
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(counter.value(), 4000.0);
  EXPECT_THAT(registry.expose(), HasSubstr("h_count 4000.0\n"));
}

TEST(MetricsDeathTest, BadNamesAreOurOwnMistake) {
  Registry registry;
  EXPECT_DEATH(registry.counter("no_suffix", "x"), "ends in _total");
  EXPECT_DEATH(registry.gauge("with space", "x"), "with space");
  EXPECT_DEATH(registry.histogram("h", "x", {2, 1}), "ascend");
  registry.gauge("same", "x");
  EXPECT_DEATH(registry.histogram("same", "x", {1}), "same");
}

}  // namespace
}  // namespace tandem::obs
