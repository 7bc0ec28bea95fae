// SPDX-License-Identifier: Apache-2.0
// Leases on this instance's blocks, as a pure state machine on injected time; no I/O, no locks, one thread.
//
//   open ──renew──▶ held ──holder lost──▶ orphaned ──renew──▶ held
//    │ term           │ term, done, drop      │ term/3
//    ▼                ▼                       ▼
//   kExpired      kExpired, kDone, kDropped  kPeerDied           any state ──revoke──▶ kRevoked
//
// A holder is a reader's incarnation. Several may hold one lease; it ends when the last one gives it up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "transfer/transfer_engine.h"

namespace tandem::transfer {

enum class LeaseState { kOpen, kHeld, kOrphaned };

class LeaseTable {
 public:
  using Holder = std::uint64_t;

  explicit LeaseTable(Duration term) : term_(term) {}

  void open(std::uint64_t lease, TimePoint now);
  /// A hold or a heartbeat: `holder` has the lease for another term. False if the lease is unknown or has ended.
  bool renew(std::uint64_t lease, Holder holder, TimePoint now);
  enum class Release { kEnded, kStillHeld, kIgnored };
  /// The holder is finished (`end` kDone or kDropped). A lease that nobody holds yet can be given up by anyone who
  /// knows its id; one that others hold, only by them.
  Release release(std::uint64_t lease, Holder holder, LeaseEnd end);
  /// The last connection of `holder` is gone: it has a third of a term to come back.
  void holder_lost(Holder holder, TimePoint now);
  /// Ends a lease by the owner's will; false if it had ended.
  bool revoke(std::uint64_t lease);
  /// Takes out the leases whose time is over.
  std::vector<std::pair<std::uint64_t, LeaseEnd>> expire(TimePoint now);

  bool alive(std::uint64_t lease) const { return leases_.contains(lease); }
  std::optional<LeaseState> state(std::uint64_t lease) const;
  std::size_t size() const { return leases_.size(); }
  std::vector<std::uint64_t> ids() const;
  /// How a recently ended lease ended, for error messages.
  std::optional<LeaseEnd> ended_as(std::uint64_t lease) const;

 private:
  struct Hold {
    TimePoint until;
    bool lost = false;
  };
  struct Lease {
    TimePoint initial_until;  ///< counts while nobody holds it
    std::map<Holder, Hold> holds;
  };
  void end(std::uint64_t lease, LeaseEnd reason);

  Duration term_;
  std::unordered_map<std::uint64_t, Lease> leases_;
  std::unordered_map<std::uint64_t, LeaseEnd> ended_;
  std::deque<std::uint64_t> ended_order_;  ///< oldest first; bounds ended_
};

}  // namespace tandem::transfer
