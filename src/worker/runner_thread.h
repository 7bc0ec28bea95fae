// SPDX-License-Identifier: Apache-2.0
// The thread on which a worker computes, with the bounded queue of plans in front of it: one that runs and one behind.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

#include "base/status.h"
#include "comm/group.h"
#include "worker/sampled_before.h"
#include "worker/worker.h"

namespace tandem::worker {

class RunnerThread {
 public:
  /// Runs one plan; called on the runner thread. Should end early once the token is stopped, if it waits.
  using Step = std::function<Result<StepResult>(const StepPlan&, const std::stop_token&)>;
  /// Called first on the runner thread, e.g. to load the model there; an error ends the thread.
  using Start = std::function<Result<void>()>;

  RunnerThread() = default;
  /// Waits for the step that runs; plans behind it are answered with kCancelled.
  ~RunnerThread();
  RunnerThread(const RunnerThread&) = delete;
  RunnerThread& operator=(const RunnerThread&) = delete;

  /// Starts the thread and waits until `start` has returned; gives back its result. Once only. With a `group` (which
  /// must outlive this) steps that other processes begin are run too, with a plan without sequences.
  Result<void> launch(Start start, Step step, comm::Group* group = nullptr);
  /// Takes the memory that this keeps for a step of so many sequences. Before the first plan, for example in `start`.
  void reserve(std::size_t num_sequences) { before_.reserve(num_sequences); }
  /// As Worker::submit. A third plan is a mistake of the caller.
  void submit(std::shared_ptr<StepPlan> plan, std::function<void(Result<StepResult>)> done);

 private:
  struct Job {
    std::shared_ptr<StepPlan> plan;
    std::function<void(Result<StepResult>)> done;
  };
  void run(const std::stop_token& stop, const Step& step);
  bool wait_for_plan(std::unique_lock<std::mutex>& lock, const std::stop_token& stop, const Step& step);
  Result<StepResult> run_plan(StepPlan& plan, const std::stop_token& stop, const Step& step);

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<Job> queue_;  // guarded by mutex_; room for kMaxPlans is taken at launch
  bool running_ = false;    // guarded by mutex_
  SampledBefore before_;    // the thread's own
  comm::Group* group_ = nullptr;
  std::jthread thread_;
};

}  // namespace tandem::worker
