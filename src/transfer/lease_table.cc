// SPDX-License-Identifier: Apache-2.0
#include "transfer/lease_table.h"

#include <algorithm>

namespace tandem::transfer {
namespace {

constexpr std::size_t kRememberEnded = 4096;

}  // namespace

void LeaseTable::open(std::uint64_t lease, TimePoint now) { leases_[lease] = Lease{now + term_, {}}; }

bool LeaseTable::renew(std::uint64_t lease, Holder holder, TimePoint now) {
  const auto found = leases_.find(lease);
  if (found == leases_.end()) return false;
  found->second.holds[holder] = Hold{now + term_, false};
  return true;
}

LeaseTable::Release LeaseTable::release(std::uint64_t lease, Holder holder, LeaseEnd reason) {
  const auto found = leases_.find(lease);
  if (found == leases_.end()) return Release::kIgnored;
  auto& holds = found->second.holds;
  if (!holds.empty() && holds.erase(holder) == 0) return Release::kIgnored;
  if (!holds.empty()) return Release::kStillHeld;
  end(lease, reason);
  return Release::kEnded;
}

void LeaseTable::holder_lost(Holder holder, TimePoint now) {
  for (auto& [id, lease] : leases_) {
    const auto hold = lease.holds.find(holder);
    if (hold == lease.holds.end()) continue;
    hold->second.until = std::min(hold->second.until, now + term_ / 3);
    hold->second.lost = true;
  }
}

bool LeaseTable::revoke(std::uint64_t lease) {
  if (!alive(lease)) return false;
  end(lease, LeaseEnd::kRevoked);
  return true;
}

std::vector<std::pair<std::uint64_t, LeaseEnd>> LeaseTable::expire(TimePoint now) {
  std::vector<std::pair<std::uint64_t, LeaseEnd>> over;
  for (auto& [id, lease] : leases_) {
    if (lease.holds.empty()) {
      if (lease.initial_until <= now) over.emplace_back(id, LeaseEnd::kExpired);
      continue;
    }
    bool last_was_lost = false;
    std::erase_if(lease.holds, [&](const auto& hold) {
      if (hold.second.until > now) return false;
      last_was_lost = hold.second.lost;
      return true;
    });
    if (lease.holds.empty()) over.emplace_back(id, last_was_lost ? LeaseEnd::kPeerDied : LeaseEnd::kExpired);
  }
  for (const auto& [id, reason] : over) end(id, reason);
  return over;
}

std::optional<LeaseState> LeaseTable::state(std::uint64_t lease) const {
  const auto found = leases_.find(lease);
  if (found == leases_.end()) return std::nullopt;
  const auto& holds = found->second.holds;
  if (holds.empty()) return LeaseState::kOpen;
  const bool all_lost = std::all_of(holds.begin(), holds.end(), [](const auto& hold) { return hold.second.lost; });
  return all_lost ? LeaseState::kOrphaned : LeaseState::kHeld;
}

std::vector<std::uint64_t> LeaseTable::ids() const {
  std::vector<std::uint64_t> ids;
  ids.reserve(leases_.size());
  for (const auto& [id, lease] : leases_) ids.push_back(id);
  return ids;
}

std::optional<LeaseEnd> LeaseTable::ended_as(std::uint64_t lease) const {
  const auto found = ended_.find(lease);
  return found == ended_.end() ? std::nullopt : std::optional(found->second);
}

void LeaseTable::end(std::uint64_t lease, LeaseEnd reason) {
  leases_.erase(lease);
  if (ended_.emplace(lease, reason).second) ended_order_.push_back(lease);
  if (ended_order_.size() > kRememberEnded) {
    ended_.erase(ended_order_.front());
    ended_order_.pop_front();
  }
}

}  // namespace tandem::transfer
