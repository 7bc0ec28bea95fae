// SPDX-License-Identifier: Apache-2.0
#include "worker/runner_thread.h"

#include <pthread.h>

#include <chrono>
#include <future>
#include <utility>

namespace tandem::worker {
namespace {
constexpr std::size_t kMaxPlans = 2;
constexpr std::chrono::milliseconds kLookAround{200};
}  // namespace

RunnerThread::~RunnerThread() {
  if (!thread_.joinable()) return;
  thread_.request_stop();
  thread_.join();
}

Result<void> RunnerThread::launch(Start start, Step step, comm::Group* group) {
  TANDEM_ASSERT(!thread_.joinable(), "a runner thread is launched once");
  group_ = group;
  queue_.reserve(kMaxPlans);
  std::promise<Result<void>> started;
  auto result = started.get_future();
  // The thread owns the promise: it may still be inside set_value() when this function returns.
  thread_ = std::jthread([this, started = std::move(started), start = std::move(start),
                          step = std::move(step)](const std::stop_token& stop) mutable {
    pthread_setname_np(pthread_self(), "tandem-worker");  // for top -H and profilers; its team inherits it
    Result<void> outcome = start();
    const bool ok = outcome.has_value();
    started.set_value(std::move(outcome));
    if (ok) run(stop, step);
  });
  // Bounded by `start` itself, which reads a checkpoint from disk.
  Result<void> outcome = result.get();
  if (!outcome) thread_.join();
  return outcome;
}

void RunnerThread::submit(std::shared_ptr<StepPlan> plan, std::function<void(Result<StepResult>)> done) {
  {
    const std::lock_guard lock(mutex_);
    TANDEM_ASSERT(queue_.size() + (running_ ? 1 : 0) < kMaxPlans, "at most two plans at a time");
    queue_.push_back({std::move(plan), std::move(done)});
  }
  changed_.notify_one();
  if (group_ != nullptr) group_->wake();
}

/// True once there is a plan, false once a stop is asked for.
bool RunnerThread::wait_for_plan(std::unique_lock<std::mutex>& lock, const std::stop_token& stop, const Step& step) {
  if (group_ == nullptr) return changed_.wait(lock, stop, [this] { return !queue_.empty(); });
  const StepPlan nothing;
  while (queue_.empty() && !stop.stop_requested()) {
    lock.unlock();
    // An error is heard by those whose step it is; here nobody waits for anything.
    if (group_->wait_for_others(kLookAround)) (void)step(nothing, stop);
    lock.lock();
  }
  return !queue_.empty();
}

Result<StepResult> RunnerThread::run_plan(StepPlan& plan, const std::stop_token& stop, const Step& step) {
  before_.fill_in(plan);
  Result<StepResult> result =
      plan.sequences.empty() ? StepResult{.step = plan.step, .prompts = {}, .sampled = {}} : step(plan, stop);
  before_.complete(result);
  return result;
}

void RunnerThread::run(const std::stop_token& stop, const Step& step) {
  std::unique_lock lock(mutex_);
  while (wait_for_plan(lock, stop, step)) {
    Job job = std::move(queue_.front());
    queue_.erase(queue_.begin());
    if (stop.stop_requested()) {
      lock.unlock();
      job.done(Status(Code::kCancelled, "the worker is stopping"));
      lock.lock();
      continue;
    }
    running_ = true;
    lock.unlock();
    Result<StepResult> result = run_plan(*job.plan, stop, step);
    lock.lock();
    running_ = false;  // before the answer: the engine may submit its next plan from there
    lock.unlock();
    job.done(std::move(result));
    lock.lock();
  }
}

}  // namespace tandem::worker
