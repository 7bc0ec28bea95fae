// SPDX-License-Identifier: Apache-2.0
#include "transfer/piece.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <utility>

#include "transfer/checksum.h"

namespace tandem::transfer {
namespace {

/// Of KV that is moved and verified in one go: fits the cache of one core.
constexpr std::size_t kPartBytes = std::size_t{256} << 10;
constexpr std::size_t kStagingBytes = std::size_t{2} << 20;  // of KV to be converted, at a time in a piece
constexpr std::uint64_t kNoMismatch = ~std::uint64_t{0};

/// Cuts an extent at the owner's block borders into windows of about kStagingBytes.
std::vector<Extent> cut_windows(const Extent& extent, const Shards& owner) {
  const std::int64_t size = owner.common().block_size;
  const BlockSpan span = blocks_of(extent, owner.common().block_size);
  const auto most = static_cast<std::int64_t>(std::max<std::size_t>(1, kStagingBytes / owner.block_bytes()));
  const auto layers = static_cast<std::int32_t>(std::max<std::int64_t>(1, most / span.count));
  const std::int64_t blocks = std::min(span.count, most);
  std::vector<Extent> windows;
  for (std::int32_t layer = extent.first_layer; layer < extent.end_layer; layer += layers) {
    for (std::int64_t block = span.first; block < span.first + span.count; block += blocks) {
      windows.push_back({layer, std::min(extent.end_layer, layer + layers), std::max(extent.first_token, block * size),
                         std::min(extent.end_token, (block + blocks) * size)});
    }
  }
  return windows;
}

/// The owner's KV of one window, on one rank with all heads.
Shards staging_for(const Shards& owner, const Extent& window) {
  kv::Layout layout = owner.common();
  layout.num_layers = window.num_layers();
  layout.num_blocks = static_cast<std::int32_t>(blocks_of(window, layout.block_size).count);
  layout.first_kv_head = 0;
  layout.num_kv_heads = layout.total_kv_heads;
  layout.base = 0;
  return Shards({layout});
}

}  // namespace

/// What the pool threads found.
struct Piece::Landing {
  std::atomic<std::size_t> parts{0};                 ///< verified and spread, or found wrong
  std::atomic<std::uint64_t> mismatch{kNoMismatch};  ///< the first wrong checksum that any of them saw

  void report(std::uint64_t found) {
    std::uint64_t known = mismatch.load();
    while (found < known && !mismatch.compare_exchange_weak(known, found)) {
    }
  }
};

Piece::Piece(Context& context, OwnerLink& link, PieceOrder order, std::function<void()> on_progress,
             std::function<void(Status)> done)
    : context_(context),
      link_(link.shared_from_this()),
      order_(order),
      on_progress_(std::move(on_progress)),
      done_(std::move(done)) {}

// ---- the grant

void Piece::request() {
  owner_ = link_->owner();
  grant_.reset();
  blocks_.clear();
  checksums_.clear();
  const auto via = link_->transport().name() == "shm" ? wire::Via::kShm : wire::Via::kTcp;
  link_->send(wire::FetchRequest{order_.id, order_.lease, via, order_.extent});
}

void Piece::on_grant(const wire::Grant& grant) {
  if (phase_ != Phase::kGranting || grant_) return;
  const BlockSpan span = blocks_of(order_.extent, owner_->common().block_size);
  const std::size_t pieces = pieces_per_block(order_.extent.num_layers(), owner_->num_heads());
  if (grant.num_blocks != static_cast<std::uint64_t>(span.count) || grant.pieces_per_block != pieces) {
    return fail(Status(Code::kDataLoss,
                       fmt::format("granted {} blocks of {} checksums, expected {} of {}", grant.num_blocks,
                                   grant.pieces_per_block, span.count, pieces),
                       Scope::kTransfer));
  }
  grant_ = grant;
  on_progress_();
}

void Piece::on_grant_blocks(const wire::GrantBlocks& message) {
  if (phase_ != Phase::kGranting) return;
  if (!grant_ || message.first != blocks_.size() || message.blocks.size() > grant_->num_blocks - blocks_.size() ||
      message.checksums.size() != message.blocks.size() * grant_->pieces_per_block) {
    return fail(Status(Code::kDataLoss, "the prefiller's grant does not fit together", Scope::kTransfer));
  }
  const auto base = static_cast<std::size_t>(order_.extent.first_token / owner_->common().block_size);
  for (std::size_t i = 0; !order_.promised.empty() && i < message.blocks.size(); ++i) {
    const std::size_t index = base + message.first + i;
    const kv::BlockId promised = index < order_.promised.size() ? order_.promised[index] : -1;
    if (promised == message.blocks[i].block) continue;
    return fail(Status(Code::kDataLoss,
                       fmt::format("the hand-over lists block {} at place {}, the lease has block {}", promised, index,
                                   message.blocks[i].block),
                       Scope::kTransfer));
  }
  blocks_.insert(blocks_.end(), message.blocks.begin(), message.blocks.end());
  checksums_.insert(checksums_.end(), message.checksums.begin(), message.checksums.end());
  on_progress_();
  if (blocks_.size() == grant_->num_blocks) begin();
}

void Piece::begin() {
  for (const wire::GrantedBlock& block : blocks_) block_ids_.push_back(block.block);
  windows_ = converts() ? cut_windows(order_.extent, *owner_) : std::vector{order_.extent};
  move();
}

// ---- window by window

std::span<const wire::GrantedBlock> Piece::window_blocks() const {
  const std::int32_t size = owner_->common().block_size;
  const BlockSpan span = blocks_of(windows_[window_], size);
  const std::int64_t base = order_.extent.first_token / size;
  return std::span(blocks_).subspan(static_cast<std::size_t>(span.first - base), static_cast<std::size_t>(span.count));
}

MutableKvView Piece::home() const { return {context_.shards, context_.memory.data(), order_.home, order_.first_home}; }

/// The window where it arrives: in place, or in the buffer.
KvView Piece::arrived() const {
  if (!staging_) return {context_.shards, context_.memory.data(), order_.home, order_.first_home};
  const Extent& window = windows_[window_];
  return {*staging_, buffer_.data(), staging_blocks_, window.first_token / owner_->common().block_size,
          window.first_layer};
}

void Piece::move() {
  const Extent& window = windows_[window_];
  if (converts()) {
    staging_.emplace(staging_for(*owner_, window));
    staging_blocks_.resize(static_cast<std::size_t>(staging_->common().num_blocks));
    std::iota(staging_blocks_.begin(), staging_blocks_.end(), 0);
    if (buffer_.size() < staging_->end()) buffer_.resize(staging_->end());
  }
  const KvView to = arrived();
  const std::span<const wire::GrantedBlock> granted = window_blocks();
  const auto skipped = static_cast<std::size_t>(window.first_token / to.shards.common().block_size - to.first_block);
  auto plan = make_plan(
      {*owner_, to.shards,
       std::span(block_ids_).subspan(static_cast<std::size_t>(granted.data() - blocks_.data()), granted.size()),
       to.blocks.subspan(skipped), window, to.first_layer});
  if (!plan) return finish(plan.error());
  plan_ = std::move(*plan);
  bytes_ += plan_.bytes;
  copies_ += plan_.copies.size();
  units_per_part_ = std::max<std::size_t>(1, kPartBytes / owner_->block_bytes());
  num_parts_ = (num_units() + units_per_part_ - 1) / units_per_part_;
  landed_ = std::make_shared<Landing>();
  phase_ = Phase::kMoving;
  MoveRequest request;
  request.token = grant_->token;
  request.copies = plan_.copies;
  request.blocks = granted;
  request.destination = staging_ ? buffer_.data() : context_.memory.data();
  request.on_progress = [this](std::uint64_t) { on_progress_(); };
  request.piece_ends = plan_.piece_ends;
  request.pieces_per_part = units_per_part_ * pieces_per_block(1, owner_->num_heads());
  request.on_part = [this](std::size_t part, std::span<const std::uint32_t> sums) { land_part(part, sums); };
  request.on_done = [this](const Status& status) { on_moved(status); };
  move_ = link_->transport().start(std::move(request));
}

void Piece::on_moved(const Status& status) {
  if (!failure_.ok()) return finish(failure_);
  moved_at_ = context_.loop.now();
  if (!status.ok()) return finish(status);
  on_progress_();
  if (landed_->parts.load() == num_parts_) return on_landed();
  land();
}

void Piece::land() {
  phase_ = Phase::kLanding;
  landed_ = std::make_shared<Landing>();
  landing_ = SlicedJob::start(
      context_.loop, context_.pool, num_parts_, [this](std::size_t part) { land_part(part, {}); },
      [this] { on_landed(); });
}

std::size_t Piece::num_units() const {
  return window_blocks().size() * static_cast<std::size_t>(windows_[window_].num_layers());
}

/// Pool threads. Everything that they touch is theirs or stays unchanged until the window has landed. `sums` may be
/// empty: then they are made here.
void Piece::land_part(std::size_t part, std::span<const std::uint32_t> sums) {
  const std::size_t pieces = pieces_per_block(1, owner_->num_heads());
  const std::size_t first = part * units_per_part_;
  const std::size_t end = std::min(num_units(), first + units_per_part_);
  for (std::size_t unit = first; unit < end; ++unit)
    land_unit(unit, sums.empty() ? sums : sums.subspan((unit - first) * pieces, pieces));
  landed_->parts.fetch_add(1);
}

void Piece::land_unit(std::size_t unit, std::span<const std::uint32_t> sums) {
  const Extent& window = windows_[window_];
  const std::span<const wire::GrantedBlock> blocks = window_blocks();
  const std::int32_t size = owner_->common().block_size;
  const std::size_t block = unit % blocks.size();
  Extent extent = clip_to_block(window.first_token / size + static_cast<std::int64_t>(block), size, window);
  extent.first_layer = window.first_layer + static_cast<std::int32_t>(unit / blocks.size());
  extent.end_layer = extent.first_layer + 1;
  if (context_.options.hooks.verify) {
    std::vector<std::uint32_t> made;
    if (sums.empty()) {
      made.resize(pieces_per_block(1, owner_->num_heads()));
      piece_checksums(arrived(), extent, made);
      sums = made;
    }
    const auto layer = static_cast<std::size_t>(extent.first_layer - order_.extent.first_layer);
    const auto first_block = static_cast<std::size_t>(blocks.data() - blocks_.data());
    const std::size_t at = (first_block + block) * grant_->pieces_per_block + layer * sums.size();
    const auto wrong = std::mismatch(sums.begin(), sums.end(), checksums_.begin() + static_cast<std::ptrdiff_t>(at));
    if (wrong.first != sums.end()) return landed_->report(at + static_cast<std::size_t>(wrong.first - sums.begin()));
  }
  spread(arrived(), home(), extent);
}

void Piece::on_landed() {
  if (!failure_.ok()) return finish(failure_);
  if (const std::uint64_t mismatch = landed_->mismatch.load(); mismatch != kNoMismatch)
    return finish(mismatch_error(mismatch));
  on_progress_();
  if (++window_ == windows_.size()) return finish({});
  move();
}

Status Piece::mismatch_error(std::uint64_t index) const {
  const std::size_t within = index % grant_->pieces_per_block;
  const auto heads = static_cast<std::size_t>(owner_->num_heads());
  return Status(Code::kDataLoss,
                fmt::format("checksum of the prefiller's block {} (layer {}, {}, KV head {}) does not match what "
                            "arrived",
                            blocks_[index / grant_->pieces_per_block].block,
                            static_cast<std::size_t>(order_.extent.first_layer) + within / (2 * heads),
                            within / heads % 2 == 0 ? "K" : "V", within % heads),
                Scope::kTransfer);
}

// ---- ends

void Piece::fail(Status why) {
  if (!failure_.ok()) return;
  failure_ = std::move(why);
  switch (phase_) {
    case Phase::kGranting:
      return finish(failure_);
    case Phase::kMoving:
      return move_->cancel();
    case Phase::kLanding:
      return landing_->cancel();
  }
}

void Piece::finish(Status status) {
  if (link_->ready()) link_->send(wire::FetchEnded{order_.id});
  const std::function<void(Status)> done = std::exchange(done_, nullptr);
  done(std::move(status));
}

}  // namespace tandem::transfer
