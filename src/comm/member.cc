// SPDX-License-Identifier: Apache-2.0
#include "comm/member.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "comm/stream.h"

namespace tandem::comm {
namespace {

using namespace std::chrono_literals;

constexpr auto kLookAround = 100ms;
constexpr auto kAgain = 300ms;
constexpr auto kConnect = 3s;
constexpr auto kSendTimeout = 1s;
constexpr auto kProgress = 5s;
constexpr auto kVerdict = 1s;

TimePoint now() { return std::chrono::steady_clock::now(); }

}  // namespace

Member::Member(MemberOptions options) : options_(std::move(options)), event_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  TANDEM_ASSERT(event_, "the system has an eventfd for us");
  epoch_.missing = Status(Code::kUnavailable, "the other processes of the instance have not joined yet", Scope::kPeer);
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

Member::~Member() { stop(); }

void Member::stop() {
  thread_.request_stop();
  const std::scoped_lock lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

Result<void> Member::wait(const std::function<bool()>& done, std::string_view what) {
  const TimePoint deadline = now() + options_.start_timeout;
  std::unique_lock lock(mutex_);
  const auto over = [&] { return done() || stopped_ || !failure_.ok(); };
  while (!changed_.wait_for(lock, kProgress, over)) {
    const std::string waiting =
        !waiting_.empty() ? waiting_
                          : fmt::format("the first process at {}", endpoint_name(options_.address, options_.port));
    if (now() >= deadline)
      return Status(Code::kDeadlineExceeded,
                    fmt::format("{} after {} s (--data-parallel-start-timeout): still waiting for {}", what,
                                options_.start_timeout.count() / 1000, waiting),
                    Scope::kProcess);
    log::info("waiting for {} (at most {:.0f} s more)", waiting, seconds(deadline - now()));
  }
  if (!failure_.ok()) return failure_;
  if (stopped_) return Status(Code::kCancelled, "this process stops", Scope::kProcess);
  return {};
}

Result<std::vector<ProcessInfo>> Member::wait_for_roster() {
  TANDEM_TRY(wait([this] { return roster_.has_value(); }, "the instance is not complete"));
  const std::scoped_lock lock(mutex_);
  return *roster_;
}

void Member::ready() {
  const std::scoped_lock lock(mutex_);
  if (!std::exchange(ready_, true)) say(Ready{});
}

Result<void> Member::wait_until_formed() {
  ready();
  return wait([this] { return epoch_.form.has_value(); }, "the instance is not loaded");
}

void Member::serving() {
  const std::scoped_lock lock(mutex_);
  if (!std::exchange(serving_, true)) say(Serving{});
}

Member::Epoch Member::epoch() const {
  const std::scoped_lock lock(mutex_);
  return epoch_;
}

void Member::linked(std::uint64_t epoch) {
  const std::scoped_lock lock(mutex_);
  if (current() == epoch) say(Linked{epoch});
}

Status Member::suspect(std::uint64_t epoch, std::int32_t process, const std::string& why) {
  std::unique_lock lock(mutex_);
  if (current() == epoch) say(Suspect{epoch, process, why});
  changed_.wait_for(lock, kVerdict, [&] { return current() != epoch; });
  if (current() == epoch) end_epoch(Status(Code::kUnavailable, why, Scope::kPeer));
  return epoch_.missing;
}

void Member::await_up(std::uint64_t epoch, TimePoint deadline) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline, [&] { return current() != epoch || epoch_.up || stopped_; });
}

void Member::clear_event() const {
  std::uint64_t count = 0;
  (void)!read(event_.fd(), &count, sizeof count);
}

void Member::signal() const {
  const std::uint64_t one = 1;
  (void)!write(event_.fd(), &one, sizeof one);
}

Status Member::failure() const {
  const std::scoped_lock lock(mutex_);
  return failure_;
}

void Member::run(const std::stop_token& stop) {
  stay_connected(stop);
  const std::scoped_lock lock(mutex_);
  end_epoch(Status(Code::kCancelled, "this process leaves the instance", Scope::kPeer));
}

void Member::stay_connected(const std::stop_token& stop) {
  TimePoint gone_since = now();
  while (!stop.stop_requested()) {
    const Result<void> end = connect_and_converse(stop);
    bool was_connected = false;
    {
      const std::scoped_lock lock(mutex_);
      was_connected = std::exchange(connected_, false);
      channel_ = Channel();
      if (was_connected)
        end_epoch(Status(Code::kUnavailable,
                         fmt::format("the first process of the instance at {} is gone: {}",
                                     endpoint_name(options_.address, options_.port), end.error().message()),
                         Scope::kPeer));
    }
    if (stop.stop_requested()) return;
    if (was_connected) {
      gone_since = now();
      log::warning("the link to the first process is gone ({}); waiting for it to come back", end.error().message());
    }
    // The two do not fit, and will not fit later: another secret or configuration.
    if (end.error().code() == Code::kFailedPrecondition) return give_up(end.error().with_scope(Scope::kProcess));
    if (now() - gone_since > options_.start_timeout)
      return give_up(Status(Code::kDeadlineExceeded,
                            fmt::format("the first process at {} did not come back within {} s: {}",
                                        endpoint_name(options_.address, options_.port),
                                        options_.start_timeout.count() / 1000, end.error().message()),
                            Scope::kProcess));
    std::this_thread::sleep_for(kAgain);
  }
}

Result<void> Member::connect_and_converse(const std::stop_token& stop) {
  const TimePoint deadline = now() + kConnect;
  TANDEM_ASSIGN(Channel channel, connect_peer(options_.address, options_.port, options_.credentials, deadline));
  Hello hello = options_.hello;
  if (hello.process.host.empty()) hello.process.host = local_host(channel.socket());
  TANDEM_TRY(send_message(channel, hello, deadline));
  {
    const std::scoped_lock lock(mutex_);
    channel_ = std::move(channel);
  }
  return converse(stop);
}

Result<void> Member::converse(const std::stop_token& stop) {
  TimePoint heard = now();
  TimePoint told = heard;
  while (!stop.stop_requested()) {
    if (now() - told >= options_.times.heartbeat) {
      told = now();
      const std::scoped_lock lock(mutex_);
      TANDEM_TRY(send_message(channel_, Alive{}, told + kSendTimeout));
    }
    if (readable(channel_, kLookAround)) {
      const auto message = receive_message(channel_, heard + options_.times.silence);
      if (!message && message.error().code() == Code::kFailedPrecondition)
        return message.error().context(endpoint_name(options_.address, options_.port));
      if (!message) return message.error();
      heard = now();
      TANDEM_TRY(on(*message));
    } else if (now() - heard >= options_.times.silence) {
      return Status(Code::kUnavailable, fmt::format("it was silent for {:.1f} s", seconds(options_.times.silence)),
                    Scope::kPeer);
    }
  }
  return Status(Code::kCancelled, "this process stops");
}

Result<void> Member::on(const Message& message) {
  const std::scoped_lock lock(mutex_);
  if (const auto* refused = std::get_if<Refused>(&message)) {
    const Status why(refused->final ? Code::kFailedPrecondition : Code::kAlreadyExists,
                     fmt::format("the first process at {} does not let this one in: {}",
                                 endpoint_name(options_.address, options_.port), refused->why),
                     Scope::kProcess);
    waiting_ = refused->why;
    return why;
  }
  if (!std::exchange(connected_, true)) {
    // Only now: a refused process is not one that was connected.
    if (ready_) say(Ready{});
    if (serving_) say(Serving{});
  }
  if (const auto* waiting = std::get_if<Waiting>(&message)) {
    waiting_ = waiting->text;
  } else if (const auto* roster = std::get_if<Roster>(&message)) {
    if (roster_ && !std::equal(roster_->begin(), roster_->end(), roster->processes.begin(), roster->processes.end(),
                               [](const ProcessInfo& a, const ProcessInfo& b) {
                                 return a.first_rank == b.first_rank && a.num_ranks == b.num_ranks;
                               })) {
      return Status(Code::kFailedPrecondition,
                    "the instance came back with its ranks laid out over other processes; restart this one too",
                    Scope::kProcess);
    }
    roster_ = roster->processes;
  } else if (const auto* form = std::get_if<Form>(&message)) {
    epoch_ = {*form, false, {}};
    current_.store(form->epoch, std::memory_order_release);
  } else if (const auto* up = std::get_if<Up>(&message)) {
    if (epoch_.form && epoch_.form->epoch == up->epoch) epoch_.up = true;
  } else if (const auto* drop = std::get_if<Drop>(&message)) {
    if (epoch_.form && epoch_.form->epoch == drop->epoch) {
      const auto index = static_cast<std::size_t>(drop->process);
      const std::vector<ProcessInfo>& all = epoch_.form->processes;
      const std::string who = index < all.size() ? describe(all[index]) : std::string("a process");
      end_epoch(Status(Code::kUnavailable, fmt::format("{} is missing: {}", who, drop->why), Scope::kPeer));
    }
  }
  signal();
  changed_.notify_all();
  return {};
}

void Member::end_epoch(Status why) {
  epoch_ = {std::nullopt, false, std::move(why)};
  current_.store(0, std::memory_order_release);
  signal();
  changed_.notify_all();
}

/// With mutex_. A broken link is noticed by who reads it.
void Member::say(const Message& message) {
  if (connected_ && channel_) (void)send_message(channel_, message, now() + kSendTimeout);
}

void Member::give_up(Status why) {
  const std::scoped_lock lock(mutex_);
  failure_ = std::move(why);
  changed_.notify_all();
}

}  // namespace tandem::comm
