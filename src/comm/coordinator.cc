// SPDX-License-Identifier: Apache-2.0
#include "comm/coordinator.h"

#include <fmt/format.h>

#include <utility>

#include "base/log.h"
#include "comm/stream.h"

namespace tandem::comm {
namespace {

using namespace std::chrono_literals;

constexpr auto kLookAround = 100ms;
/// Messages are short: who has no room for one has not read any for a long time.
constexpr auto kSendTimeout = 100ms;

TimePoint now() { return std::chrono::steady_clock::now(); }

}  // namespace

Coordinator::Coordinator(Assembly::Options options, LinkTimes times, std::function<void()> changed)
    : times_(times),
      changed_(std::move(changed)),
      assembly_(std::move(options)),
      thread_([this](const std::stop_token& stop) { run(stop); }) {}

void Coordinator::run(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    std::this_thread::sleep_for(kLookAround);
    const std::scoped_lock lock(mutex_);
    carry_out(assembly_.tick(now()));
  }
}

void Coordinator::serve(Channel channel, const Hello& hello, const std::stop_token& stop) {
  const std::string name = describe(hello.process);
  LinkId id = 0;
  bool joined = false;
  {
    const std::scoped_lock lock(mutex_);
    id = next_link_++;
    channels_[id] = &channel;
    carry_out(assembly_.join(id, hello, now()));
    joined = assembly_.joined(id);
    if (!joined) channels_.erase(id);
  }
  if (!joined) {
    log::warning("{} is not let in; it was told why", name);
    return;
  }
  log::info("{} has joined", name);
  changed_();
  const Result<void> end = converse(id, channel, stop);
  {
    const std::scoped_lock lock(mutex_);
    channels_.erase(id);
    carry_out(assembly_.lose(id, end.error().message(), now()));
  }
  if (!stop.stop_requested()) log::warning("{} is gone: {}", name, end.error().message());
  changed_();
}

/// Until the link is over; says why.
Result<void> Coordinator::converse(LinkId id, Channel& channel, const std::stop_token& stop) {
  TimePoint heard = now();
  TimePoint told = heard;
  while (!stop.stop_requested()) {
    if (now() - told >= times_.heartbeat) {
      told = now();
      const std::scoped_lock lock(mutex_);
      TANDEM_TRY(send_message(channel, Alive{}, told + kSendTimeout));
    }
    if (readable(channel, kLookAround)) {
      TANDEM_ASSIGN(const Message message, receive_message(channel, heard + times_.silence));
      heard = now();
      if (std::holds_alternative<Alive>(message)) continue;
      const std::scoped_lock lock(mutex_);
      carry_out(assembly_.hear(id, message, heard));
    } else if (now() - heard >= times_.silence) {
      return Status(
          Code::kUnavailable,
          fmt::format("it was silent for {:.1f} s (stopped, or its host or network is gone)", seconds(times_.silence)),
          Scope::kPeer);
    } else {
      continue;
    }
    changed_();
  }
  return Status(Code::kCancelled, "this process stops");
}

void Coordinator::carry_out(const Orders& orders) {
  for (const Order& order : orders) {
    const auto found = channels_.find(order.to);
    if (found == channels_.end()) continue;
    // Its own thread notices that it is broken.
    (void)send_message(*found->second, order.message, now() + kSendTimeout);
  }
}

std::vector<Assembly::Seat> Coordinator::seats() const {
  const std::scoped_lock lock(mutex_);
  return assembly_.seats();
}

bool Coordinator::up() const {
  const std::scoped_lock lock(mutex_);
  return assembly_.up();
}

bool Coordinator::roster_known() const {
  const std::scoped_lock lock(mutex_);
  return assembly_.roster_known();
}

std::string Coordinator::waiting_for() const {
  const std::scoped_lock lock(mutex_);
  return assembly_.waiting_for();
}

}  // namespace tandem::comm
