// SPDX-License-Identifier: Apache-2.0
// A few threads for work that must not stall the transfer thread: copies, checksums, and calls that may block.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace tandem::transfer {

class WorkPool {
 public:
  explicit WorkPool(int num_threads);
  /// Runs what was submitted, then joins.
  ~WorkPool();
  WorkPool(const WorkPool&) = delete;
  WorkPool& operator=(const WorkPool&) = delete;

  /// Any thread. First in, first out. The queue is as long as the transfers in flight (bounded by the engine) need it.
  void submit(std::function<void()> work);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::function<void()>> queue_;  ///< guarded by mutex_
  bool stopping_ = false;                    ///< guarded by mutex_
  std::vector<std::jthread> threads_;
};

}  // namespace tandem::transfer
