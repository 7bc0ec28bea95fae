// SPDX-License-Identifier: Apache-2.0
#include "transfer/event_loop.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace tandem::transfer {
namespace {

constexpr int kIdleWaitMs = 60'000;

}  // namespace

Result<std::unique_ptr<EventLoop>> EventLoop::create() {
  auto loop = std::unique_ptr<EventLoop>(new EventLoop());
  loop->epoll_ = epoll_create1(EPOLL_CLOEXEC);
  loop->wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = 0;
  if (loop->epoll_ < 0 || loop->wake_ < 0 || epoll_ctl(loop->epoll_, EPOLL_CTL_ADD, loop->wake_, &event) != 0) {
    return Status(Code::kResourceExhausted, fmt::format("cannot make an event loop: {}", std::strerror(errno)),
                  Scope::kProcess);
  }
  return loop;
}

EventLoop::~EventLoop() {
  // What waits here may own things that cancel timers and watches when they go: let go of it while all is still whole.
  while (!timers_.empty() || !posted_.empty() || !handlers_.empty()) {
    const auto timers = std::exchange(timers_, {});
    const auto posted = std::exchange(posted_, {});
    const auto handlers = std::exchange(handlers_, {});
  }
  if (wake_ >= 0) close(wake_);
  if (epoll_ >= 0) close(epoll_);
}

void EventLoop::post(Task task) {
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    first = posted_.empty();
    posted_.push_back(std::move(task));
  }
  if (!first) return;  // whoever posted the first one has woken the loop
  const std::uint64_t one = 1;
  // The counter cannot overflow: it is read before every batch.
  (void)!write(wake_, &one, sizeof one);
}

void EventLoop::run() {
  std::array<epoll_event, 64> events{};
  while (!stopped_) {
    const int count = epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), wait_ms());
    if (count < 0) TANDEM_ASSERT(errno == EINTR, "epoll_wait failed");
    run_posted();
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events[static_cast<std::size_t>(i)];
      const WatchId watch = event.data.u64;  // a copy: the struct is packed
      const auto found = handlers_.find(watch);
      if (found == handlers_.end()) continue;
      const std::shared_ptr<Handler> handler = found->second;  // it may unwatch itself
      (*handler)(event.events);
    }
    // Deadlines last: after a pause of this thread, what a peer sent in time is heard before it counts as silent.
    run_timers();
  }
}

void EventLoop::run_posted() {
  std::uint64_t count = 0;
  (void)!read(wake_, &count, sizeof count);
  std::vector<Task> tasks;
  {
    const std::lock_guard lock(mutex_);
    tasks.swap(posted_);
  }
  for (Task& task : tasks) task();
}

void EventLoop::run_timers() {
  const TimePoint until = now();
  while (!timers_.empty() && timers_.begin()->first.first <= until) {
    Task task = std::move(timers_.begin()->second);
    timers_.erase(timers_.begin());
    task();
  }
}

int EventLoop::wait_ms() const {
  if (timers_.empty()) return kIdleWaitMs;
  const auto delay = std::chrono::ceil<std::chrono::milliseconds>(timers_.begin()->first.first - now());
  return static_cast<int>(std::clamp<std::int64_t>(delay.count(), 0, kIdleWaitMs));
}

EventLoop::WatchId EventLoop::watch(int fd, std::uint32_t events, Handler handler) {
  const WatchId id = next_id_++;
  handlers_.emplace(id, std::make_shared<Handler>(std::move(handler)));
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  TANDEM_ASSERT(epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl refused a socket");
  return id;
}

void EventLoop::change(WatchId watch, int fd, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = watch;
  TANDEM_ASSERT(epoll_ctl(epoll_, EPOLL_CTL_MOD, fd, &event) == 0, "epoll_ctl refused a change");
}

void EventLoop::unwatch(WatchId watch, int fd) {
  if (handlers_.erase(watch) > 0) epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr);
}

EventLoop::TimerId EventLoop::after(Duration delay, Task task) {
  const TimerId id{now() + delay, next_id_++};
  timers_.emplace(id, std::move(task));
  return id;
}

}  // namespace tandem::transfer
