// SPDX-License-Identifier: Apache-2.0
// A long piece of pool work in slices: several jobs share the pool fairly (a job has at most two slices queued), it can
// be cancelled between slices, and its end is reported on the loop thread when no slice runs any more.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>

#include "transfer/event_loop.h"
#include "transfer/work_pool.h"

namespace tandem::transfer {

class SlicedJob : public std::enable_shared_from_this<SlicedJob> {
 public:
  /// `slice` runs on pool threads, for each of 0..num_slices-1 once unless cancelled; `done` on the loop thread.
  static std::shared_ptr<SlicedJob> start(EventLoop& loop, WorkPool& pool, std::size_t num_slices,
                                          std::function<void(std::size_t)> slice, std::function<void()> done);
  /// Any thread. `done` is still called.
  void cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }

 private:
  SlicedJob(EventLoop& loop, WorkPool& pool, std::size_t num_slices)
      : loop_(loop), pool_(pool), num_slices_(num_slices) {}
  void run_one();

  EventLoop& loop_;
  WorkPool& pool_;
  std::size_t num_slices_;
  std::function<void(std::size_t)> slice_;
  std::function<void()> done_;
  std::atomic<std::size_t> next_{0};
  std::atomic<int> lanes_{0};
  std::atomic<bool> cancelled_{false};
};

}  // namespace tandem::transfer
