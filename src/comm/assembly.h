// SPDX-License-Identifier: Apache-2.0
// Who of an instance's processes is there: the first process's book. A state machine without sockets, threads or clock:
// what happens on the links comes in, messages to send come out.
//
//   gathering ──all ranks have a process──▶ roster known ──all are loaded──▶ forming ──all are linked──▶ up
//                                               ▲                              │                        │
//                                               └───────── somebody is lost, or a link is ──────────────┘
//
// Once the roster is known the ranks' places are fixed: a process that comes back must have the ranks it had, because
// the others hold experts according to it.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "comm/messages.h"

namespace tandem::comm {

using LinkId = std::uint64_t;

struct Order {
  LinkId to = 0;
  Message message;
};
using Orders = std::vector<Order>;

class Assembly {
 public:
  struct Options {
    std::int32_t total_ranks = 1;
    std::vector<Property> properties;
    /// Whether steps need links between all processes. If not, it is up as soon as all are loaded, and a process that
    /// is lost is missed by nobody else.
    bool links = true;
    std::uint64_t first_epoch = 1;  ///< a random number, so that epochs of an earlier life are not taken for ours
    std::chrono::milliseconds form_timeout{10'000};
    std::chrono::milliseconds form_pause{
        300};  ///< after a drop, so that a link that fails again and again costs little
  };
  explicit Assembly(Options options) : options_(std::move(options)), next_epoch_(options_.first_epoch) {}

  /// A refused link gets its reason and is forgotten; joined() tells which it was.
  Orders join(LinkId link, const Hello& hello, TimePoint now);
  bool joined(LinkId link) const;
  /// Messages that a process may not send are ignored.
  Orders hear(LinkId link, const Message& message, TimePoint now);
  Orders lose(LinkId link, const std::string& why, TimePoint now);
  /// Call some times a second.
  Orders tick(TimePoint now);

  struct Seat {
    ProcessInfo process;
    std::optional<LinkId> link;  ///< nullopt: not there
    bool ready = false;
    bool linked = false;
    bool serving = false;
  };
  /// In the order of the ranks.
  const std::vector<Seat>& seats() const { return seats_; }
  bool roster_known() const { return roster_known_; }
  bool up() const { return phase_ == Phase::kUp; }
  /// Who is missing or still loading; "" once up.
  std::string waiting_for() const;

 private:
  enum class Phase { kApart, kForming, kUp };

  std::optional<Refused> place(LinkId link, const Hello& hello);
  Seat* seat_of(LinkId link);
  void drop(std::int32_t process, const std::string& why, TimePoint now, Orders& orders);
  void set_up(Orders& orders);
  void tell_all(const Message& message, Orders& orders) const;
  void tell_waiting(Orders& orders);
  std::vector<ProcessInfo> processes() const;

  const Options options_;
  std::vector<Seat> seats_;  ///< ordered by first rank, without overlap
  bool roster_known_ = false;
  Phase phase_ = Phase::kApart;
  std::uint64_t epoch_ = 0;
  std::uint64_t next_epoch_;
  TimePoint form_not_before_{};
  TimePoint form_deadline_{};
  std::string told_waiting_;
};

}  // namespace tandem::comm
