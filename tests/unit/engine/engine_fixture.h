// SPDX-License-Identifier: Apache-2.0
// An engine without a transfer engine over a stub worker, whose steps a test can hold back and let fail.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "unit/engine/instance.h"

namespace tandem::engine::testing {

/// Each test runs step by step and with async scheduling.
class EngineTest : public ::testing::TestWithParam<bool> {
 protected:
  void start(EngineOptions options, std::int32_t num_blocks = 64, std::int32_t block_size = 4) {
    engine_.reset();
    worker::StubOptions stub;
    stub.vocab_size = kVocab;
    stub.num_blocks = num_blocks;
    stub.block_size = block_size;
    stub.before_step = [this](const worker::StepPlan& plan) {
      gate_.pass();
      const std::lock_guard lock(mutex_);
      last_plan_ = plan;
      return std::exchange(next_error_, Status());
    };
    auto made = worker::StubWorker::create(stub);
    ASSERT_TRUE(made) << made.error().to_string();
    worker_ = std::move(*made);
    metrics_ = std::make_unique<obs::Registry>(obs::Labels{{"engine", "0"}, {"model_name", "m"}});
    if (options.max_model_len == 0) options.max_model_len = 1000;
    options.async_scheduling = GetParam();
    engine_ = Engine::start(options, *worker_, nullptr, nullptr, *metrics_);
  }
  void TearDown() override {
    gate_.open();
    engine_.reset();
  }

  static worker::SamplingParams greedy(std::int32_t max_tokens) {
    worker::SamplingParams params;
    params.temperature = 0.0;
    params.max_tokens = max_tokens;
    return params;
  }
  Result<RequestHandle> submit(Collector& collector, std::vector<std::int32_t> tokens,
                               const worker::SamplingParams& params, std::int32_t priority = 0) {
    GenerationRequest request;
    request.id = "test";
    request.prompt = std::move(tokens);
    request.sampling = std::make_shared<worker::SamplingParams>(params);
    request.priority = priority;
    return engine_->submit(std::move(request), collector.sink());
  }
  Status refusal(std::vector<std::int32_t> tokens, const worker::SamplingParams& params) {
    Collector collector;
    const auto handle = submit(collector, std::move(tokens), params);
    return handle ? Status() : handle.error();
  }
  void fail_next_step(Status status) {
    const std::lock_guard lock(mutex_);
    next_error_ = std::move(status);
  }
  worker::StepPlan last_plan() {
    const std::lock_guard lock(mutex_);
    return last_plan_;
  }
  /// A counter or gauge as exposed, common labels included.
  double metric(const std::string& series) {
    const std::string text = metrics_->expose();
    const std::size_t at = text.find("\n" + series + " ");
    EXPECT_NE(at, std::string::npos) << series << " is not exposed";
    return at == std::string::npos ? -1.0 : std::stod(text.substr(at + series.size() + 2));
  }
  void expect_idle() {
    EXPECT_TRUE(eventually([this] {
      const EngineStats stats = engine_->stats();
      return stats.num_running == 0 && stats.num_waiting == 0 && stats.num_leased == 0 &&
             stats.num_free_blocks + stats.num_cached_blocks == stats.num_blocks;
    })) << "free "
        << engine_->stats().num_free_blocks << " cached " << engine_->stats().num_cached_blocks;
  }

  Gate gate_;
  std::mutex mutex_;
  Status next_error_;
  worker::StepPlan last_plan_;
  std::unique_ptr<worker::StubWorker> worker_;
  std::unique_ptr<obs::Registry> metrics_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace tandem::engine::testing
