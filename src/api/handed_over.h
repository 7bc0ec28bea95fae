// SPDX-License-Identifier: Apache-2.0
// Which leases a prefiller's recent answers carried, by the request's id: a proxy whose client left while the answer
// was on its way never saw the lease, but knows the id. Server's thread only.
#pragma once

#include <deque>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "transfer/handover.h"

namespace tandem::api {

class HandedOver {
 public:
  void remember(const std::string& request_id, std::vector<transfer::LeaseId> leases) {
    if (leases.empty()) return;
    if (leases_.insert_or_assign(request_id, std::move(leases)).second) order_.push_back(request_id);
    if (order_.size() <= kMost) return;
    leases_.erase(order_.front());
    order_.pop_front();
  }
  /// Empty if the id is unknown. Leases that ended meanwhile may be among them; releasing those does nothing.
  std::vector<transfer::LeaseId> find(const std::string& request_id) const {
    const auto found = leases_.find(request_id);
    return found == leases_.end() ? std::vector<transfer::LeaseId>() : found->second;
  }

 private:
  static constexpr std::size_t kMost = 4096;  ///< the moment that matters is short; older ones are forgotten
  std::unordered_map<std::string, std::vector<transfer::LeaseId>> leases_;
  std::deque<std::string> order_;
};

}  // namespace tandem::api
