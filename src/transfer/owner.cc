// SPDX-License-Identifier: Apache-2.0
// Connections and leases of the owner's side; owner_reads.cc has checksums and grants.
#include "transfer/owner.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "transfer/peer_memory.h"

namespace tandem::transfer {
namespace {

constexpr std::size_t kMaxConnections = 8192;

wire::Ended to_wire(LeaseEnd end) {
  switch (end) {
    case LeaseEnd::kDone:
      return wire::Ended::kDone;
    case LeaseEnd::kDropped:
      return wire::Ended::kDropped;
    case LeaseEnd::kExpired:
      return wire::Ended::kExpired;
    case LeaseEnd::kPeerDied:
      return wire::Ended::kPeerDied;
    case LeaseEnd::kRevoked:
      return wire::Ended::kRevoked;
  }
  return wire::Ended::kUnknown;
}

}  // namespace

Owner::Owner(Context& context, Socket listener, Socket memory_listener, std::string memory_name)
    : context_(context),
      listener_(std::move(listener)),
      memory_listener_(std::move(memory_listener)),
      memory_name_(memory_listener_ ? std::move(memory_name) : ""),
      table_(context.options.lease_term),
      sums_(context.memory) {}

Owner::~Owner() = default;

void Owner::start() {
  acceptor_.emplace(context_.loop, std::move(listener_), [this](Socket socket, std::string address) {
    on_connected(std::move(socket), std::move(address));
  });
  if (memory_listener_) {
    memory_acceptor_.emplace(context_.loop, std::move(memory_listener_),
                             [this](const Socket& socket, const std::string&) {
                               const kv::CacheMemory& memory = context_.memory;
                               serve_memory(socket, memory.fd(), memory.mapped_bytes(), memory.generations_offset());
                             });
  }
  tick();
}

// ---- connections

void Owner::on_connected(Socket socket, std::string address) {
  if (peers_.size() >= kMaxConnections) return;  // closed by going out of scope
  tune(socket, context_.options.lease_term);
  const ConnectionId id = next_connection_++;
  Peer& peer = peers_[id];
  Channel channel(std::move(socket), context_.options.tls, Channel::Side::kServer);
  peer.connection = std::make_shared<Connection>(context_.loop, std::move(channel), std::move(address));
  peer.connection->on_writable([this, id] {
    const auto found = peers_.find(id);
    if (found == peers_.end()) return;
    if (!found->second.sender) return pump_grants(found->second);
    if (!found->second.sender->on_writable()) drop_connection(id);
  });
  peer.connection->start([this, id](wire::Message message) { on_message(id, std::move(message)); },
                         [this, id](const Status& why) { on_closed(id, why); });
  context_.loop.after(context_.options.connect_timeout, [this, id] {
    const auto found = peers_.find(id);
    if (found != peers_.end() && !found->second.identity && !found->second.sender) drop_connection(id);
  });
}

void Owner::on_closed(ConnectionId id, const Status& why) {
  const auto found = peers_.find(id);
  if (found == peers_.end()) return;
  // Who does not fit comes back at once, and again.
  const std::string& peer = found->second.connection->peer();
  if (why.code() != Code::kUnavailable && misfits_.due(peer.substr(0, peer.find(' '))))
    log::warning("transfer: {}", why.message());
  drop_connection(id);
}

void Owner::drop_connection(ConnectionId id) {
  const auto found = peers_.find(id);
  if (found == peers_.end()) return;
  Peer peer = std::move(found->second);
  peers_.erase(found);
  peer.connection->close();
  if (peer.sender) {
    const auto read = reads_.find(peer.token);
    if (read != reads_.end() && read->second.data == id) read->second.data = 0;
  }
  std::vector<Token> tokens;
  for (const auto& [fetch, token] : peer.reads) tokens.push_back(token);
  for (const Token token : tokens) end_read(token, {});
  if (!peer.identity) return;
  for (auto& [lease, info] : leases_) info.holders.erase(id);
  const auto count = control_connections_.find(peer.identity->incarnation);
  if (count != control_connections_.end() && --count->second == 0) {
    control_connections_.erase(count);
    table_.holder_lost(peer.identity->incarnation, context_.loop.now());
  }
}

void Owner::refuse(ConnectionId id, Status why) {
  const auto found = peers_.find(id);
  if (found == peers_.end()) return;
  // A data connection that comes after its grant has ended is a cancelled fetch, nothing to worry about.
  if (why.code() != Code::kUnavailable) {
    log::warning("transfer: {}: {}", found->second.connection->peer(), why.message());
  }
  found->second.connection->send(wire::Refused{why.code(), why.message()});
  drop_connection(id);
}

// ---- messages

void Owner::on_message(ConnectionId id, wire::Message message) {
  // A lease is known from the moment its hand-over can be in anybody's hands.
  absorb_opened();
  const auto found = peers_.find(id);
  if (found == peers_.end()) return;
  Peer& peer = found->second;
  const bool attach = std::holds_alternative<wire::Attach>(message);
  const bool opener =
      attach || std::holds_alternative<wire::Hello>(message) || std::holds_alternative<wire::Offer>(message);
  const bool pull = std::holds_alternative<wire::Pull>(message);
  const bool in_order = peer.sender ? attach || pull : peer.identity ? !opener && !pull : opener;
  if (!in_order) {
    return refuse(id, Status(Code::kInvalidArgument, fmt::format("message {} out of order", message.index() + 1)));
  }
  std::visit(
      [&](const auto& value) {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, wire::Done>) {
          release(peer, value.lease, LeaseEnd::kDone);
        } else if constexpr (std::is_same_v<T, wire::Drop>) {
          release(peer, value.lease, LeaseEnd::kDropped);
        } else if constexpr (std::is_same_v<T, wire::Refused>) {
          log::warning("transfer: {} gives up: {}", peer.connection->peer(), value.message);
          drop_connection(id);
        } else if constexpr (requires { handle(id, peer, value); }) {
          handle(id, peer, value);
        } else {
          refuse(id,
                 Status(Code::kInvalidArgument, fmt::format("message {} is not for an owner", message.index() + 1)));
        }
      },
      message);
}

void Owner::handle(ConnectionId, Peer& peer, const wire::Hello& message) {
  peer.identity = message.identity;
  peer.compatible = check_compatible(context_.identity, message.identity);
  ++control_connections_[message.identity.incarnation];
  if (!peer.compatible.ok()) log::error("transfer: {}", peer.compatible.message());
  wire::Welcome welcome;
  welcome.identity = context_.identity;
  welcome.lease_term_ms = static_cast<std::uint32_t>(context_.options.lease_term.count());
  welcome.shm_name = memory_name_;
  peer.connection->send(welcome);
}

void Owner::handle(ConnectionId id, Peer& peer, const wire::Hold& message) {
  if (renew_one(id, peer, message.lease)) {
    const Lease& held = leases_.at(message.lease.id);
    if (held.growing) send_progress(message.lease.id, held, *peer.connection);
    return;
  }
  peer.connection->send(wire::LeasesEnded{{{message.lease, why_gone(message.lease)}}});
}

void Owner::handle(ConnectionId id, Peer& peer, const wire::Renew& message) {
  wire::LeasesEnded gone;
  for (const LeaseId lease : message.leases) {
    if (!renew_one(id, peer, lease)) gone.leases.emplace_back(lease, why_gone(lease));
  }
  if (!gone.leases.empty()) peer.connection->send(gone);
  peer.connection->send(wire::RenewReply{message.sequence});
}

bool Owner::renew_one(ConnectionId id, Peer& peer, LeaseId lease) {
  const bool renewed = peer.compatible.ok() && lease.incarnation == context_.identity.incarnation &&
                       table_.renew(lease.id, peer.identity->incarnation, context_.loop.now());
  if (!renewed) {
    context_.metrics.ignored_messages.add();
    return false;
  }
  Lease& held = leases_.at(lease.id);
  held.holders.insert(id);
  return true;
}

void Owner::handle(ConnectionId, Peer& peer, const wire::Offer& message) {
  const Status answer = on_offer_ ? on_offer_(message)
                                  : Status(Code::kFailedPrecondition,
                                           fmt::format("'{}' takes no layerwise pushes", context_.options.engine_id));
  peer.connection->send(wire::OfferReply{answer.code(), answer.message()});
}

wire::Ended Owner::why_gone(LeaseId lease) const {
  if (lease.incarnation != context_.identity.incarnation) return wire::Ended::kUnknown;
  const std::optional<LeaseEnd> end = table_.ended_as(lease.id);
  return end ? to_wire(*end) : wire::Ended::kUnknown;
}

void Owner::release(Peer& peer, LeaseId lease, LeaseEnd end) {
  const auto result = lease.incarnation == context_.identity.incarnation
                          ? table_.release(lease.id, peer.identity->incarnation, end)
                          : LeaseTable::Release::kIgnored;
  if (result == LeaseTable::Release::kIgnored) context_.metrics.ignored_messages.add();
  if (result == LeaseTable::Release::kEnded) end_lease(lease.id, end);
}

// ---- leases

std::uint64_t Owner::open_lease(std::vector<kv::BlockId> blocks, std::int64_t num_tokens, bool growing) {
  const kv::Layout& layout = context_.memory.layout();
  TANDEM_ASSERT(
      num_tokens >= 0 && (growing || num_tokens <= static_cast<std::int64_t>(blocks.size()) * layout.block_size),
      "a lease's blocks must hold its tokens");
  for (const kv::BlockId block : blocks) TANDEM_ASSERT(block >= 0 && block < layout.num_blocks, "unknown block");
  Opened opened{random_id(), std::move(blocks), num_tokens, growing};
  const std::uint64_t id = opened.lease;
  const std::lock_guard lock(opened_mutex_);
  opened_.push_back(std::move(opened));
  return id;
}

void Owner::absorb_opened() {
  std::vector<Opened> opened;
  {
    const std::lock_guard lock(opened_mutex_);
    opened.swap(opened_);
  }
  const auto num_layers = static_cast<std::size_t>(context_.memory.layout().num_layers);
  for (const Opened& one : opened) {
    Lease& lease = leases_[one.lease];
    lease.num_tokens = one.num_tokens;
    lease.growing = one.growing;
    lease.published.assign(num_layers, one.growing ? 0 : one.num_tokens);
    lease.summed.assign(num_layers, 0);
    add_blocks(lease, one.blocks);
    table_.open(one.lease, context_.loop.now());
    context_.metrics.leases_open.set(static_cast<double>(table_.size()));
    if (stopping_) {
      table_.revoke(one.lease);
      end_lease(one.lease, LeaseEnd::kRevoked);
    } else {
      sum_published(one.lease);
    }
  }
}

void Owner::add_blocks(Lease& lease, const std::vector<kv::BlockId>& blocks) {
  for (const kv::BlockId block : blocks) {
    lease.members.insert(block);
    lease.blocks.push_back(block);
    lease.generations.push_back(sums_.generation(block));
  }
  lease.sums.resize(lease.blocks.size());
  lease.known.resize(lease.blocks.size());
}

/// nullptr if it has ended: whoever computes its prompt may not know yet.
Owner::Lease* Owner::find_growing(LeaseId lease) {
  absorb_opened();
  if (lease.incarnation != context_.identity.incarnation || !table_.alive(lease.id)) return nullptr;
  Lease& found = leases_.at(lease.id);
  TANDEM_ASSERT(found.growing, "only a growing lease grows");
  return &found;
}

void Owner::extend(LeaseId lease, const std::vector<kv::BlockId>& blocks) {
  Lease* growing = find_growing(lease);
  if (growing == nullptr) return;
  const kv::Layout& layout = context_.memory.layout();
  for (const kv::BlockId block : blocks) TANDEM_ASSERT(block >= 0 && block < layout.num_blocks, "unknown block");
  add_blocks(*growing, blocks);
}

void Owner::publish(LeaseId lease, std::int32_t first_layer, std::int32_t end_layer, std::int64_t end_token) {
  Lease* growing = find_growing(lease);
  if (growing == nullptr) return;
  const kv::Layout& layout = context_.memory.layout();
  TANDEM_ASSERT(first_layer >= 0 && first_layer < end_layer && end_layer <= layout.num_layers,
                "a model's layers are published");
  TANDEM_ASSERT(end_token <= growing->num_tokens &&
                    end_token <= static_cast<std::int64_t>(growing->blocks.size()) * layout.block_size,
                "only tokens in the lease's blocks can be published");
  auto& published = growing->published;
  TANDEM_ASSERT(first_layer == 0 || published[static_cast<std::size_t>(first_layer) - 1] >= end_token,
                "a layer's KV comes after the layer before");
  for (auto layer = static_cast<std::size_t>(first_layer); layer < static_cast<std::size_t>(end_layer); ++layer) {
    TANDEM_ASSERT(published[layer] <= end_token, "what is published stays");
    published[layer] = end_token;
  }
  for (const ConnectionId holder : growing->holders) {
    const auto peer = peers_.find(holder);
    if (peer != peers_.end()) peer->second.connection->send(wire::Progress{lease, first_layer, end_layer, end_token});
  }
  sum_published(lease.id);
}

void Owner::send_progress(std::uint64_t id, const Lease& lease, Connection& holder) const {
  const LeaseId name{context_.identity.incarnation, id};
  const auto num_layers = static_cast<std::int32_t>(lease.published.size());
  for (std::int32_t first = 0; first < num_layers;) {
    const std::int64_t tokens = lease.published[static_cast<std::size_t>(first)];
    std::int32_t end = first + 1;
    while (end < num_layers && lease.published[static_cast<std::size_t>(end)] == tokens) ++end;
    if (tokens > 0) holder.send(wire::Progress{name, first, end, tokens});
    first = end;
  }
}

void Owner::revoke(LeaseId lease) {
  absorb_opened();
  if (lease.incarnation != context_.identity.incarnation || !table_.revoke(lease.id)) return;
  end_lease(lease.id, LeaseEnd::kRevoked);
}

void Owner::tick() {
  if (stopping_) return;
  for (const auto& [lease, end] : table_.expire(context_.loop.now())) end_lease(lease, end);
  const Duration pause =
      std::clamp<Duration>(context_.options.lease_term / 10, std::chrono::milliseconds(5), std::chrono::seconds(1));
  context_.loop.after(pause, [this] { tick(); });
}

void Owner::end_lease(std::uint64_t id, LeaseEnd end) {
  Lease& lease = leases_.at(id);
  lease.ended = end;
  context_.metrics.leases_open.set(static_cast<double>(table_.size()));
  if (lease.summing) lease.summing->cancel();
  if (end != LeaseEnd::kDone && end != LeaseEnd::kDropped) tell_holders(id, lease, to_wire(end));
  ++lease.pins;  // until all reads are gone through
  const Status why(Code::kUnavailable,
                   fmt::format("the prefiller ended the lease of these blocks: {}", lease_end_name(end)),
                   Scope::kTransfer);
  const std::vector<Token> tokens(lease.reads.begin(), lease.reads.end());
  for (const Token token : tokens) {
    Read& read = reads_.at(token);
    const bool mapped = read.via == wire::Via::kShm && read.granted;
    if (end == LeaseEnd::kRevoked && mapped && !stopping_) {
      // We cannot stop a mapped read; its reader says when it has stopped, or has no more than its grace.
      read.leaving = true;
      ++lease.pins;
      peers_.at(read.control).connection->send(wire::FetchError{read.fetch, why.code(), why.message()});
      context_.loop.after(context_.options.lease_term / 3, [this, token] { end_read(token, {}); });
    } else {
      end_read(token, why);
    }
  }
  unpin(id);
}

void Owner::tell_holders(std::uint64_t id, const Lease& lease, wire::Ended reason) {
  for (const ConnectionId holder : lease.holders) {
    const auto peer = peers_.find(holder);
    if (peer == peers_.end()) continue;
    peer->second.connection->send(wire::LeasesEnded{{{LeaseId{context_.identity.incarnation, id}, reason}}});
  }
}

void Owner::unpin(std::uint64_t id) {
  const auto found = leases_.find(id);
  TANDEM_ASSERT(found != leases_.end() && found->second.pins > 0, "a lease lost its pin");
  if (--found->second.pins > 0 || !found->second.ended) return;
  const LeaseEnd end = *found->second.ended;
  leases_.erase(found);
  context_.metrics.count_end(end);
  if (on_lease_end_) on_lease_end_(LeaseId{context_.identity.incarnation, id}, end);
  if (stopping_ && leases_.empty() && stopped_) std::exchange(stopped_, nullptr)();
}

void Owner::stop(std::function<void()> stopped) {
  stopping_ = true;
  acceptor_.reset();
  memory_acceptor_.reset();
  absorb_opened();
  for (const std::uint64_t id : table_.ids()) {
    table_.revoke(id);
    end_lease(id, LeaseEnd::kRevoked);
  }
  std::vector<ConnectionId> connections;
  for (const auto& [id, peer] : peers_) connections.push_back(id);
  for (const ConnectionId id : connections) drop_connection(id);
  if (leases_.empty()) return stopped();
  stopped_ = std::move(stopped);
}

}  // namespace tandem::transfer
