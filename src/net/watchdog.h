// SPDX-License-Identifier: Apache-2.0
// A deadline that is moved often and missed rarely (one per connection and direction). Moving it later costs one store:
// the timer keeps its old time and goes on waiting when it fires early. Used on its executor only.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <chrono>
#include <functional>
#include <memory>

#include "base/clock.h"

namespace tandem::net {

class Watchdog {
 public:
  /// `on_expire` is called on the executor once per missed deadline, never after the destructor.
  Watchdog(const boost::asio::any_io_executor& executor, std::function<void()> on_expire);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void arm(TimePoint deadline);
  void arm_after(Duration from_now) { arm(std::chrono::steady_clock::now() + from_now); }
  /// No deadline now. The timer may stay pending; cancel() also takes it away.
  void disarm();
  void cancel();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace tandem::net
