// SPDX-License-Identifier: Apache-2.0
// Exposition text as vLLM's clients read it, and the identity of series.
#include "obs/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <limits>
#include <thread>

#include "obs/exposition.h"
#include "obs/process_metrics.h"

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

TEST(Metrics, ASeriesThatIsRemovedBeginsAnew) {
  Registry registry;
  auto counter = registry.counter("a_total", "A.", {{"x", "1"}});
  registry.counter("a_total", "A.", {{"x", "2"}}).add(3);
  const auto gauge = registry.gauge("g", "G.");
  counter.add(1);
  Registry::remove(counter);
  Registry::remove(gauge);
  EXPECT_EQ(registry.expose(), "# HELP a_total A.\n# TYPE a_total counter\na_total{x=\"2\"} 3.0\n");
  EXPECT_EQ(registry.counter("a_total", "A.", {{"x", "1"}}).value(), 0.0);
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

TEST(Metrics, SummariesHaveCountAndSum) {
  Registry registry;
  auto summary = registry.summary("size_bytes", "S.", {{"handler", "/x"}});
  summary.observe(2);
  summary.observe(0.5);
  EXPECT_EQ(registry.expose(),
            "# HELP size_bytes S.\n# TYPE size_bytes summary\nsize_bytes_count{handler=\"/x\"} 2.0\n"
            "size_bytes_sum{handler=\"/x\"} 2.5\n");
}

TEST(Metrics, OpenMetricsNamesCounterFamiliesWithoutTotalAndEndsWithEof) {
  Registry registry(Labels{{"engine", "0"}});
  registry.counter("vllm:prompt_tokens_total", "\"Tokens\".").add(2);
  registry.histogram("vllm:iteration_tokens_total", "H.", {8});
  registry.gauge("g", "G.");
  EXPECT_EQ(registry.expose(Format::kOpenMetrics),
            "# HELP g G.\n# TYPE g gauge\ng{engine=\"0\"} 0.0\n"
            "# HELP vllm:iteration_tokens_total H.\n# TYPE vllm:iteration_tokens_total histogram\n"
            "vllm:iteration_tokens_total_bucket{engine=\"0\",le=\"8.0\"} 0.0\n"
            "vllm:iteration_tokens_total_bucket{engine=\"0\",le=\"+Inf\"} 0.0\n"
            "vllm:iteration_tokens_total_count{engine=\"0\"} 0.0\n"
            "vllm:iteration_tokens_total_sum{engine=\"0\"} 0.0\n"
            "# HELP vllm:prompt_tokens \\\"Tokens\\\".\n# TYPE vllm:prompt_tokens counter\n"
            "vllm:prompt_tokens_total{engine=\"0\"} 2.0\n"
            "# EOF\n");
}

TEST(Metrics, TheFormatIsWhatTheClientAccepts) {
  EXPECT_EQ(format_for(""), Format::kText);
  EXPECT_EQ(format_for("text/plain;version=0.0.4;q=1,*/*;q=0.1"), Format::kText);
  EXPECT_EQ(format_for("application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"),
            Format::kOpenMetrics);
  EXPECT_EQ(content_type(Format::kText), "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_EQ(content_type(Format::kOpenMetrics), "application/openmetrics-text; version=1.0.0; charset=utf-8");
}

TEST(Metrics, AHiddenPrefixIsCountedButNotExposed) {
  Registry registry({}, "vllm:");
  auto hidden = registry.counter("vllm:n_total", "N.");
  hidden.add();
  registry.counter("tandem:n_total", "N.");
  EXPECT_EQ(hidden.value(), 1.0);
  EXPECT_EQ(registry.expose(), "# HELP tandem:n_total N.\n# TYPE tandem:n_total counter\ntandem:n_total 0.0\n");
  const std::vector<std::string> others{"# HELP vllm:n_total N.\n# TYPE vllm:n_total counter\nvllm:n_total 5.0\n"};
  EXPECT_THAT(registry.expose(Format::kText, others), Not(HasSubstr("vllm:")));
}

double value_of(const std::string& text, const std::string& name) {
  const std::size_t at = text.find("\n" + name + " ");
  EXPECT_NE(at, std::string::npos) << name;
  return at == std::string::npos ? -1.0 : std::stod(text.substr(at + name.size() + 2));
}

TEST(Metrics, TheProcessIsReadAnewForEachExposition) {
  Registry registry(Labels{{"engine", "0"}});
  add_process_metrics(registry);
  const std::string before = registry.expose();
  EXPECT_THAT(before, Not(HasSubstr("engine"))) << "no common labels";
  const auto now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  EXPECT_NEAR(value_of(before, "process_start_time_seconds"), now, 600.0);
  EXPECT_GT(value_of(before, "process_virtual_memory_bytes"), value_of(before, "process_resident_memory_bytes"));
  EXPECT_GT(value_of(before, "process_resident_memory_bytes"), 1e6);
  EXPECT_GE(value_of(before, "process_max_fds"), value_of(before, "process_open_fds"));
  std::FILE* file = std::fopen("/dev/null", "r");
  ASSERT_NE(file, nullptr);
  const std::string after = registry.expose();
  std::fclose(file);
  EXPECT_EQ(value_of(after, "process_open_fds"), value_of(before, "process_open_fds") + 1);
  EXPECT_GE(value_of(after, "process_cpu_seconds_total"), value_of(before, "process_cpu_seconds_total"));
  EXPECT_EQ(value_of(after, "process_start_time_seconds"), value_of(before, "process_start_time_seconds"));
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
