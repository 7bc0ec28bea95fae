// SPDX-License-Identifier: Apache-2.0
#include "transfer/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/log.h"

namespace tandem::transfer {
namespace {

/// Of one piece, if its layer is not larger: small enough that what arrived is verified while it is still in a cache
/// and while more arrives, large enough that a round trip a piece costs little.
constexpr std::size_t kPieceBytes = std::size_t{4} << 20;
/// Pieces of one fetch or reception under way: enough to hide the round trips of each, few enough that what is
/// published meanwhile comes together in larger ones.
constexpr std::size_t kPiecesAhead = 4;
/// With more fetches than this at a time, they hide each other's round trips, and connections are saved instead.
constexpr std::size_t kManyFetches = 64;

std::string_view ended_name(wire::Ended reason) {
  switch (reason) {
    case wire::Ended::kDone:
      return "done";
    case wire::Ended::kDropped:
      return "dropped";
    case wire::Ended::kExpired:
      return "expired";
    case wire::Ended::kPeerDied:
      return "its reader was lost";
    case wire::Ended::kRevoked:
      return "revoked";
    case wire::Ended::kUnknown:
      return "unknown to the prefiller";
  }
  return "?";
}

}  // namespace

Reader::~Reader() {
  for (const auto& [key, link] : links_) link->close();
}

std::shared_ptr<OwnerLink> Reader::link_to(const Handover& source) {
  OwnerLink::Key key{source.host, source.port, source.lease.incarnation};
  std::shared_ptr<OwnerLink>& link = links_[key];
  if (link) return link;
  OwnerLink::Events events;
  events.on_ready = [this](OwnerLink& ready) { on_ready(ready); };
  events.on_failed = [this](OwnerLink& failed, const Status& why, bool gone) { on_link_failed(failed, why, gone); };
  events.on_message = [this](OwnerLink& from, wire::Message message) { on_message(from, std::move(message)); };
  events.on_unused = [this](OwnerLink& unused) {
    const auto found = links_.find(unused.key());
    if (found == links_.end() || found->second.get() != &unused) return;
    const std::shared_ptr<OwnerLink> gone = std::move(found->second);
    links_.erase(found);
    gone->close();
  };
  link = std::make_shared<OwnerLink>(context_, std::move(key), source.engine_id, std::move(events));
  return link;
}

void Reader::hold(const Handover& source) {
  if (!stopping_) link_to(source)->hold(source.lease.id);
}

void Reader::drop(const Handover& source) {
  if (!stopping_) link_to(source)->drop(source.lease.id);
}

// ---- beginnings

Reader::Active& Reader::add(FetchId id, FetchDone done) {
  Active& active = *active_.emplace(id, std::make_unique<Active>()).first->second;
  active.id = id;
  active.done = std::move(done);
  active.started = active.last_progress = context_.loop.now();
  return active;
}

Status Reader::check_extent(const Active& active, std::int64_t num_tokens) const {
  if (stopping_) return Status(Code::kCancelled, "the transfer engine is stopping", Scope::kTransfer);
  const kv::Layout& layout = context_.memory.layout();
  const auto bad = [](std::string what) { return Status(Code::kInvalidArgument, std::move(what), Scope::kTransfer); };
  if (active.first_token < 0 || active.end_token < active.first_token || active.end_token > num_tokens ||
      active.first_token % layout.block_size != 0) {
    return bad(fmt::format("cannot fetch tokens [{}, {}) of {}: the first must be a multiple of the block size {}",
                           active.first_token, active.end_token, num_tokens, layout.block_size));
  }
  const BlockSpan needed = blocks_of({0, 0, active.first_token, active.end_token}, layout.block_size);
  if (std::ssize(active.destination) < needed.count) {
    return bad(fmt::format("{} destination blocks for {} tokens, {} are needed", active.destination.size(),
                           active.end_token - active.first_token, needed.count));
  }
  for (const kv::BlockId block : active.destination) {
    if (block < 0 || block >= layout.num_blocks) return bad(fmt::format("destination block {} does not exist", block));
  }
  return {};
}

void Reader::fetch(FetchId id, Fetch fetch, FetchDone done) {
  Active& active = add(id, std::move(done));
  active.source = std::move(fetch.source);
  active.destination = std::move(fetch.destination);
  active.first_token = fetch.first_token;
  active.end_token = fetch.end_token;
  if (!stopping_) {
    active.link = link_to(active.source);
    active.link->begin_fetch(active.source.lease.id);
  }
  Status checked = check_extent(active, active.source.num_tokens);
  if (!checked.ok()) return finish(id, std::move(checked));
  begin(active);
  active.published.assign(active.published.size(), active.end_token);
  move_on(id);
}

void Reader::begin(Active& active) {
  const auto num_layers = static_cast<std::size_t>(context_.memory.layout().num_layers);
  active.published.assign(num_layers, active.first_token);
  active.asked.assign(num_layers, active.first_token);
  watch_progress(active.id);
  active.connected = active.link->ready();
  if (!active.connected) active.link->connect();
}

// ---- pieces

/// What is published and not asked for: layers that are equally far, up to the owner's last whole block, cut to the
/// size of a piece.
std::optional<Extent> Reader::next_extent(const Active& active) const {
  const Shards& owner = *active.link->owner();
  const std::int64_t size = owner.common().block_size;
  const auto available = [&](std::size_t layer) {
    const std::int64_t tokens = active.published[layer];
    return tokens >= active.end_token ? active.end_token : tokens / size * size;
  };
  const std::size_t num_layers = active.asked.size();
  for (std::size_t first = 0; first < num_layers; ++first) {
    const std::int64_t from = active.asked[first];
    std::int64_t to = available(first);
    if (to <= from) continue;
    const auto most = static_cast<std::int64_t>(std::max<std::size_t>(1, kPieceBytes / owner.block_bytes()));
    const std::int64_t blocks = blocks_of({0, 0, from, to}, owner.common().block_size).count;
    if (blocks > most) to = (from / size + most) * size;
    const std::size_t layers = static_cast<std::size_t>(std::max<std::int64_t>(1, most / blocks));
    std::size_t end = first + 1;
    while (end < num_layers && end < first + layers && active.asked[end] == from && available(end) >= to) ++end;
    return Extent{static_cast<std::int32_t>(first), static_cast<std::int32_t>(end), from, to};
  }
  return std::nullopt;
}

void Reader::start_pieces(Active& active) {
  const std::size_t most = active_.size() > kManyFetches ? 1 : kPiecesAhead;
  while (active.pieces.size() < most) {
    const std::optional<Extent> extent = next_extent(active);
    if (!extent) return;
    for (std::int32_t layer = extent->first_layer; layer < extent->end_layer; ++layer) {
      active.asked[static_cast<std::size_t>(layer)] = extent->end_token;
    }
    const std::uint64_t number = next_piece_++;
    PieceOrder order;
    order.id = number;
    order.lease = active.source.lease;
    order.extent = *extent;
    order.home = active.destination;
    order.first_home = active.first_token / context_.memory.layout().block_size;
    order.promised = active.source.blocks;
    piece_owners_[number] = active.id;
    auto& piece = active.pieces[number];
    piece = std::make_unique<Piece>(
        context_, *active.link, order, [this, &active] { active.last_progress = context_.loop.now(); },
        [this, id = active.id, number](const Status& status) { on_piece_done(id, number, status); });
    piece->request();
  }
}

void Reader::on_piece_done(FetchId id, std::uint64_t number, const Status& status) {
  Active& active = *active_.at(id);
  const std::unique_ptr<Piece> piece = std::move(active.pieces.at(number));
  active.pieces.erase(number);
  piece_owners_.erase(number);
  active.stats.bytes += piece->bytes();
  active.stats.copies += piece->copies();
  active.moved = std::max(active.moved, piece->moved_at());
  if (status.ok()) active.retried = false;
  if (!status.ok() && active.failure.ok()) return fail(id, status);
  move_on(id);
}

/// Starts what can be started, or ends it.
void Reader::move_on(FetchId id) {
  Active* active = find(id);
  if (active == nullptr) return;
  if (!active->failure.ok()) {
    if (active->pieces.empty()) finish(id, active->failure);
    return;
  }
  const bool all_asked = std::all_of(active->asked.begin(), active->asked.end(),
                                     [active](std::int64_t tokens) { return tokens == active->end_token; });
  if (all_asked && active->pieces.empty()) return finish(id, {});
  if (!active->link->ready()) return;
  active->stats.transport = active->link->transport().name();
  start_pieces(*active);
}

// ---- what links say

void Reader::on_ready(OwnerLink& link) {
  for (const FetchId id : of_link(link)) {
    Active* active = find(id);
    if (active == nullptr) continue;
    active->connected = true;
    active->last_progress = context_.loop.now();
    for (const auto& [number, piece] : active->pieces) piece->request();
    move_on(id);
  }
}

void Reader::on_message(OwnerLink& link, wire::Message message) {
  if (const auto* progress = std::get_if<wire::Progress>(&message)) return on_progress(link, *progress);
  if (const auto* blocks = std::get_if<wire::GrantBlocks>(&message)) {
    if (Piece* piece = find_piece(blocks->fetch, link)) {
      Active& active = *active_.at(piece_owners_.at(blocks->fetch));
      if (!active.granted) active.granted = context_.loop.now();
      piece->on_grant_blocks(*blocks);
    }
    return;
  }
  if (const auto* grant = std::get_if<wire::Grant>(&message)) {
    if (Piece* piece = find_piece(grant->fetch, link)) piece->on_grant(*grant);
    return;
  }
  if (const auto* error = std::get_if<wire::FetchError>(&message)) {
    Piece* piece = find_piece(error->fetch, link);
    if (piece != nullptr) piece->fail(Status(error->code, error->message, Scope::kTransfer));
    return;
  }
  if (const auto* ended = std::get_if<wire::LeasesEnded>(&message)) {
    for (const auto& [lease, reason] : ended->leases) {
      if (lease.incarnation == link.key().incarnation) on_lease_ended(link, lease.id, reason);
    }
    return;
  }
  log::warning("transfer: prefiller {} sent an unexpected message (type {}); ignored", link.name(),
               message.index() + 1);
}

void Reader::on_lease_ended(OwnerLink& link, std::uint64_t lease, wire::Ended reason) {
  link.lease_over(lease);
  for (const FetchId id : of_link(link)) {
    const Active* active = find(id);
    if (active == nullptr || active->source.lease.id != lease) continue;
    fail(id, Status(Code::kUnavailable, fmt::format("the lease of its blocks is over: {}", ended_name(reason)),
                    Scope::kTransfer));
  }
}

void Reader::on_link_failed(OwnerLink& link, const Status& why, bool gone) {
  bool again = false;
  for (const FetchId id : of_link(link)) {
    Active* active = find(id);
    if (active == nullptr) continue;
    const bool still = std::all_of(active->pieces.begin(), active->pieces.end(),
                                   [](const auto& piece) { return piece.second->granting(); });
    // A connection that broke while it was idle shows only now. Nothing is moving, so asking once more is safe.
    if (!gone && still && active->connected && !active->retried && why.code() == Code::kUnavailable && !stopping_) {
      active->retried = again = true;
    } else {
      fail(id, why);
    }
  }
  if (again) link.connect();
}

// ---- ends

void Reader::watch_progress(FetchId id) {
  Active* active = find(id);
  if (active == nullptr || !active->failure.ok()) return;
  const TimePoint due = active->last_progress + context_.options.fetch_timeout;
  const TimePoint now = context_.loop.now();
  if (due > now) {
    active->deadline = context_.loop.after(due - now, [this, id] { watch_progress(id); });
    return;
  }
  fail(id, Status(Code::kDeadlineExceeded, fmt::format("no progress for {} ms", context_.options.fetch_timeout.count()),
                  Scope::kTransfer));
}

void Reader::cancel(FetchId id) { fail(id, Status(Code::kCancelled, "cancelled", Scope::kTransfer)); }

void Reader::fail(FetchId id, const Status& why) {
  Active* active = find(id);
  if (active == nullptr || !active->failure.ok()) return;
  active->failure = why;
  std::vector<std::uint64_t> numbers;
  for (const auto& [number, piece] : active->pieces) numbers.push_back(number);
  // The last one that ends takes `active` with it.
  for (const std::uint64_t number : numbers) {
    if (piece_owners_.contains(number)) active->pieces.at(number)->fail(why);
  }
  move_on(id);
}

std::string Reader::subject(const Active& active) {
  const Handover& source = active.source;
  const std::string tokens = fmt::format("tokens [{}, {})", active.first_token, active.end_token);
  if (active.awaited && !active.link) return fmt::format("reception {:x} of {}", active.awaited->name, tokens);
  return fmt::format("{} of {} of lease {:x} from '{}' at {}", active.awaited ? "reception" : "fetch", tokens,
                     source.lease.id, source.engine_id, endpoint_name(source.host, source.port));
}

void Reader::finish(FetchId id, Status status) {
  const auto found = active_.find(id);
  const std::unique_ptr<Active> active = std::move(found->second);
  active_.erase(found);
  context_.loop.cancel(active->deadline);
  if (active->awaited) receptions_.erase(active->awaited->name);
  if (active->link) active->link->end_fetch(active->source.lease.id, status.ok());
  TransferMetrics& metrics = context_.metrics;
  FetchStats& stats = active->stats;
  if (status.ok()) {
    const TimePoint now = context_.loop.now();
    if (active->granted) {
      stats.wait_seconds = seconds(*active->granted - active->started);
      stats.copy_seconds = seconds(active->moved - *active->granted);
      stats.verify_seconds = seconds(now - active->moved);
    }
    (stats.transport == "shm" ? metrics.bytes_shm : metrics.bytes_tcp).add(static_cast<double>(stats.bytes));
    metrics.copies.add(static_cast<double>(stats.copies));
    metrics.request_bytes.observe(static_cast<double>(stats.bytes));
    metrics.request_copies.observe(static_cast<double>(stats.copies));
    metrics.seconds.observe(seconds(now - active->started));
    active->done(id, stats);
  } else {
    metrics.count_failure(status.code());
    active->done(id, status.context(subject(*active)));
  }
  if (stopping_ && active_.empty() && stopped_) std::exchange(stopped_, nullptr)();
}

Reader::Active* Reader::find(FetchId id) {
  const auto found = active_.find(id);
  return found == active_.end() ? nullptr : found->second.get();
}

std::vector<FetchId> Reader::of_link(const OwnerLink& link) const {
  std::vector<FetchId> ids;
  for (const auto& [id, active] : active_) {
    if (active->link.get() == &link) ids.push_back(id);
  }
  return ids;
}

Piece* Reader::find_piece(std::uint64_t piece, const OwnerLink& from) {
  const auto found = piece_owners_.find(piece);
  if (found == piece_owners_.end()) return nullptr;
  Active& active = *active_.at(found->second);
  return active.link.get() == &from ? active.pieces.at(piece).get() : nullptr;
}

void Reader::stop(std::function<void()> stopped) {
  stopping_ = true;
  stopped_ = [this, stopped = std::move(stopped)] {
    for (const auto& [key, link] : links_) link->close();
    links_.clear();
    stopped();
  };
  std::vector<FetchId> all;
  for (const auto& [id, active] : active_) all.push_back(id);
  for (const FetchId id : all) cancel(id);
  if (active_.empty() && stopped_) std::exchange(stopped_, nullptr)();
}

}  // namespace tandem::transfer
