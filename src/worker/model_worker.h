// SPDX-License-Identifier: Apache-2.0
// The worker that runs a model: a runner thread, its thread team, the weights, and the KV memory of all its ranks.
//
// Threads. The runner thread is thread 0 of the team; it loads the model (so that weights are packed, and their pages
// first touched, by the threads that read them), warms it up, and runs every step. submit() is called by the engine
// thread; cache() may be used by transfer threads at any time, under the block pool's and the leases' rules.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/thread_team.h"
#include "kv/cache_memory.h"
#include "model/checkpoint.h"
#include "model/model.h"
#include "worker/runner_thread.h"
#include "worker/sampler.h"
#include "worker/worker.h"

namespace tandem::worker {

struct ModelWorkerOptions {
  model::ModelOptions model;
  std::int32_t block_size = 16;
  std::int32_t num_blocks = 0;   ///< 0: as many as fit kv_bytes
  std::size_t kv_bytes = 0;      ///< looked at if num_blocks is 0
  std::int32_t num_threads = 0;  ///< of all ranks together; 0: one for each CPU this process may use
  /// The CPUs that each thread may run on; empty: all. A rank's threads are next to each other if they divide evenly.
  std::vector<std::vector<int>> cpus;
  std::vector<int> rank_nodes;  ///< NUMA node of each rank's KV, -1 for any; empty: any
  /// The largest step there will be; the warm-up has this many tokens, up to 2048.
  std::int32_t max_num_batched_tokens = 512;
  /// Steps of up to so many sequences with one token each allocate nothing but their result; at most num_blocks.
  std::int32_t planned_decodes = 0;
  LogprobsMode logprobs_mode;
  /// With experts spread over processes (model.experts.group): called on the runner thread once the model is loaded,
  /// and again if a process is lost before the warm-up is over; returns when all processes can run steps.
  std::function<Result<void>()> enter_group;
};

/// How many KV blocks fit `bytes`. `one_block`: the ranks' layouts for one block.
std::int32_t blocks_for_bytes(std::span<const kv::Layout> one_block, std::size_t bytes);

class ModelWorker final : public Worker {
 public:
  /// Loads `checkpoint` (it must outlive the worker: embedding rows are read from its files), makes the KV memory and
  /// runs one warm-up pass; returns when the worker is ready. `progress` (may be empty) gets the share of the weights
  /// that is loaded, on the runner thread. Errors: whatever is wrong with the checkpoint; resource_exhausted if the KV
  /// memory cannot be had or would not hold one block; internal if the warm-up's logits are not finite.
  static Result<std::unique_ptr<ModelWorker>> create(const model::Checkpoint& checkpoint, ModelWorkerOptions options,
                                                     const std::function<void(double)>& progress = {});

  std::int32_t vocab_size() const override { return model_->config().vocab_size; }
  kv::CacheMemory& cache() override { return *cache_; }
  void submit(std::shared_ptr<StepPlan> plan, std::function<void(Result<StepResult>)> done) override;

  const model::Model& model() const { return *model_; }
  int num_threads() const { return team_->size(); }

 private:
  explicit ModelWorker(ModelWorkerOptions options) : options_(std::move(options)) {}
  Result<void> start(const model::Checkpoint& checkpoint, const std::function<void(double)>& progress);
  Result<void> make_cache();
  Result<void> warm_up();
  Result<void> warm_up_together();
  Result<void> plan_decodes();
  Result<StepResult> step(const StepPlan& plan);
  void read_logits(StepResult& result);

  /// Logits of one sequence, and where in the result what they say goes.
  struct Rows {
    const SequencePlan* sequence = nullptr;
    std::size_t first = 0;
    std::size_t place = 0;
    bool scores = false;  ///< its prompt's tokens; else one row is sampled from
  };

  ModelWorkerOptions options_;
  // Order: each uses the ones above it; the runner thread, which uses all, stops first.
  std::unique_ptr<kernels::ThreadTeam> team_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<kv::CacheMemory> cache_;
  std::vector<Sampler> samplers_;             ///< one a thread
  std::vector<model::SequenceInput> inputs_;  ///< reused from step to step, as are the next two
  std::vector<Rows> rows_;                    ///< in plan order
  std::vector<float> logits_;                 ///< [rows, vocab]
  RunnerThread runner_;
};

}  // namespace tandem::worker
