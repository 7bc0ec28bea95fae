// SPDX-License-Identifier: Apache-2.0
// One instance for tests of hand-overs: an engine over a stub worker with its own KV memory and a fake transfer engine.
#pragma once

#include <gtest/gtest.h>

#include <atomic>

#include "engine/engine.h"
#include "unit/engine/collector.h"
#include "unit/engine/fake_transfer.h"
#include "worker/stub_worker.h"

namespace tandem::engine::testing {

inline constexpr std::int32_t kVocab = 100;
inline constexpr std::int32_t kBlockSize = 4;

inline std::vector<std::int32_t> prompt(std::int32_t length, std::int32_t salt = 0) {
  std::vector<std::int32_t> tokens;
  for (std::int32_t i = 0; i < length; ++i) tokens.push_back((salt * 31 + i * 7 + i / 5) % kVocab);
  return tokens;
}

inline std::shared_ptr<worker::SamplingParams> greedy(std::int32_t max_tokens) {
  auto params = std::make_shared<worker::SamplingParams>();
  params->temperature = 0.0;
  params->max_tokens = max_tokens;
  return params;
}

/// The request ended well, with the tokens that follow `tokens` if all KV was right.
inline void expect_right(Collector& collector, const std::vector<std::int32_t>& tokens, std::int32_t max_tokens = 8) {
  const Output last = collector.last();
  EXPECT_TRUE(last.error.ok()) << last.error.to_string();
  EXPECT_EQ(collector.tokens(), worker::StubWorker::greedy(tokens, kVocab, max_tokens));
}

/// One instance: worker, transfer engine, engine.
struct Instance {
  Gate gate;
  std::atomic<bool> fail_next_step{false};
  std::function<void(const worker::StepPlan&)> watch;  ///< on the worker's thread; set before start()
  std::unique_ptr<worker::StubWorker> worker;
  std::unique_ptr<FakeTransfer> transfer;
  std::unique_ptr<obs::Registry> metrics;
  std::unique_ptr<Engine> engine;

  void start(const std::string& name, std::uint64_t incarnation, std::int32_t num_blocks, EngineOptions options,
             Announcer* announcer = nullptr, std::int32_t block_size = kBlockSize) {
    engine.reset();
    worker::StubOptions stub;
    stub.vocab_size = kVocab;
    stub.num_blocks = num_blocks;
    stub.block_size = block_size;
    stub.before_step = [this](const worker::StepPlan& plan) {
      gate.pass();
      if (watch) watch(plan);
      return fail_next_step.exchange(false) ? Status(Code::kInternal, "the step failed") : Status();
    };
    auto made = worker::StubWorker::create(stub);
    ASSERT_TRUE(made) << made.error().to_string();
    worker = std::move(*made);
    transfer = std::make_unique<FakeTransfer>(name, incarnation, worker->cache());
    metrics = std::make_unique<obs::Registry>();
    options.max_model_len = 500;
    engine = Engine::start(options, *worker, nullptr, transfer.get(), *metrics, announcer);
  }
  bool all_blocks_back() const {
    const EngineStats stats = engine->stats();
    return stats.num_running == 0 && stats.num_waiting == 0 && stats.num_leased == 0 &&
           stats.num_free_blocks + stats.num_cached_blocks == stats.num_blocks;
  }
  /// A rank's series, given without the label that says whose it is.
  double metric(std::string series, std::int32_t rank = 0) const {
    const std::string label = "engine=\"" + std::to_string(rank) + "\"";
    const std::size_t labels = series.find('{');
    if (labels == std::string::npos)
      series += "{" + label + "}";
    else
      series.insert(labels + 1, label + ",");
    const std::string text = metrics->expose();
    const std::size_t at = text.find("\n" + series + " ");
    EXPECT_NE(at, std::string::npos) << series;
    return at == std::string::npos ? -1.0 : std::stod(text.substr(at + series.size() + 2));
  }
};

}  // namespace tandem::engine::testing
