// SPDX-License-Identifier: Apache-2.0
// An engine's ranks without its thread and without a worker's: a test says when a step is planned and when it ends.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/engine_ranks.h"
#include "unit/engine/fake_transfer.h"
#include "worker/stub_worker.h"

namespace tandem::engine::testing {

/// Keeps what it is given until the test answers it.
class HandWorker final : public worker::Worker {
 public:
  HandWorker(std::int32_t num_blocks, std::int32_t block_size) {
    worker::StubOptions stub;
    stub.num_blocks = num_blocks;
    stub.block_size = block_size;
    cache_ = std::move(*kv::CacheMemory::create(worker::StubWorker::layout(stub)));
  }
  std::int32_t vocab_size() const override { return 1000; }
  kv::CacheMemory& cache() override { return *cache_; }
  void submit(std::shared_ptr<worker::StepPlan> plan, std::function<void(Result<worker::StepResult>)> done) override {
    plan_ = std::move(plan);
    done_ = std::move(done);
  }

  /// The plan that runs, or nullptr.
  const worker::StepPlan* plan() const { return plan_.get(); }
  /// Ends the step: every sequence that samples gets this token.
  void end(std::int32_t token) {
    worker::StepResult result;
    result.step = plan_->step;
    for (const worker::SequencePlan& sequence : plan_->sequences) {
      if (!sequence.sample) continue;
      result.sampled.push_back({.sequence = sequence.sequence, .token = token, .logprobs = {}, .error = {}});
    }
    plan_.reset();
    std::exchange(done_, nullptr)(std::move(result));
  }

 private:
  std::unique_ptr<kv::CacheMemory> cache_;
  std::shared_ptr<worker::StepPlan> plan_;
  std::function<void(Result<worker::StepResult>)> done_;
};

class HandDriven {
  obs::Registry metrics_;
  FakeClock clock_;
  std::shared_ptr<CommandQueue> queue_ = std::make_shared<CommandQueue>(100);

 public:
  HandDriven(EngineOptions options, std::int32_t num_blocks, std::int32_t block_size = 4)
      : worker(num_blocks, block_size),
        transfer("hand", 1, worker.cache()),
        ranks(with_length(std::move(options)),
              {worker, nullptr, &transfer, metrics_, clock_, queue_, /*announcer=*/nullptr},
              std::make_shared<EngineSnapshot>(1)) {
    transfer.set_mode(FakeTransfer::Mode::kByHand);
    transfer.connect(transfer);
  }

  void submit(RequestHandle handle, std::int32_t num_tokens, std::int32_t max_tokens,
              std::optional<transfer::Handover> handover = std::nullopt) {
    GenerationRequest request;
    request.prompt.assign(static_cast<std::size_t>(num_tokens), static_cast<std::int32_t>(handle));
    auto params = std::make_shared<worker::SamplingParams>();
    params->max_tokens = max_tokens;
    request.sampling = std::move(params);
    request.remote_prefill = std::move(handover);
    ranks.handle(SubmitCommand{handle, std::move(request), [](const Output& output) {
                                 EXPECT_TRUE(output.error.ok()) << output.error.to_string();
                               }});
  }
  /// Handles what has been posted.
  void look() {
    for (Command& command : queue_->take(TimePoint{})) ranks.handle(std::move(command));
  }
  /// Plans a step; what it runs, by handle.
  std::vector<RequestHandle> plan() {
    ranks.start_steps();
    std::vector<RequestHandle> running;
    if (worker.plan() != nullptr)
      for (const worker::SequencePlan& sequence : worker.plan()->sequences) running.push_back(sequence.sequence);
    return running;
  }
  void end(std::int32_t token = 7) {
    worker.end(token);
    look();
  }

  HandWorker worker;
  FakeTransfer transfer;
  EngineRanks ranks;

 private:
  static EngineOptions with_length(EngineOptions options) {
    options.max_model_len = 1000;
    return options;
  }
};

}  // namespace tandem::engine::testing
