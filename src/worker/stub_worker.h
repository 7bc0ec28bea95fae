// SPDX-License-Identifier: Apache-2.0
// A worker without a model: scripted timing, and tokens that depend on every KV slot of the context. It makes tests of
// engine, API, connectors and proxy possible; a KV block that was not moved, was moved to the wrong place or was reused
// changes the text.
//
// What it computes. Running a token writes a 16-byte record (token, position, plane, check) into the token's slot of
// every plane (layer, K or V, head) of a tiny layout. Sampling reads all slots of the context back through the block
// table, in position order, into a 64-bit hash; the logits are a function of that hash; the real Sampler chooses. With
// right KV the hash is context_hash() of the token ids, so a test can say beforehand what must come.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "base/status.h"
#include "kv/cache_memory.h"
#include "worker/runner_thread.h"
#include "worker/sampler.h"
#include "worker/worker.h"

namespace tandem::worker {

struct StubOptions {
  std::int32_t vocab_size = 1000;
  std::int32_t sampled_ids = 0;  ///< only ids below it come out; 0: all. A large vocabulary costs nothing then.
  std::int32_t block_size = 16;
  std::int32_t num_blocks = 256;
  double seconds_per_step = 0.0;           ///< of every step
  double seconds_per_prefill_token = 0.0;  ///< of sequences that run two or more tokens
  double seconds_per_decode_token = 0.0;   ///< of sequences that run one
  std::string fingerprint = "stub";        ///< of the layout: stubs of different fingerprints refuse each other's KV
  LogprobsMode logprobs_mode;
  /// Called on the worker's thread before each step (may be empty): watches plans, blocks, or fails the step.
  std::function<Status(const StepPlan&)> before_step;
};

class StubWorker final : public Worker {
 public:
  static Result<std::unique_ptr<StubWorker>> create(StubOptions options);

  std::int32_t vocab_size() const override { return options_.vocab_size; }
  kv::CacheMemory& cache() override { return *cache_; }
  void submit(std::shared_ptr<StepPlan> plan, std::function<void(Result<StepResult>)> done) override;

  /// The hash of a context whose KV is right.
  static std::uint64_t context_hash(std::span<const std::int32_t> tokens);
  /// The logits after a context, each in [0, 16).
  static std::vector<float> logits(std::uint64_t context_hash, std::int32_t vocab_size);
  /// What greedy sampling appends to `context`, token by token.
  static std::vector<std::int32_t> greedy(std::vector<std::int32_t> context, std::int32_t vocab_size,
                                          std::int32_t num_tokens);
  static kv::Layout layout(const StubOptions& options);

 private:
  explicit StubWorker(StubOptions options) : options_(std::move(options)), sampler_(options_.logprobs_mode) {}
  PromptLogprobs score(const SequencePlan& sequence);
  std::vector<float> logits_after(const SequencePlan& sequence) const;
  Result<StepResult> step(const StepPlan& plan, const std::stop_token& stop);
  double scripted_seconds(const StepPlan& plan) const;
  void write_slots(const SequencePlan& sequence, std::int32_t layer);
  std::uint64_t read_slots(const SequencePlan& sequence) const;
  /// Where the token's slots are; that of a plane is plane_offsets_ further on.
  std::byte* slots(const SequencePlan& sequence, std::int64_t position) const;

  StubOptions options_;
  std::unique_ptr<kv::CacheMemory> cache_;
  std::vector<std::size_t> plane_offsets_;        ///< bytes, of each plane from what slots() gives
  std::size_t block_bytes_ = 0, slot_bytes_ = 0;  ///< from one block, or token, to the next within a plane
  Sampler sampler_;
  RunnerThread runner_;  // last: stops before what it uses goes
};

}  // namespace tandem::worker
