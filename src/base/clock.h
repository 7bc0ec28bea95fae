// SPDX-License-Identifier: Apache-2.0
// Time is injected, so that schedulers and leases can be tested on virtual time.
#pragma once

#include <chrono>

namespace tandem {

using Duration = std::chrono::steady_clock::duration;
using TimePoint = std::chrono::steady_clock::time_point;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint now() const = 0;
};

class SteadyClock final : public Clock {
 public:
  TimePoint now() const override { return std::chrono::steady_clock::now(); }
};

/// Moves only when told to. Not thread-safe: tests drive it from one thread.
class FakeClock final : public Clock {
 public:
  TimePoint now() const override { return now_; }
  void advance(Duration by) { now_ += by; }

 private:
  TimePoint now_{};
};

inline double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace tandem
