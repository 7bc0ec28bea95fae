// SPDX-License-Identifier: Apache-2.0
// What an engine exposes, as one table: name, type, labels and buckets of every series, from the start.
#include "engine/engine_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "obs/metrics.h"

namespace tandem::engine {
namespace {

using ::testing::ElementsAre;

const std::string kFirstToken =
    "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1.0 2.5 5.0 7.5 10.0 20.0 40.0 80.0 160.0 640.0 2560.0 "
    "+Inf";
const std::string kInterToken =
    "0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1.0 2.5 5.0 7.5 10.0 20.0 40.0 80.0 +Inf";
const std::string kRequest =
    "0.3 0.5 0.8 1.0 1.5 2.0 2.5 5.0 10.0 15.0 20.0 30.0 40.0 50.0 60.0 120.0 240.0 480.0 960.0 1920.0 7680.0 +Inf";
const std::string kLengths = "1.0 2.0 5.0 10.0 20.0 50.0 100.0 200.0 500.0 1000.0 2000.0 5000.0 +Inf";
const std::string kSteps = "1.0 8.0 16.0 32.0 64.0 128.0 256.0 512.0 1024.0 2048.0 4096.0 8192.0 16384.0 +Inf";

struct Row {
  std::string type;
  std::string labels;   ///< of each series, in the order in which they are exposed; "|" between series
  std::string buckets;  ///< of histograms
};

const std::string kPlain = R"(engine="0",model_name="m")";
const std::string kCacheConfig =
    R"(block_size="16",cache_dtype="bfloat16",enable_prefix_caching="True",engine="0",gpu_memory_utilization="0.9",)"
    R"(num_cpu_blocks="None",num_gpu_blocks="64",prefix_caching_hash_algo="builtin",sliding_window="None",swap_space="0")";

/// `label` with these values, which stand in order among engine and model_name.
std::string series(const std::string& label, const std::vector<std::string>& values) {
  std::string all;
  for (const std::string& value : values) {
    if (!all.empty()) all += '|';
    const std::string own = label + "=\"" + value + "\"";
    all += label < "model_name" ? R"(engine="0",)" + own + R"(,model_name="m")" : kPlain + "," + own;
  }
  return all;
}

const std::map<std::string, Row> kVllm = {
    {"vllm:num_requests_running", {"gauge", kPlain, ""}},
    {"vllm:num_requests_waiting", {"gauge", kPlain, ""}},
    {"vllm:num_requests_waiting_by_reason", {"gauge", series("reason", {"capacity", "deferred"}), ""}},
    {"vllm:kv_cache_usage_perc", {"gauge", kPlain, ""}},
    {"vllm:gpu_cache_usage_perc", {"gauge", kPlain, ""}},
    {"vllm:prefix_cache_queries_total", {"counter", kPlain, ""}},
    {"vllm:prefix_cache_hits_total", {"counter", kPlain, ""}},
    {"vllm:gpu_prefix_cache_queries_total", {"counter", kPlain, ""}},
    {"vllm:gpu_prefix_cache_hits_total", {"counter", kPlain, ""}},
    {"vllm:external_prefix_cache_queries_total", {"counter", kPlain, ""}},
    {"vllm:external_prefix_cache_hits_total", {"counter", kPlain, ""}},
    {"vllm:num_preemptions_total", {"counter", kPlain, ""}},
    {"vllm:prompt_tokens_total", {"counter", kPlain, ""}},
    {"vllm:prompt_tokens_cached_total", {"counter", kPlain, ""}},
    {"vllm:prompt_tokens_by_source_total",
     {"counter", series("source", {"external_kv_transfer", "local_cache_hit", "local_compute"}), ""}},
    {"vllm:generation_tokens_total", {"counter", kPlain, ""}},
    {"vllm:request_success_total", {"counter", series("finished_reason", {"abort", "error", "length", "stop"}), ""}},
    {"vllm:engine_sleep_state", {"gauge", series("sleep_state", {"awake", "discard_all", "weights_offloaded"}), ""}},
    {"vllm:request_prompt_tokens", {"histogram", kPlain, kLengths}},
    {"vllm:request_generation_tokens", {"histogram", kPlain, kLengths}},
    {"vllm:request_max_num_generation_tokens", {"histogram", kPlain, kLengths}},
    {"vllm:request_params_max_tokens", {"histogram", kPlain, kLengths}},
    {"vllm:request_prefill_kv_computed_tokens", {"histogram", kPlain, kLengths}},
    {"vllm:request_params_n", {"histogram", kPlain, "1.0 2.0 5.0 10.0 20.0 +Inf"}},
    {"vllm:iteration_tokens_total", {"histogram", kPlain, kSteps}},
    {"vllm:time_to_first_token_seconds", {"histogram", kPlain, kFirstToken}},
    {"vllm:inter_token_latency_seconds", {"histogram", kPlain, kInterToken}},
    {"vllm:time_per_output_token_seconds", {"histogram", kPlain, kInterToken}},
    {"vllm:request_time_per_output_token_seconds", {"histogram", kPlain, kInterToken}},
    {"vllm:e2e_request_latency_seconds", {"histogram", kPlain, kRequest}},
    {"vllm:request_queue_time_seconds", {"histogram", kPlain, kRequest}},
    {"vllm:request_inference_time_seconds", {"histogram", kPlain, kRequest}},
    {"vllm:request_prefill_time_seconds", {"histogram", kPlain, kRequest}},
    {"vllm:request_decode_time_seconds", {"histogram", kPlain, kRequest}},
    {"vllm:cache_config_info", {"gauge", kCacheConfig, ""}},
};

/// Reads an exposition into the table's form. Every value must be 0 but those of `ones`.
std::map<std::string, Row> read(const std::string& text, const std::set<std::string>& ones) {
  std::map<std::string, Row> rows;
  std::string family;
  std::istringstream lines(text);
  const std::regex sample(R"(([^{ ]+)\{(.*)\} (\S+))");
  const std::regex bound(R"re((.*)le="([^"]+)",(.*))re");
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# TYPE ")) {
      std::istringstream words(line.substr(7));
      words >> family;
      words >> rows[family].type;
    }
    std::smatch match;
    if (line.starts_with('#') || !std::regex_match(line, match, sample)) continue;
    Row& row = rows[family];
    const std::string name = match[1];
    std::string labels = match[2];
    const bool one = ones.contains(name + "{" + labels + "}");
    EXPECT_EQ(match[3], one ? "1.0" : "0.0") << line;
    std::smatch parts;
    if (name == family + "_bucket" && std::regex_match(labels, parts, bound)) {
      row.buckets += (row.buckets.empty() ? "" : " ") + std::string(parts[2]);
      labels = std::string(parts[1]) + std::string(parts[3]);
      EXPECT_EQ(labels, kPlain) << line;
    } else if (row.type == "histogram") {
      EXPECT_TRUE(name == family + "_count" || name == family + "_sum") << line;
      if (name == family + "_sum") row.labels += (row.labels.empty() ? "" : "|") + labels;
    } else {
      EXPECT_EQ(name, family);
      row.labels += (row.labels.empty() ? "" : "|") + labels;
    }
  }
  return rows;
}

EngineOptions options() {
  EngineOptions options;
  options.max_model_len = 8192;
  options.cache_labels = {{"gpu_memory_utilization", "0.9"}};
  return options;
}

kv::Layout layout() {
  kv::Layout layout;
  layout.num_blocks = 64;
  layout.block_size = 16;
  layout.element = kv::ElementType::kBf16;
  return layout;
}

TEST(EngineMetrics, AreVllmsByNameTypeLabelsAndBucketsAndZeroFromTheStart) {
  obs::Registry registry(obs::Labels{{"engine", "0"}, {"model_name", "m"}});
  const EngineMetrics metrics(registry, options(), layout(), 0);
  auto found = read(registry.expose(), {"vllm:cache_config_info{" + kCacheConfig + "}",
                                        R"(vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="awake"})"});
  std::erase_if(found, [](const auto& entry) { return entry.first.starts_with("tandem:"); });
  for (const auto& [name, row] : kVllm) {
    ASSERT_TRUE(found.contains(name)) << name;
    EXPECT_EQ(found[name].type, row.type) << name;
    EXPECT_EQ(found[name].labels, row.labels) << name;
    EXPECT_EQ(found[name].buckets, row.buckets) << name;
  }
  for (const auto& [name, row] : found) EXPECT_TRUE(kVllm.contains(name)) << name << " is not in the table";
}

TEST(EngineMetrics, EachDataParallelRankHasSeriesOfItsOwn) {
  obs::Registry registry(obs::Labels{{"engine", "0"}, {"model_name", "m"}});
  EngineOptions two = options();
  two.num_ranks = 2;
  EngineMetrics first(registry, two, layout(), 0);
  EngineMetrics second(registry, two, layout(), 1);
  first.generation_tokens.add(3);
  second.generation_tokens.add(4);
  const std::string text = registry.expose();
  EXPECT_THAT(text, ::testing::HasSubstr("vllm:generation_tokens_total{engine=\"0\",model_name=\"m\"} 3.0\n"
                                         "vllm:generation_tokens_total{engine=\"1\",model_name=\"m\"} 4.0\n"));
  EXPECT_THAT(text, ::testing::HasSubstr("num_gpu_blocks=\"32\"")) << "a rank's share";
}

TEST(EngineMetrics, WithoutStatisticsNothingOfVllmIsExposed) {
  obs::Registry registry(obs::Labels{{"engine", "0"}, {"model_name", "m"}}, "vllm:");
  EngineMetrics metrics(registry, options(), layout(), 0);
  metrics.generation_tokens.add();
  EXPECT_THAT(registry.expose(), ::testing::Not(::testing::HasSubstr("vllm:")));
  EXPECT_THAT(registry.expose(), ::testing::HasSubstr("tandem:kv_blocks{"));
}

TEST(EngineMetrics, LengthBucketsEndAtTheLargestThatFits) {
  EXPECT_THAT(buckets_1_2_5(1), ElementsAre(1));
  EXPECT_THAT(buckets_1_2_5(49), ElementsAre(1, 2, 5, 10, 20));
  EXPECT_THAT(buckets_1_2_5(50), ElementsAre(1, 2, 5, 10, 20, 50));
}

}  // namespace
}  // namespace tandem::engine
