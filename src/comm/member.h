// SPDX-License-Identifier: Apache-2.0
// Each process's link to the first one (the first one has one too, to itself): says hello, hears who is there, and
// comes back when the link or the first process was gone. What it heard can be asked for by any thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/acceptor.h"
#include "comm/coordinator.h"
#include "comm/messages.h"

namespace tandem::comm {

struct MemberOptions {
  std::string address;  ///< of the first process
  std::uint16_t port = 0;
  Hello hello;  ///< an empty host becomes this end's address of the link
  Credentials credentials;
  LinkTimes times;
  /// How long to wait for all others at start, and for the first process if it goes later.
  std::chrono::milliseconds start_timeout{600'000};
};

class Member {
 public:
  explicit Member(MemberOptions options);
  ~Member();
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  /// Waits until every rank has a process; prints a line every few seconds. An error after start_timeout, if this
  /// process is refused, or on stop().
  Result<std::vector<ProcessInfo>> wait_for_roster();
  /// This process is loaded: says so.
  void ready();
  /// Says so, and waits likewise until all are and an epoch may be linked.
  Result<void> wait_until_formed();
  void serving();
  /// Ends all waits.
  void stop();

  /// What steps are run in. `form` is unset while somebody is missing; `missing` then says who.
  struct Epoch {
    std::optional<Form> form;
    bool up = false;
    Status missing;
  };
  Epoch epoch() const;
  /// The epoch that may be linked or is up, 0 if none. Cheap: asked at every round.
  std::uint64_t current() const { return current_.load(std::memory_order_acquire); }
  void linked(std::uint64_t epoch);
  /// Says that a round failed because of that process and waits for what the first process makes of it (briefly): all
  /// processes then name the same one.
  Status suspect(std::uint64_t epoch, std::int32_t process, const std::string& why);
  /// Waits until the epoch is up or over, or the deadline.
  void await_up(std::uint64_t epoch, TimePoint deadline);
  /// Readable once something changed; clear_event() before looking at what.
  int event_fd() const { return event_.fd(); }
  void clear_event() const;
  void signal() const;

  /// Not ok: this process can never be part of the instance again and should end.
  Status failure() const;

 private:
  void run(const std::stop_token& stop);
  void stay_connected(const std::stop_token& stop);
  Result<void> connect_and_converse(const std::stop_token& stop);
  Result<void> converse(const std::stop_token& stop);
  Result<void> on(const Message& message);
  void end_epoch(Status why);  // with mutex_
  void say(const Message& message);
  void give_up(Status why);
  Result<void> wait(const std::function<bool()>& done, std::string_view what);

  const MemberOptions options_;
  const Socket event_;  ///< an eventfd
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Channel channel_;                                 // guarded by mutex_ but for reading by thread_; closed by thread_
  bool connected_ = false;                          // guarded by mutex_
  std::optional<std::vector<ProcessInfo>> roster_;  // guarded by mutex_
  bool ready_ = false;                              // guarded by mutex_
  bool serving_ = false;                            // guarded by mutex_
  Epoch epoch_;                                     // guarded by mutex_
  std::string waiting_;                             // guarded by mutex_
  Status failure_;                                  // guarded by mutex_
  bool stopped_ = false;                            // guarded by mutex_
  std::atomic<std::uint64_t> current_{0};
  std::jthread thread_;  // last: uses all of the above
};

}  // namespace tandem::comm
