// SPDX-License-Identifier: Apache-2.0
#include "net/watchdog.h"

#include <boost/asio/steady_timer.hpp>
#include <optional>
#include <utility>

namespace tandem::net {

struct Watchdog::State : std::enable_shared_from_this<Watchdog::State> {
  State(const boost::asio::any_io_executor& executor, std::function<void()> callback)
      : timer(executor), on_expire(std::move(callback)) {}

  void wait(TimePoint until) {
    pending_until = until;
    timer.expires_at(until);  // also ends an earlier wait, with operation_aborted
    timer.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
      if (!error) self->fired();
    });
  }

  void fired() {
    pending_until.reset();
    if (!deadline) return;
    if (std::chrono::steady_clock::now() < *deadline) {
      wait(*deadline);
      return;
    }
    deadline.reset();
    if (auto call = on_expire) call();  // a copy: the call may destroy the watchdog
  }

  boost::asio::steady_timer timer;
  std::function<void()> on_expire;
  std::optional<TimePoint> deadline;
  std::optional<TimePoint> pending_until;
};

Watchdog::Watchdog(const boost::asio::any_io_executor& executor, std::function<void()> on_expire)
    : state_(std::make_shared<State>(executor, std::move(on_expire))) {}

Watchdog::~Watchdog() {
  state_->on_expire = nullptr;
  cancel();
}

void Watchdog::arm(TimePoint deadline) {
  state_->deadline = deadline;
  if (!state_->pending_until || *state_->pending_until > deadline) state_->wait(deadline);
}

void Watchdog::disarm() { state_->deadline.reset(); }

void Watchdog::cancel() {
  state_->deadline.reset();
  state_->pending_until.reset();
  state_->timer.cancel();
}

}  // namespace tandem::net
