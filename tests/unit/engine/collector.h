// SPDX-License-Identifier: Apache-2.0
// Collects the outputs of requests and lets a test wait for the last one, with a deadline.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"

namespace tandem::engine::testing {

inline constexpr std::chrono::seconds kTestWait{20};

/// Names the two ways in which the engine's tests run.
inline std::string scheduling_name(const ::testing::TestParamInfo<bool>& async) {
  return async.param ? "async" : "step_by_step";
}

/// Polls until `condition` holds; false after kTestWait. For states that the engine thread reaches on its own.
inline bool eventually(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kTestWait;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

class Collector {
 public:
  OutputSink sink() {
    return [state = state_](Output output) {
      const std::lock_guard lock(state->mutex);
      EXPECT_FALSE(state->done) << "an output after the last one";
      state->tokens.insert(state->tokens.end(), output.tokens.begin(), output.tokens.end());
      state->text += output.text;
      ++state->num_outputs;
      state->done = output.last();
      state->outputs.push_back(std::move(output));
      state->changed.notify_all();
    };
  }

  /// Waits for the last output and returns it.
  const Output& last() {
    std::unique_lock lock(state_->mutex);
    const bool done = state_->changed.wait_for(lock, kTestWait, [this] { return state_->done; });
    EXPECT_TRUE(done) << "no last output";
    static const Output none;
    return done ? state_->outputs.back() : none;
  }
  Output first() {
    const std::lock_guard lock(state_->mutex);
    return state_->outputs.empty() ? Output{} : state_->outputs.front();
  }
  bool wait_for_outputs(std::size_t count) {
    std::unique_lock lock(state_->mutex);
    return state_->changed.wait_for(lock, kTestWait, [&] { return state_->num_outputs >= count || state_->done; });
  }
  bool done() {
    const std::lock_guard lock(state_->mutex);
    return state_->done;
  }
  std::size_t num_outputs() {
    const std::lock_guard lock(state_->mutex);
    return state_->num_outputs;
  }
  std::vector<std::int32_t> tokens() {
    const std::lock_guard lock(state_->mutex);
    return state_->tokens;
  }
  std::vector<Output> all() {
    const std::lock_guard lock(state_->mutex);
    return state_->outputs;
  }
  std::string text() {
    const std::lock_guard lock(state_->mutex);
    return state_->text;
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<Output> outputs;
    std::vector<std::int32_t> tokens;
    std::string text;
    std::size_t num_outputs = 0;
    bool done = false;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

/// Holds a worker's steps back until they are let go, one by one or for good. Used in StubOptions::before_step.
class Gate {
 public:
  void close() {
    const std::lock_guard lock(mutex_);
    open_ = false;
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void let_one_pass() {
    const std::lock_guard lock(mutex_);
    ++permits_;
    changed_.notify_all();
  }
  /// The worker's side.
  void pass() {
    std::unique_lock lock(mutex_);
    ++arrived_;
    changed_.notify_all();
    const bool passed = changed_.wait_for(lock, kTestWait, [this] { return open_ || permits_ > 0; });
    EXPECT_TRUE(passed) << "a step was never let go";
    if (!open_ && permits_ > 0) --permits_;
  }
  /// Until the `count`-th step has come to the gate.
  bool wait_for_arrivals(int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kTestWait, [&] { return arrived_ >= count; });
  }
  int arrivals() {
    const std::lock_guard lock(mutex_);
    return arrived_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
  int permits_ = 0;
  int arrived_ = 0;
};

}  // namespace tandem::engine::testing
