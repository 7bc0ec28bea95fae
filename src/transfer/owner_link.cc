// SPDX-License-Identifier: Apache-2.0
#include "transfer/owner_link.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace tandem::transfer {
namespace {

constexpr auto kFirstBackoff = std::chrono::milliseconds(50);
constexpr auto kUnusedAfter = std::chrono::seconds(30);
constexpr auto kMapTimeout = std::chrono::milliseconds(1000);
constexpr std::size_t kMaxReleases = 65536;  // to an owner that cannot be reached; its leases end by their term

}  // namespace

OwnerLink::OwnerLink(Context& context, Key key, std::string engine_id, Events events)
    : context_(context),
      key_(std::move(key)),
      engine_id_(std::move(engine_id)),
      name_(fmt::format("'{}' at {}", engine_id_, endpoint_name(key_.host, key_.port))),
      events_(std::move(events)),
      last_contact_(context.loop.now()),
      last_use_(last_contact_),
      backoff_(kFirstBackoff) {}

void OwnerLink::arm(EventLoop::TimerId& timer, Duration delay, std::function<void()> task) {
  context_.loop.cancel(timer);
  timer = context_.loop.after(delay, [weak = weak_from_this(), task = std::move(task)] {
    if (const auto self = weak.lock()) task();
  });
}

Duration OwnerLink::term() const {
  return welcome_ ? Duration(std::chrono::milliseconds(welcome_->lease_term_ms))
                  : Duration(context_.options.lease_term);
}

// ---- connecting

void OwnerLink::connect() {
  if (state_ != State::kIdle) return;
  state_ = State::kConnecting;
  ++attempt_;
  context_.loop.cancel(retry_);
  arm(deadline_, context_.options.connect_timeout, [this] {
    fail(Status(Code::kUnavailable,
                fmt::format("prefiller {} did not answer within {} ms; is it running, and is its KV port reachable?",
                            name_, context_.options.connect_timeout.count()),
                Scope::kPeer),
         false);
  });
  dialer_ = Dialer::start(context_.loop, context_.blocking, key_.host, key_.port, [this](Result<Socket> socket) {
    if (socket) return on_connected(std::move(*socket));
    fail(Status(Code::kUnavailable,
                fmt::format("cannot reach prefiller {}: {}; is it running?", name_, socket.error().message()),
                Scope::kPeer),
         false);
  });
}

void OwnerLink::on_connected(Socket socket) {
  tune(socket, context_.options.connect_timeout);
  Channel channel(std::move(socket), context_.options.tls, Channel::Side::kClient);
  connection_ = std::make_shared<Connection>(context_.loop, std::move(channel), name_);
  connection_->start([this](wire::Message message) { on_message(std::move(message)); },
                     [weak = weak_from_this(), connection = connection_.get()](const Status& why) {
                       const auto self = weak.lock();
                       if (self && self->connection_.get() == connection) self->fail(as_unreachable(why), false);
                     });
  connection_->send(wire::Hello{context_.identity});
}

void OwnerLink::on_message(wire::Message message) {
  const auto self = shared_from_this();
  last_contact_ = context_.loop.now();
  if (auto* refused = std::get_if<wire::Refused>(&message)) {
    return fail(
        Status(refused->code, fmt::format("prefiller {} refused us: {}", name_, refused->message), Scope::kPeer),
        false);
  }
  if (auto* welcome = std::get_if<wire::Welcome>(&message)) {
    if (!welcome_) return on_welcome(std::move(*welcome));
  } else if (welcome_) {
    if (const auto* reply = std::get_if<wire::RenewReply>(&message)) {
      renew_answered_ = std::max(renew_answered_, reply->sequence);
      return;
    }
    return events_.on_message(*this, std::move(message));
  }
  fail(Status(Code::kInvalidArgument, fmt::format("prefiller {} sent a message out of order", name_), Scope::kPeer),
       false);
}

Status OwnerLink::check_identity(const wire::Identity& owner) const {
  if (owner.engine_id != engine_id_) {
    return Status(Code::kUnavailable,
                  fmt::format("the hand-over is from engine '{}', but at {} there is '{}' now; prefill again",
                              engine_id_, endpoint_name(key_.host, key_.port), owner.engine_id),
                  Scope::kTransfer);
  }
  if (owner.incarnation != key_.incarnation) {
    return Status(
        Code::kUnavailable,
        fmt::format("the hand-over is from incarnation {:x} of prefiller {}, which is now incarnation {:x}: it was "
                    "restarted and its KV is gone; prefill again",
                    key_.incarnation, name_, owner.incarnation),
        Scope::kTransfer);
  }
  return {};
}

void OwnerLink::on_welcome(wire::Welcome welcome) {
  welcome_ = std::move(welcome);
  const Status identity = check_identity(welcome_->identity);
  if (!identity.ok()) return fail(identity, true);
  owner_ = std::make_shared<const Shards>(welcome_->identity.ranks);
  const Status compatible = check_compatible(context_.identity, welcome_->identity);
  if (!compatible.ok()) {
    // We can still say that we do not need the blocks.
    for (const auto& [lease, hold] : holds_) releases_.push_back({lease, false});
    flush_releases();
    return fail(compatible, true);
  }
  choose_transport();
}

void OwnerLink::choose_transport() {
  const wire::Identity& owner = welcome_->identity;
  const TransportChoice choice = context_.options.transport;
  const bool same_host = !owner.boot_id.empty() && owner.boot_id == context_.identity.boot_id;
  if (choice == TransportChoice::kShm && (!same_host || welcome_->shm_name.empty())) {
    return fail(Status(Code::kFailedPrecondition,
                       fmt::format("shared memory was demanded, but prefiller {} {}; use --kv-transport auto or tcp",
                                   name_, same_host ? "offers none" : "is on another host"),
                       Scope::kPeer),
                true);
  }
  if (choice == TransportChoice::kTcp || !same_host || welcome_->shm_name.empty())
    return on_mapped(Status(Code::kUnavailable, ""));
  context_.blocking.submit([weak = weak_from_this(), &loop = context_.loop, attempt = attempt_,
                            name = welcome_->shm_name, bytes = owner_->end(), blocks = owner_->common().num_blocks] {
    auto memory =
        std::make_shared<Result<std::shared_ptr<PeerMemory>>>(map_peer_memory(name, bytes, blocks, kMapTimeout));
    loop.post([weak, attempt, memory] {
      const auto self = weak.lock();
      if (self && self->attempt_ == attempt && self->state_ == State::kConnecting) self->on_mapped(std::move(*memory));
    });
  });
}

void OwnerLink::on_mapped(Result<std::shared_ptr<PeerMemory>> memory) {
  if (memory) return use_transport(make_shm_transport(context_.loop, context_.pool, std::move(*memory)));
  if (context_.options.transport == TransportChoice::kShm) {
    return fail(memory.error().context("shared memory was demanded; prefiller " + name_), true);
  }
  if (!memory.error().message().empty()) {
    log::info("transfer: {} is on this host, but its memory cannot be mapped ({}): using TCP", name_,
              memory.error().message());
  }
  TcpPeer peer;
  peer.addresses = dialer_->addresses();
  peer.name = name_;
  peer.incarnation = key_.incarnation;
  peer.connect_timeout = context_.options.connect_timeout;
  peer.tls = context_.options.tls;
  use_transport(make_tcp_transport(context_.loop, std::move(peer)));
}

void OwnerLink::use_transport(std::shared_ptr<Transport> transport) {
  const auto& wrap = context_.options.hooks.wrap_transport;
  transport_ = wrap ? wrap(context_.loop, std::move(transport)) : std::move(transport);
  log::info("transfer: connected to prefiller {} (incarnation {:x}) over {}", name_, key_.incarnation,
            transport_->name());
  state_ = State::kReady;
  context_.loop.cancel(deadline_);
  backoff_ = kFirstBackoff;
  flush_releases();
  for (const auto& [lease, hold] : holds_) {
    if (!hold.over) connection_->send(wire::Hold{lease_id(lease)});
  }
  renew_answered_ = renew_sequence_;
  arm(beat_, term() / 3, [this] { heartbeat(); });
  events_.on_ready(*this);
}

// ---- leases

void OwnerLink::hold(std::uint64_t lease) {
  last_use_ = context_.loop.now();
  if (++holds_[lease].count > 1) return;
  if (ready()) {
    send(wire::Hold{lease_id(lease)});
  } else {
    connect();
  }
}

void OwnerLink::begin_fetch(std::uint64_t lease) {
  const auto found = holds_.find(lease);
  if (found == holds_.end() || found->second.fetches == found->second.count) hold(lease);
  ++holds_[lease].fetches;
}

void OwnerLink::end_fetch(std::uint64_t lease, bool success) {
  const auto found = holds_.find(lease);
  if (found == holds_.end()) return;  // the link gave up meanwhile
  --found->second.fetches;
  found->second.fetched |= success;
  release(lease);
}

void OwnerLink::drop(std::uint64_t lease) {
  const auto found = holds_.find(lease);
  if (found != holds_.end()) {
    if (found->second.count > found->second.fetches) release(lease);
    return;
  }
  last_use_ = context_.loop.now();
  if (releases_.size() < kMaxReleases) releases_.push_back({lease, false});
  if (ready()) {
    flush_releases();
  } else {
    connect();
  }
}

void OwnerLink::lease_over(std::uint64_t lease) {
  const auto found = holds_.find(lease);
  if (found != holds_.end()) found->second.over = true;
}

void OwnerLink::release(std::uint64_t lease) {
  const auto found = holds_.find(lease);
  if (--found->second.count > 0) return;
  last_use_ = context_.loop.now();
  if (!found->second.over && releases_.size() < kMaxReleases) releases_.push_back({lease, found->second.fetched});
  holds_.erase(found);
  if (ready()) flush_releases();
}

void OwnerLink::flush_releases() {
  for (const Release& one : std::exchange(releases_, {})) {
    if (one.done) {
      send(wire::Done{lease_id(one.lease)});
    } else {
      send(wire::Drop{lease_id(one.lease)});
    }
  }
}

void OwnerLink::send(const wire::Message& message) {
  if (connection_) connection_->send(message);
}

void OwnerLink::heartbeat() {
  if (!ready()) return;
  const TimePoint now = context_.loop.now();
  if (renew_answered_ != renew_sequence_) {
    return fail(Status(Code::kUnavailable,
                       fmt::format("prefiller {} did not answer a heartbeat for {:.1f} s", name_, seconds(term() / 3)),
                       Scope::kPeer),
                false);
  }
  wire::Renew renew;
  const auto flush = [&] {
    renew.sequence = ++renew_sequence_;
    send(renew);
    renew.leases.clear();
  };
  for (const auto& [lease, hold] : holds_) {
    if (hold.over) continue;
    renew.leases.push_back(lease_id(lease));
    if (renew.leases.size() == wire::kMaxLeases) flush();
  }
  if (!context_.options.hooks.send_heartbeats) renew.leases.clear();
  if (!renew.leases.empty()) flush();
  if (!used() && now - last_use_ > kUnusedAfter) return events_.on_unused(*this);
  arm(beat_, term() / 3, [this] { heartbeat(); });
}

// ---- the end

void OwnerLink::reset() {
  ++attempt_;
  context_.loop.cancel(deadline_);
  context_.loop.cancel(beat_);
  dialer_.reset();
  if (connection_) connection_->close();
  connection_.reset();
  transport_.reset();
  welcome_.reset();
  owner_.reset();
}

void OwnerLink::fail(Status why, bool for_good) {
  if (state_ != State::kConnecting && state_ != State::kReady) return;
  const auto self = shared_from_this();
  const Duration term_before = term();
  reset();
  state_ = State::kIdle;
  const TimePoint now = context_.loop.now();
  // After a term without contact the leases are over, whatever we think.
  const bool give_up = for_good || now - last_contact_ > term_before || !used();
  if (give_up) {
    releases_.clear();
  } else {
    arm(retry_, backoff_, [this] { connect(); });
    backoff_ = std::min<Duration>(backoff_ * 2, term_before / 6);
  }
  context_.loop.post([self, why = std::move(why), give_up] {
    self->events_.on_failed(*self, why, give_up);
    if (!give_up || self->state_ != State::kIdle) return;
    self->holds_.clear();
    self->events_.on_unused(*self);
  });
}

void OwnerLink::close() {
  if (state_ == State::kClosed) return;
  if (ready()) {
    for (const auto& [lease, hold] : holds_) {
      if (!hold.over) releases_.push_back({lease, hold.fetched});
    }
    flush_releases();
  }
  context_.loop.cancel(retry_);
  reset();
  state_ = State::kClosed;
  holds_.clear();
  releases_.clear();
}

}  // namespace tandem::transfer
