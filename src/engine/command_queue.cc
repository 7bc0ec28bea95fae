// SPDX-License-Identifier: Apache-2.0
#include "engine/command_queue.h"

#include <utility>

namespace tandem::engine {

bool CommandQueue::push(Command command) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return false;
    commands_.push_back(std::move(command));
  }
  filled_.notify_one();
  return true;
}

bool CommandQueue::offer(Command command) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_ || commands_.size() >= bound_) return false;
    commands_.push_back(std::move(command));
  }
  filled_.notify_one();
  return true;
}

std::vector<Command> CommandQueue::take(TimePoint deadline) {
  std::unique_lock lock(mutex_);
  filled_.wait_until(lock, deadline, [this] { return !commands_.empty(); });
  return std::exchange(commands_, {});
}

std::vector<Command> CommandQueue::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  return std::exchange(commands_, {});
}

}  // namespace tandem::engine
