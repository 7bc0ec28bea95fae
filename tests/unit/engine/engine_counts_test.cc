// SPDX-License-Identifier: Apache-2.0
// What an engine counts of the requests that it runs. Names and types of all series are in engine_metrics_test.cc.
#include "unit/engine/engine_fixture.h"

namespace tandem::engine {
namespace {

using testing::Collector;
using testing::eventually;
using testing::prompt;

class EngineCountsTest : public testing::EngineTest {};

TEST_P(EngineCountsTest, MetricsCountTokensAndHits) {
  start({.max_num_batched_tokens = 100}, 64);
  const std::string labels = "{engine=\"0\",model_name=\"m\"}";
  for (int i = 0; i < 2; ++i) {
    Collector collector;
    ASSERT_TRUE(submit(collector, prompt(16), greedy(5)));
    collector.last();
  }
  EXPECT_EQ(metric("vllm:prompt_tokens_total" + labels), 32.0);
  EXPECT_EQ(metric("vllm:generation_tokens_total" + labels), 10.0);
  EXPECT_EQ(metric("vllm:prefix_cache_queries_total" + labels), 32.0);
  EXPECT_EQ(metric("vllm:prefix_cache_hits_total" + labels), 12.0) << "floor((16 - 1) / 4) * 4";
  EXPECT_EQ(metric("vllm:request_success_total{engine=\"0\",finished_reason=\"length\",model_name=\"m\"}"), 2.0);
  EXPECT_EQ(metric("vllm:inter_token_latency_seconds_count" + labels), 8.0);
  EXPECT_EQ(metric("vllm:time_to_first_token_seconds_count" + labels), 2.0);
  EXPECT_EQ(metric("vllm:iteration_tokens_total_count" + labels), 10.0);
  EXPECT_EQ(metric("vllm:iteration_tokens_total_sum" + labels), 16.0 + 4.0 + 8.0);
  EXPECT_EQ(metric("vllm:request_generation_tokens_sum" + labels), 10.0);
  EXPECT_EQ(metric("vllm:prompt_tokens_by_source_total{engine=\"0\",model_name=\"m\",source=\"local_compute\"}"), 20.0);
  EXPECT_EQ(metric("vllm:prompt_tokens_by_source_total{engine=\"0\",model_name=\"m\",source=\"local_cache_hit\"}"),
            12.0);
  EXPECT_EQ(metric("vllm:prompt_tokens_cached_total" + labels), 12.0);
  EXPECT_EQ(metric("vllm:request_prefill_kv_computed_tokens_sum" + labels), 20.0);
  EXPECT_EQ(metric("vllm:request_params_n_sum" + labels), 2.0);
  EXPECT_EQ(metric("vllm:external_prefix_cache_queries_total" + labels), 0.0) << "there is no connector";
  EXPECT_EQ(metric("vllm:kv_cache_usage_perc" + labels), 0.0);
}

TEST_P(EngineCountsTest, SaltsAndPromptLogprobsHaveNoHits) {
  start({.max_num_batched_tokens = 100}, 64);
  const auto ask = [this](const std::string& salt, bool prompt_logprobs) {
    GenerationRequest request;
    request.prompt = prompt(16);
    auto params = greedy(2);
    if (prompt_logprobs) params.prompt_logprobs = 1;
    request.sampling = std::make_shared<worker::SamplingParams>(params);
    request.cache_salt = salt;
    Collector collector;
    ASSERT_TRUE(engine_->submit(std::move(request), collector.sink()));
    collector.last();
  };
  const auto counts = [this] {
    return std::pair(metric("vllm:prefix_cache_queries_total{engine=\"0\",model_name=\"m\"}"),
                     metric("vllm:prefix_cache_hits_total{engine=\"0\",model_name=\"m\"}"));
  };
  ask("", false);
  ask("a", false);
  EXPECT_EQ(counts(), std::pair(32.0, 0.0)) << "a salt isolates";
  ask("", true);
  EXPECT_EQ(counts(), std::pair(32.0, 0.0)) << "the whole prompt is computed: that is no look-up";
  ask("a", false);
  EXPECT_EQ(counts(), std::pair(48.0, 12.0));
}

TEST_P(EngineCountsTest, ChoicesOfOnePromptAreOneRequestInMetrics) {
  start({}, 64);
  const auto group = std::make_shared<ChoiceGroup>(3);
  std::vector<Collector> collectors(3);
  for (std::int32_t i = 0; i < 3; ++i) {
    GenerationRequest request;
    request.prompt = prompt(5);
    request.sampling = std::make_shared<worker::SamplingParams>(greedy(i == 1 ? 7 : 2));
    request.group = group;
    ASSERT_TRUE(engine_->submit(std::move(request), collectors[static_cast<std::size_t>(i)].sink()));
  }
  for (Collector& collector : collectors) collector.last();
  const std::string labels = "{engine=\"0\",model_name=\"m\"}";
  EXPECT_EQ(metric("vllm:request_params_n_count" + labels), 1.0);
  EXPECT_EQ(metric("vllm:request_params_n_sum" + labels), 3.0);
  EXPECT_EQ(metric("vllm:request_max_num_generation_tokens_count" + labels), 1.0);
  EXPECT_EQ(metric("vllm:request_max_num_generation_tokens_sum" + labels), 7.0) << "the longest";
  EXPECT_EQ(metric("vllm:request_generation_tokens_sum" + labels), 11.0);
}

TEST_P(EngineCountsTest, WaitingRequestsAndFailuresAreCounted) {
  gate_.close();
  start({.max_num_seqs = 1}, 64);
  std::vector<Collector> collectors(3);
  for (Collector& collector : collectors) ASSERT_TRUE(submit(collector, prompt(5), greedy(2)));
  const std::string waiting = "{engine=\"0\",model_name=\"m\",reason=\"capacity\"}";
  EXPECT_TRUE(eventually([&] { return metric("vllm:num_requests_waiting_by_reason" + waiting) == 2.0; }));
  EXPECT_EQ(metric("vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"}"), 2.0);
  EXPECT_EQ(metric("vllm:num_requests_running{engine=\"0\",model_name=\"m\"}"), 1.0);
  EXPECT_TRUE(eventually([&] { return metric("vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"m\"}") > 0.0; }));
  fail_next_step(Status(Code::kInternal, "scripted", Scope::kRequest));
  gate_.open();
  for (Collector& collector : collectors) collector.last();
  const std::string reason = "{engine=\"0\",finished_reason=\"";
  EXPECT_EQ(metric("vllm:request_success_total" + reason + "error\",model_name=\"m\"}") +
                metric("vllm:request_success_total" + reason + "length\",model_name=\"m\"}"),
            3.0);
  EXPECT_GE(metric("vllm:request_success_total" + reason + "error\",model_name=\"m\"}"), 1.0);
}

INSTANTIATE_TEST_SUITE_P(Scheduling, EngineCountsTest, ::testing::Bool(), testing::scheduling_name);

}  // namespace
}  // namespace tandem::engine
