// SPDX-License-Identifier: Apache-2.0
#include "comm/tcp_group.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>

#include "base/log.h"
#include "comm/stream.h"

namespace tandem::comm {
namespace {

using namespace std::chrono_literals;

constexpr auto kLinkUp = 5s;
constexpr auto kLookAround = 50ms;
/// A round of small messages takes some tens of microseconds, and going to sleep and waking up twice as much. The CPU
/// is given away between two looks, so that whoever else has work there goes first.
constexpr auto kSpin = 50us;

TimePoint now() { return std::chrono::steady_clock::now(); }

}  // namespace

void LinkInbox::put(const LinkHello& hello, Channel channel) {
  const std::scoped_lock lock(mutex_);
  // Others of that process are of epochs that are over.
  std::erase_if(channels_, [&](const auto& entry) { return entry.first.second == hello.process; });
  channels_[{hello.epoch, hello.process}] = std::move(channel);
  changed_.notify_all();
}

Channel LinkInbox::take(std::uint64_t epoch, std::int32_t process, TimePoint deadline, const Member& member) {
  std::unique_lock lock(mutex_);
  while (true) {
    const auto found = channels_.find({epoch, process});
    if (found != channels_.end()) {
      Channel channel = std::move(found->second);
      channels_.erase(found);
      return channel;
    }
    if (now() >= deadline || member.current() != epoch) return {};
    changed_.wait_for(lock, kLookAround);
  }
}

Result<void> TcpGroup::start_step() {
  follow_epoch();
  if (epoch_ != 0) member_.await_up(epoch_, now() + kLinkUp);
  const Member::Epoch epoch = member_.epoch();
  if (epoch_ == 0 || !epoch.up || epoch.form->epoch != epoch_)
    return epoch.missing.ok() ? Status(Code::kUnavailable, "the processes of the instance are linking up", Scope::kPeer)
                              : epoch.missing;
  return {};
}

Result<void> TcpGroup::usable() {
  if (!broken_.ok()) return broken_;
  if (links_ == nullptr || member_.current() != epoch_) {
    links_.reset();
    epoch_ = 0;
    const Status missing = member_.epoch().missing;
    broken_ = missing.ok() ? Status(Code::kUnavailable, "a process of the instance was gone for a while", Scope::kPeer)
                           : missing;
    return broken_;
  }
  return {};
}

Result<void> TcpGroup::begin(std::span<const Bytes> outgoing) {
  TANDEM_TRY(usable());
  links_->begin(outgoing);
  return {};
}

Result<std::span<const Bytes>> TcpGroup::finish() {
  TANDEM_TRY(usable());
  TANDEM_TRY(move_all());
  return links_->received();
}

Result<void> TcpGroup::move_all() {
  const TimePoint deadline = now() + round_timeout_;
  TimePoint moved = now();
  while (true) {
    const bool some = links_->advance();
    if (const LinkFailure* failure = links_->failure()) return lose(failure->process, failure->why);
    if (links_->done()) return {};
    if (some) {
      moved = now();
      continue;
    }
    if (now() - moved < kSpin) {
      sched_yield();
      continue;
    }
    if (now() >= deadline)
      return lose(links_->awaited(), fmt::format("it took no part in a round for {} s", round_timeout_.count() / 1000));
    if (links_->wait(member_.event_fd(), deadline)) {
      member_.clear_event();
      TANDEM_TRY(usable());
    }
  }
}

bool TcpGroup::wait_for_others(std::chrono::milliseconds timeout) {
  const TimePoint deadline = now() + timeout;
  do {
    member_.clear_event();
    if (woken_.exchange(false)) return false;
    follow_epoch();
    if (links_ == nullptr) {
      Links nobody({}, 0, 0);
      nobody.wait(member_.event_fd(), deadline);
      continue;
    }
    if (links_->others_began()) return true;
    if (const LinkFailure* failure = links_->failure())
      (void)lose(failure->process, failure->why);
    else
      links_->wait(member_.event_fd(), deadline);
  } while (now() < deadline);
  return false;
}

void TcpGroup::wake() {
  woken_.store(true);
  member_.signal();
}

/// Between steps: gives up links of an epoch that is over, and links up in a new one.
void TcpGroup::follow_epoch() {
  broken_ = Status();  // whoever runs the steps has heard it
  if (epoch_ != 0 && member_.current() != epoch_) {
    links_.reset();
    epoch_ = 0;
  }
  if (epoch_ != 0) return;
  const Member::Epoch epoch = member_.epoch();
  if (epoch.form && !epoch.up) link_up(*epoch.form);
}

void TcpGroup::link_up(const Form& form) {
  const TimePoint deadline = now() + kLinkUp;
  std::vector<Channel> channels(form.processes.size());
  for (std::size_t p = 0; p < channels.size(); ++p) {
    if (static_cast<int>(p) == rank_) continue;
    // Each process connects to those before it, and waits for those behind it: nobody waits in a circle.
    if (static_cast<int>(p) < rank_) {
      auto channel = connect_to(form, p, deadline);
      if (channel)
        channels[p] = std::move(*channel);
      else if (member_.current() == form.epoch)
        return (void)lose(static_cast<std::int32_t>(p), "cannot link to it: " + channel.error().message());
    } else {
      channels[p] = inbox_.take(form.epoch, static_cast<std::int32_t>(p), deadline, member_);
    }
    if (member_.current() != form.epoch) return;
    if (!channels[p])
      return (void)lose(static_cast<std::int32_t>(p),
                        fmt::format("it did not link to {} within {} s",
                                    describe(form.processes[static_cast<std::size_t>(rank_)]), kLinkUp.count()));
  }
  links_ = std::make_unique<Links>(std::move(channels), rank_, form.epoch);
  epoch_ = form.epoch;
  member_.linked(form.epoch);
}

Result<Channel> TcpGroup::connect_to(const Form& form, std::size_t process, TimePoint deadline) const {
  const ProcessInfo& peer = form.processes[process];
  TANDEM_ASSIGN(Channel channel, connect_peer(peer.host, peer.port, credentials_, deadline));
  TANDEM_TRY(send_message(channel, LinkHello{form.epoch, rank_}, deadline));
  return channel;
}

/// The epoch is over because of that process. The links stay until everybody knows, so that who closes last is not
/// taken for the culprit.
Status TcpGroup::lose(std::int32_t process, const std::string& why) {
  const Member::Epoch epoch = member_.epoch();
  if (epoch.form) {
    const std::string who = describe(epoch.form->processes[static_cast<std::size_t>(process)]);
    log::warning("{}: {}", who, why);
    broken_ = member_.suspect(epoch.form->epoch, process, why);
  } else {
    broken_ = epoch.missing;
  }
  if (broken_.ok()) broken_ = Status(Code::kUnavailable, why, Scope::kPeer);
  links_.reset();
  epoch_ = 0;
  return broken_;
}

}  // namespace tandem::comm
