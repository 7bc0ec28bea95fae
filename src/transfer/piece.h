// SPDX-License-Identifier: Apache-2.0
// One read of an extent of KV, from the request to verified KV on all our ranks. Loop thread only.
//
//   kGranting ──all checksums here──▶ kMoving ──▶ kLanding ──▶ done(ok)
//       │                                ▲  next window │
//       │                                └──────────────┘
//       └────── any error or fail(): done(why) once nothing writes ──────▶
//
// KV of our own element type moves into place. It is verified part by part by the sums of a transport that makes them
// as it stores (then there is nothing left to land), else after the move. Other KV moves into a bounded buffer, window
// by window, is verified there as the owner wrote it, and is converted into place.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "transfer/context.h"
#include "transfer/landing.h"
#include "transfer/owner_link.h"
#include "transfer/plan.h"
#include "transfer/sliced_job.h"
#include "transfer/transport.h"

namespace tandem::transfer {

struct PieceOrder {
  std::uint64_t id = 0;  ///< FetchRequest::fetch
  LeaseId lease;
  Extent extent;
  std::span<const kv::BlockId> home;  ///< our blocks; stays valid
  std::int64_t first_home = 0;        ///< home[i] holds tokens from (first_home + i) * our block size on
  /// The owner's blocks of the whole prompt, which a grant must agree with; stays valid. Empty: the grant names them.
  std::span<const kv::BlockId> promised;
};

class Piece {
 public:
  /// `on_progress` hears of every sign of life. `done` comes once, with the last call that touches this object: it may
  /// destroy it. Both may come from within the calls below.
  Piece(Context& context, OwnerLink& link, PieceOrder order, std::function<void()> on_progress,
        std::function<void(Status)> done);

  /// Asks the owner; again after the link has come back, if nothing has moved yet.
  void request();
  bool granting() const { return phase_ == Phase::kGranting; }
  void on_grant(const wire::Grant& grant);
  void on_grant_blocks(const wire::GrantBlocks& message);
  /// Ends it: `done` is called with `why` (the first one) when nothing writes any more.
  void fail(Status why);

  const PieceOrder& order() const { return order_; }
  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t copies() const { return copies_; }
  TimePoint moved_at() const { return moved_at_; }  ///< when its last bytes were here

 private:
  enum class Phase { kGranting, kMoving, kLanding };
  struct Landing;

  bool converts() const { return owner_->common().element != context_.shards.common().element; }
  void begin();
  void move();
  void on_moved(const Status& status);
  void land();
  void land_part(std::size_t part, std::span<const std::uint32_t> sums);
  void land_unit(std::size_t unit, std::span<const std::uint32_t> sums);
  std::size_t num_units() const;
  void on_landed();
  KvView arrived() const;
  MutableKvView home() const;
  std::span<const wire::GrantedBlock> window_blocks() const;
  Status mismatch_error(std::uint64_t index) const;
  void finish(Status status);

  Context& context_;
  std::shared_ptr<OwnerLink> link_;
  PieceOrder order_;
  std::function<void()> on_progress_;
  std::function<void(Status)> done_;
  Phase phase_ = Phase::kGranting;
  Status failure_;  ///< the first thing that went wrong
  std::shared_ptr<const Shards> owner_;
  std::optional<wire::Grant> grant_;
  std::vector<wire::GrantedBlock> blocks_;
  std::vector<kv::BlockId> block_ids_;  ///< of blocks_
  std::vector<std::uint32_t> checksums_;

  std::vector<Extent> windows_;
  std::size_t window_ = 0;
  std::optional<Shards> staging_;  ///< shape of the buffer, for the window under way
  std::vector<kv::BlockId> staging_blocks_;
  std::vector<std::byte> buffer_;
  Plan plan_;
  /// A unit is (layer, block of the owner), in the order of the plan: what a part has a whole number of.
  std::size_t units_per_part_ = 0;
  std::size_t num_parts_ = 0;
  std::shared_ptr<Landing> landed_;  ///< of the window under way
  std::shared_ptr<Move> move_;
  std::shared_ptr<SlicedJob> landing_;
  std::uint64_t bytes_ = 0;
  std::uint64_t copies_ = 0;
  TimePoint moved_at_;
};

}  // namespace tandem::transfer
