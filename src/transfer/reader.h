// SPDX-License-Identifier: Apache-2.0
// The reader's side (a decoder): fetches, from the request to verified blocks. Loop thread only.
//
//   kConnecting ──link ready──▶ kGranting ──all checksums here──▶ kMoving ──▶ kVerifying ──▶ done(stats)
//        └──────────────── any error, cancel, deadline: done(error) once nothing writes ───────┘
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "transfer/context.h"
#include "transfer/owner_link.h"
#include "transfer/plan.h"
#include "transfer/sliced_job.h"
#include "transfer/transport.h"

namespace tandem::transfer {

class Reader {
 public:
  explicit Reader(Context& context) : context_(context) {}
  ~Reader();
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  void hold(const Handover& source);
  void drop(const Handover& source);
  void fetch(FetchId id, Fetch fetch, FetchDone done);
  void cancel(FetchId id);
  /// Cancels all fetches, releases all leases; `stopped` is called when no fetch is left.
  void stop(std::function<void()> stopped);

 private:
  enum class Phase { kConnecting, kGranting, kMoving, kVerifying };
  struct Active {
    FetchId id = 0;
    Fetch fetch;
    FetchDone done;
    std::shared_ptr<OwnerLink> link;
    Phase phase = Phase::kConnecting;
    Status failure;  ///< the first thing that went wrong
    bool requested = false;
    bool retried = false;  ///< asked again on a new connection after the first one broke before the grant

    wire::Grant grant;
    bool granted = false;
    std::vector<wire::GrantedBlock> blocks;
    std::vector<std::uint32_t> checksums;
    Plan plan;
    std::shared_ptr<Move> move;
    std::shared_ptr<SlicedJob> verify;

    TimePoint started;
    TimePoint connected;
    TimePoint phase_started;
    TimePoint last_progress;
    EventLoop::TimerId deadline;
    FetchStats stats;
  };
  struct Mismatch;

  std::shared_ptr<OwnerLink> link_to(const Handover& source);
  Status check(const Fetch& fetch) const;
  void request(Active& active);
  void on_message(OwnerLink& link, wire::Message message);
  void on_lease_ended(OwnerLink& link, std::uint64_t lease, wire::Ended reason);
  void on_grant(const OwnerLink& link, const wire::Grant& grant);
  void on_grant_blocks(OwnerLink& link, wire::GrantBlocks message);
  void move(Active& active);
  void on_moved(FetchId id, const Status& status);
  void verify(Active& active);
  void on_verified(FetchId id, const Mismatch& mismatch);
  void watch_progress(FetchId id);
  void fail(Active& active, Status why);
  void on_link_failed(OwnerLink& link, const Status& why);
  void finish(FetchId id, Status status);
  Active* find(FetchId id);
  /// nullptr also for a fetch from another owner: a peer has a say in its own fetches only.
  Active* find(FetchId id, const OwnerLink& from);
  /// Names what a fetch was about, for errors.
  static std::string subject(const Active& active);

  Context& context_;
  std::map<OwnerLink::Key, std::shared_ptr<OwnerLink>> links_;
  std::unordered_map<FetchId, std::unique_ptr<Active>> active_;
  std::function<void()> stopped_;
  bool stopping_ = false;
};

}  // namespace tandem::transfer
