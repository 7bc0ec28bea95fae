// SPDX-License-Identifier: Apache-2.0
// The transfer thread's loop: epoll, timers and tasks posted from other threads. It sleeps in the kernel until one of
// them is due.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace tandem::transfer {

class EventLoop {
 public:
  using Task = std::function<void()>;
  using Handler = std::function<void(std::uint32_t events)>;  ///< EPOLLIN, ...
  using WatchId = std::uint64_t;
  using TimerId = std::pair<TimePoint, std::uint64_t>;

  static Result<std::unique_ptr<EventLoop>> create();
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  /// Any thread. Tasks run in order. After run() has returned a task is kept and destroyed with the loop.
  void post(Task task);
  /// Runs until stop(), called on the loop thread.
  void run();

  // Loop thread only.
  void stop() { stopped_ = true; }
  TimePoint now() const { return std::chrono::steady_clock::now(); }
  /// Level-triggered. The fd stays the caller's and must be unwatched before it is closed.
  WatchId watch(int fd, std::uint32_t events, Handler handler);
  void change(WatchId watch, int fd, std::uint32_t events);
  /// The handler is not called any more, also not for events that this turn of the loop has taken out already.
  void unwatch(WatchId watch, int fd);
  TimerId after(Duration delay, Task task);
  void cancel(TimerId timer) { timers_.erase(timer); }

 private:
  EventLoop() = default;
  void run_posted();
  void run_timers();
  int wait_ms() const;

  int epoll_ = -1;
  int wake_ = -1;  ///< eventfd
  bool stopped_ = false;
  std::uint64_t next_id_ = 1;  ///< 0 is the wake fd
  std::unordered_map<WatchId, std::shared_ptr<Handler>> handlers_;
  std::map<TimerId, Task> timers_;
  std::mutex mutex_;
  std::vector<Task> posted_;  ///< guarded by mutex_
};

}  // namespace tandem::transfer
