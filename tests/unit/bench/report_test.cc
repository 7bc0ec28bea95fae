// SPDX-License-Identifier: Apache-2.0
#include "bench/report.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>

namespace tandem::bench {
namespace {

namespace json = boost::json;

Summary example() {
  Summary summary;
  summary.completed = 3;
  summary.failed = 1;
  summary.duration = 2.5;
  summary.total_input = 3072;
  summary.total_output = 384;
  summary.request_throughput = 1.2;
  summary.request_goodput = 0.4;
  summary.output_throughput = 153.6;
  summary.total_token_throughput = 1382.4;
  summary.max_output_tokens_per_s = 200;
  summary.max_concurrent_requests = 3;
  summary.ttft = {10.123, 9.5, 1.25, {{99.0, 12.0}, {99.9, 12.345}}};
  summary.tpot = summary.itl = summary.e2el = {1234.5, 2.0, 0.5, {{99.0, 3.0}, {99.9, 4.0}}};
  return summary;
}

TEST(Table, AsVllmLaysItOut) {
  config::BenchConfig config;
  config.max_concurrency = 8;
  config.request_rate = 4.0;
  config.goodput = {{"ttft", 100.0}};
  config.percentile_metrics = {"ttft", "tpot"};
  config.percentiles = {99.0, 99.9};
  EXPECT_EQ(table_text(example(), config),
            "============ Serving Benchmark Result ============\n"
            "Successful requests:                     3         \n"
            "Failed requests:                         1         \n"
            "Maximum request concurrency:             8         \n"
            "Request rate configured (RPS):           4.00      \n"
            "Benchmark duration (s):                  2.50      \n"
            "Total input tokens:                      3072      \n"
            "Total generated tokens:                  384       \n"
            "Request throughput (req/s):              1.20      \n"
            "Request goodput (req/s):                 0.40      \n"
            "Output token throughput (tok/s):         153.60    \n"
            "Peak output token throughput (tok/s):    200.00    \n"
            "Peak concurrent requests:                3.00      \n"
            "Total Token throughput (tok/s):          1382.40   \n"
            "---------------Time to First Token----------------\n"
            "Mean TTFT (ms):                          10.12     \n"
            "Median TTFT (ms):                        9.50      \n"
            "P99 TTFT (ms):                           12.00     \n"
            "P99.9 TTFT (ms):                         12.35     \n"
            "-----Time per Output Token (excl. 1st token)------\n"
            "Mean TPOT (ms):                          1234.50   \n"
            "Median TPOT (ms):                        2.00      \n"
            "P99 TPOT (ms):                           3.00      \n"
            "P99.9 TPOT (ms):                         4.00      \n"
            "==================================================\n");
}

TEST(Table, WithoutLimitsTheirLinesAreLeftOut) {
  config::BenchConfig config;
  config.percentile_metrics = {"itl", "e2el"};
  const std::string text = table_text(example(), config);
  for (const char* absent : {"Maximum request concurrency", "RPS", "goodput", "Time to First"})
    EXPECT_EQ(text.find(absent), std::string::npos) << absent;
  EXPECT_NE(text.find("---------------Inter-token Latency----------------\n"), std::string::npos);
  EXPECT_NE(text.find("----------------End-to-end Latency----------------\n"), std::string::npos);
}

std::vector<std::string> keys_of(const json::object& object) {
  std::vector<std::string> keys;
  for (const auto& member : object) keys.emplace_back(member.key());
  return keys;
}

TEST(ResultJson, KeysAndOrder) {
  config::BenchConfig config;
  config.metadata = {{"tp", "2"}};
  const json::object object =
      json::parse(json_text(example(), {}, {"org/m", "/models/m", "20251130-101112"}, config)).as_object();
  EXPECT_EQ(keys_of(object), (std::vector<std::string>{"date",
                                                       "endpoint_type",
                                                       "backend",
                                                       "label",
                                                       "model_id",
                                                       "tokenizer_id",
                                                       "num_prompts",
                                                       "tp",
                                                       "request_rate",
                                                       "burstiness",
                                                       "max_concurrency",
                                                       "duration",
                                                       "completed",
                                                       "failed",
                                                       "total_input_tokens",
                                                       "total_output_tokens",
                                                       "request_throughput",
                                                       "request_goodput",
                                                       "output_throughput",
                                                       "total_token_throughput",
                                                       "max_output_tokens_per_s",
                                                       "max_concurrent_requests",
                                                       "mean_ttft_ms",
                                                       "median_ttft_ms",
                                                       "std_ttft_ms",
                                                       "p99_ttft_ms",
                                                       "p99.9_ttft_ms",
                                                       "mean_tpot_ms",
                                                       "median_tpot_ms",
                                                       "std_tpot_ms",
                                                       "p99_tpot_ms",
                                                       "p99.9_tpot_ms",
                                                       "mean_itl_ms",
                                                       "median_itl_ms",
                                                       "std_itl_ms",
                                                       "p99_itl_ms",
                                                       "p99.9_itl_ms"}));
  EXPECT_EQ(object.at("request_rate"), "inf");
  EXPECT_TRUE(object.at("max_concurrency").is_null());
  EXPECT_TRUE(object.at("request_goodput").is_null());
  EXPECT_EQ(object.at("tp"), "2");
  EXPECT_EQ(object.at("completed"), 3);
  EXPECT_EQ(object.at("mean_ttft_ms"), 10.123);
}

TEST(ResultJson, DetailsOfEveryRequestFailedOnesToo) {
  config::BenchConfig config;
  config.save_detailed = true;
  config.request_rate = 2.0;
  StreamRecord good;
  good.success = true;
  good.prompt_tokens = 5;
  good.output_tokens = 2;
  good.ttft = 0.25;
  good.itls = {0.5F};
  good.text = "a \"b\"";
  StreamRecord bad;
  bad.prompt_tokens = 6;
  bad.error = "HTTP 500";
  const std::vector<StreamRecord> records = {good, bad};
  const std::string text = json_text(example(), records, {"m", "t", "d"}, config);
  EXPECT_NE(text.find("\"request_rate\": 2.0, "), std::string::npos) << text;
  const json::object object = json::parse(text).as_object();
  EXPECT_EQ(object.at("input_lens"), json::parse("[5, 6]"));
  EXPECT_EQ(object.at("output_lens"), json::parse("[2, 0]"));
  EXPECT_EQ(object.at("ttfts"), json::parse("[0.25, 0.0]"));
  EXPECT_EQ(object.at("itls"), json::parse("[[0.5], []]"));
  EXPECT_EQ(object.at("generated_texts"), json::parse(R"(["a \"b\"", ""])"));
  EXPECT_EQ(object.at("errors"), json::parse(R"(["", "HTTP 500"])"));
}

TEST(ResultFile, Names) {
  const RunFacts facts{"org/model-1", "t", "20251130-101112"};
  config::BenchConfig config;
  EXPECT_EQ(result_path(facts, config), "openai-infqps-model-1-20251130-101112.json");
  config.request_rate = 4.0;
  config.max_concurrency = 16;
  config.label = "here";
  config.result_dir = "out";
  EXPECT_EQ(result_path(facts, config), "out/here-4.0qps-concurrency16-model-1-20251130-101112.json");
  config.ramp_up = config::RampUp::kLinear;
  config.ramp_up_start_rps = 1;
  config.ramp_up_end_rps = 9;
  config.max_concurrency.reset();
  EXPECT_EQ(result_path(facts, config), "out/here-ramp-up-linear-1qps-9qps-model-1-20251130-101112.json");
  config.result_filename = "r.json";
  EXPECT_EQ(result_path(facts, config), "out/r.json");
}

std::string contents(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

TEST(ResultFile, IsReplacedOrAddedTo) {
  const std::string folder = testing::TempDir() + "tandem_bench_result";
  std::filesystem::remove_all(folder);
  const std::string path = folder + "/deeper/r.json";
  ASSERT_TRUE(write_result(path, "{1}", true));
  ASSERT_TRUE(write_result(path, "{2}", true));
  EXPECT_EQ(contents(path), "{1}\n{2}");
  ASSERT_TRUE(write_result(path, "{3}", false));
  EXPECT_EQ(contents(path), "{3}");
  const auto refused = write_result(path + "/below-a-file.json", "{}", false);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("below-a-file.json"), std::string::npos);
  std::filesystem::remove_all(folder);
}

TEST(ResultFile, ItsFolderIsMadeOrRefusedBeforeTheRun) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "bench_folder_before";
  std::filesystem::remove_all(folder);
  config::BenchConfig config;
  config.result_dir = (folder / "new").string();
  EXPECT_TRUE(check_result_folder(config));
  EXPECT_TRUE(std::filesystem::is_directory(config.result_dir));
  std::ofstream(folder / "file") << "x";
  config.result_dir = (folder / "file" / "below").string();
  const auto refused = check_result_folder(config);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("--result-dir"), std::string::npos) << refused.error().message();
  EXPECT_NE(refused.error().message().find(config.result_dir), std::string::npos) << refused.error().message();
  std::filesystem::remove_all(folder);
}

TEST(PythonFloat, Forms) {
  EXPECT_EQ(python_float(4.0), "4.0");
  EXPECT_EQ(python_float(0.25), "0.25");
  EXPECT_EQ(python_float(1e30), "1e+30");
  EXPECT_EQ(python_float(std::numeric_limits<double>::infinity()), "inf");
}

}  // namespace
}  // namespace tandem::bench
