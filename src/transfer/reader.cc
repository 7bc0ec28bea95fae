// SPDX-License-Identifier: Apache-2.0
#include "transfer/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "transfer/checksum.h"

namespace tandem::transfer {
namespace {

constexpr std::size_t kVerifySliceBytes = std::size_t{2} << 20;

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

/// The first wrong checksum that any slice saw.
struct Reader::Mismatch {
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};
  std::atomic<std::uint64_t> piece{kNone};

  void report(std::uint64_t index) {
    std::uint64_t known = piece.load();
    while (index < known && !piece.compare_exchange_weak(known, index)) {
    }
  }
};

Reader::~Reader() {
  for (const auto& [key, link] : links_) link->close();
}

std::shared_ptr<OwnerLink> Reader::link_to(const Handover& source) {
  OwnerLink::Key key{source.host, static_cast<std::uint16_t>(source.port + context_.options.tp_rank),
                     source.lease.incarnation};
  std::shared_ptr<OwnerLink>& link = links_[key];
  if (link) return link;
  OwnerLink::Events events;
  events.on_ready = [this](OwnerLink& ready) {
    for (const auto& [id, active] : active_) {
      if (active->link.get() == &ready && active->phase == Phase::kConnecting) request(*active);
    }
  };
  events.on_failed = [this](OwnerLink& failed, const Status& why) { on_link_failed(failed, why); };
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

// ---- a fetch, step by step

Status Reader::check(const Fetch& fetch) const {
  const kv::Layout& layout = context_.memory.layout();
  const auto bad = [](std::string what) { return Status(Code::kInvalidArgument, std::move(what), Scope::kTransfer); };
  if (fetch.first_token < 0 || fetch.end_token < fetch.first_token || fetch.end_token > fetch.source.num_tokens ||
      fetch.first_token % layout.block_size != 0) {
    return bad(fmt::format("cannot fetch tokens [{}, {}) of {}: the first must be a multiple of the block size {}",
                           fetch.first_token, fetch.end_token, fetch.source.num_tokens, layout.block_size));
  }
  const std::int64_t needed = (fetch.end_token - fetch.first_token + layout.block_size - 1) / layout.block_size;
  if (static_cast<std::int64_t>(fetch.destination.size()) < needed) {
    return bad(fmt::format("{} destination blocks for {} tokens, {} are needed", fetch.destination.size(),
                           fetch.end_token - fetch.first_token, needed));
  }
  for (const kv::BlockId block : fetch.destination) {
    if (block < 0 || block >= layout.num_blocks) return bad(fmt::format("destination block {} does not exist", block));
  }
  return {};
}

void Reader::fetch(FetchId id, Fetch fetch, FetchDone done) {
  auto owned = std::make_unique<Active>();
  Active& active = *owned;
  active.id = id;
  active.fetch = std::move(fetch);
  active.done = std::move(done);
  active.started = active.connected = active.phase_started = active.last_progress = context_.loop.now();
  active_.emplace(id, std::move(owned));
  if (stopping_) return finish(id, Status(Code::kCancelled, "the transfer engine is stopping", Scope::kTransfer));
  active.link = link_to(active.fetch.source);
  active.link->begin_fetch(active.fetch.source.lease.id);
  Status checked = check(active.fetch);
  if (!checked.ok()) return finish(id, std::move(checked));
  if (active.fetch.first_token == active.fetch.end_token) return finish(id, {});  // all of it is here already
  watch_progress(id);
  if (active.link->ready()) {
    request(active);
  } else {
    active.link->connect();
  }
}

void Reader::request(Active& active) {
  active.phase = Phase::kGranting;
  active.connected = active.last_progress = context_.loop.now();
  active.requested = true;
  active.stats.transport = active.link->transport().name();
  const auto via = active.stats.transport == "shm" ? wire::Via::kShm : wire::Via::kTcp;
  const Handover& source = active.fetch.source;
  active.link->send(wire::FetchRequest{active.id, source.lease, via, active.fetch.first_token, active.fetch.end_token});
}

void Reader::on_message(OwnerLink& link, wire::Message message) {
  if (auto* blocks = std::get_if<wire::GrantBlocks>(&message)) return on_grant_blocks(link, std::move(*blocks));
  if (const auto* grant = std::get_if<wire::Grant>(&message)) return on_grant(link, *grant);
  if (const auto* error = std::get_if<wire::FetchError>(&message)) {
    Active* active = find(error->fetch, link);
    if (active != nullptr) fail(*active, Status(error->code, error->message, Scope::kTransfer));
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
  std::vector<FetchId> affected;
  for (const auto& [id, active] : active_) {
    if (active->link.get() == &link && active->fetch.source.lease.id == lease) affected.push_back(id);
  }
  for (const FetchId id : affected) {
    if (Active* active = find(id)) {
      fail(*active, Status(Code::kUnavailable, fmt::format("the lease of its blocks is over: {}", ended_name(reason)),
                           Scope::kTransfer));
    }
  }
}

void Reader::on_grant(const OwnerLink& link, const wire::Grant& grant) {
  Active* active = find(grant.fetch, link);
  if (active == nullptr || active->phase != Phase::kGranting || active->granted) return;
  const kv::Layout& theirs = link.owner().layout;
  const auto first = active->fetch.first_token / theirs.block_size;
  const auto last = (active->fetch.end_token - 1) / theirs.block_size;
  if (grant.num_blocks != static_cast<std::uint64_t>(last - first + 1) ||
      grant.pieces_per_block != pieces_per_block(theirs)) {
    return fail(*active, Status(Code::kDataLoss,
                                fmt::format("granted {} blocks of {} checksums, expected {} of {}", grant.num_blocks,
                                            grant.pieces_per_block, last - first + 1, pieces_per_block(theirs)),
                                Scope::kTransfer));
  }
  active->granted = true;
  active->grant = grant;
  active->last_progress = context_.loop.now();
}

void Reader::on_grant_blocks(OwnerLink& link, wire::GrantBlocks message) {
  Active* active = find(message.fetch, link);
  if (active == nullptr || active->phase != Phase::kGranting) return;
  const std::size_t base = static_cast<std::size_t>(active->fetch.first_token / link.owner().layout.block_size);
  const std::vector<kv::BlockId>& promised = active->fetch.source.blocks;
  if (!active->granted || message.first != active->blocks.size() ||
      message.blocks.size() > active->grant.num_blocks - active->blocks.size() ||
      message.checksums.size() != message.blocks.size() * active->grant.pieces_per_block) {
    return fail(*active, Status(Code::kDataLoss, "the prefiller's grant does not fit together", Scope::kTransfer));
  }
  for (std::size_t i = 0; i < message.blocks.size(); ++i) {
    const std::size_t index = base + message.first + i;
    if (index < promised.size() && promised[index] == message.blocks[i].block) continue;
    return fail(*active,
                Status(Code::kDataLoss,
                       fmt::format("the hand-over lists block {} at place {}, the lease has block {}",
                                   index < promised.size() ? promised[index] : -1, index, message.blocks[i].block),
                       Scope::kTransfer));
  }
  active->blocks.insert(active->blocks.end(), message.blocks.begin(), message.blocks.end());
  active->checksums.insert(active->checksums.end(), message.checksums.begin(), message.checksums.end());
  active->last_progress = context_.loop.now();
  if (active->blocks.size() == active->grant.num_blocks) move(*active);
}

void Reader::move(Active& active) {
  const TimePoint now = context_.loop.now();
  active.stats.wait_seconds = seconds(now - active.started);
  PlanInput input;
  input.sources = {&active.link->owner().layout, 1};
  input.destination = context_.memory.layout();
  input.source_blocks = active.fetch.source.blocks;
  input.destination_blocks = active.fetch.destination;
  input.first_token = active.fetch.first_token;
  input.end_token = active.fetch.end_token;
  auto plan = make_plan(input);
  if (!plan) return fail(active, plan.error());
  TANDEM_ASSERT(!plan->convert, "the handshake lets only equal element types through");
  active.plan = std::move(*plan);
  active.stats.bytes = active.plan.source_bytes;
  active.stats.copies = active.plan.copies.size();
  active.phase = Phase::kMoving;
  active.phase_started = now;
  MoveRequest request;
  request.token = active.grant.token;
  request.copies = active.plan.copies;
  request.blocks = active.blocks;
  request.destination = context_.memory.data();
  request.on_progress = [this, id = active.id](std::uint64_t) {
    if (Active* moving = find(id)) moving->last_progress = context_.loop.now();
  };
  request.on_done = [this, id = active.id](const Status& status) { on_moved(id, status); };
  active.move = active.link->transport().start(std::move(request));
}

void Reader::on_moved(FetchId id, const Status& status) {
  Active& active = *active_.at(id);
  const TimePoint now = context_.loop.now();
  active.stats.copy_seconds = seconds(now - active.phase_started);
  if (!active.failure.ok()) return finish(id, active.failure);
  if (!status.ok()) return finish(id, status);
  active.phase = Phase::kVerifying;
  active.phase_started = active.last_progress = now;
  verify(active);
}

void Reader::verify(Active& active) {
  // Everything that pool threads touch is theirs or stays unchanged until on_verified.
  const kv::Layout theirs = active.link->owner().layout;
  const auto mismatch = std::make_shared<Mismatch>();
  const std::size_t pieces = active.grant.pieces_per_block;
  const std::size_t block_bytes = theirs.block_bytes() * static_cast<std::size_t>(theirs.num_layers);
  const std::size_t width = std::max<std::size_t>(1, kVerifySliceBytes / block_bytes);
  const auto base = static_cast<std::size_t>(active.fetch.first_token / theirs.block_size);
  const TokenRange range{active.fetch.first_token, active.fetch.end_token};
  active.verify = SlicedJob::start(
      context_.loop, context_.pool, (active.blocks.size() + width - 1) / width,
      [memory = &context_.memory, &active, mismatch, pieces, width, base, range,
       size = theirs.block_size](std::size_t s) {
        const kv::Layout& ours = memory->layout();
        std::vector<std::uint32_t> sums(pieces);
        const std::size_t end = std::min(active.blocks.size(), (s + 1) * width);
        for (std::size_t block = s * width; block < end; ++block) {
          piece_checksums(ours, memory->data(), active.fetch.destination, range.first / ours.block_size,
                          clip_to_block(base + block, size, range), sums);
          for (std::size_t piece = 0; piece < pieces; ++piece) {
            if (sums[piece] != active.checksums[block * pieces + piece]) mismatch->report(block * pieces + piece);
          }
        }
      },
      [this, id = active.id, mismatch] { on_verified(id, *mismatch); });
}

void Reader::on_verified(FetchId id, const Mismatch& mismatch) {
  Active& active = *active_.at(id);
  active.stats.verify_seconds = seconds(context_.loop.now() - active.phase_started);
  if (!active.failure.ok()) return finish(id, active.failure);
  const std::uint64_t piece = mismatch.piece.load();
  if (piece == Mismatch::kNone) return finish(id, {});
  const std::size_t pieces = active.grant.pieces_per_block;
  const auto heads = static_cast<std::size_t>(context_.memory.layout().num_kv_heads);
  const std::size_t within = piece % pieces;
  finish(id, Status(Code::kDataLoss,
                    fmt::format(
                        "checksum of the prefiller's block {} (layer {}, {}, KV head {} of the rank) does not match "
                        "what arrived over {}",
                        active.blocks[piece / pieces].block, within / (2 * heads), within / heads % 2 == 0 ? "K" : "V",
                        within % heads, active.stats.transport),
                    Scope::kTransfer));
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
  fail(*active, Status(Code::kDeadlineExceeded,
                       fmt::format("no progress for {} ms", context_.options.fetch_timeout.count()), Scope::kTransfer));
}

void Reader::cancel(FetchId id) {
  if (Active* active = find(id)) fail(*active, Status(Code::kCancelled, "cancelled", Scope::kTransfer));
}

void Reader::fail(Active& active, Status why) {
  if (!active.failure.ok()) return;
  active.failure = std::move(why);
  switch (active.phase) {
    case Phase::kConnecting:
    case Phase::kGranting:
      return finish(active.id, active.failure);
    case Phase::kMoving:
      return active.move->cancel();
    case Phase::kVerifying:
      return active.verify->cancel();
  }
}

void Reader::on_link_failed(OwnerLink& link, const Status& why) {
  std::vector<FetchId> affected;
  for (const auto& [id, active] : active_) {
    if (active->link.get() == &link) affected.push_back(id);
  }
  bool again = false;
  for (const FetchId id : affected) {
    Active* active = find(id);
    if (active == nullptr) continue;
    // A connection that broke while it was idle shows only now. Nothing has moved yet, so asking once more is safe.
    if (active->phase == Phase::kGranting && !active->retried && why.code() == Code::kUnavailable && !stopping_) {
      active->retried = again = true;
      active->phase = Phase::kConnecting;
      active->granted = false;
      active->blocks.clear();
      active->checksums.clear();
    } else {
      fail(*active, why);
    }
  }
  if (again) link.connect();
}

std::string Reader::subject(const Active& active) {
  const Handover& source = active.fetch.source;
  return fmt::format("fetch of tokens [{}, {}) of lease {:x} from '{}' at {}", active.fetch.first_token,
                     active.fetch.end_token, source.lease.id, source.engine_id,
                     endpoint_name(source.host, source.port));
}

void Reader::finish(FetchId id, Status status) {
  const auto found = active_.find(id);
  const std::unique_ptr<Active> active = std::move(found->second);
  active_.erase(found);
  context_.loop.cancel(active->deadline);
  if (active->link) {
    if (active->requested && active->link->ready()) active->link->send(wire::FetchEnded{id});
    active->link->end_fetch(active->fetch.source.lease.id, status.ok());
  }
  TransferMetrics& metrics = context_.metrics;
  if (status.ok()) {
    (active->stats.transport == "shm" ? metrics.bytes_shm : metrics.bytes_tcp)
        .add(static_cast<double>(active->stats.bytes));
    metrics.copies.add(static_cast<double>(active->stats.copies));
    metrics.seconds.observe(seconds(context_.loop.now() - active->started));
    active->done(id, active->stats);
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

Reader::Active* Reader::find(FetchId id, const OwnerLink& from) {
  Active* active = find(id);
  return active != nullptr && active->link.get() == &from ? active : nullptr;
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
