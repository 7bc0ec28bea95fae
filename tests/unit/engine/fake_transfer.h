// SPDX-License-Identifier: Apache-2.0
// Two instances' transfer engines in one process, without sockets: leases are counted, fetches copy token by token from
// one cache memory to the other. A test may complete fetches by hand, let them fail, or let leases expire. It checks
// the engine's side of the contract: every hold answered exactly once, blocks referenced as long as they are promised.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "transfer/transfer_engine.h"

namespace tandem::engine::testing {

class FakeTransfer final : public transfer::TransferEngine {
 public:
  FakeTransfer(std::string engine_id, std::uint64_t incarnation, kv::CacheMemory& memory)
      : engine_id_(std::move(engine_id)), incarnation_(incarnation), memory_(memory) {}
  /// Where this consumer's hand-overs come from.
  void connect(FakeTransfer& producer) { producer_ = &producer; }

  // What a test sets and asks.
  enum class Mode { kAtOnce, kByHand };
  void set_mode(Mode mode) {
    const std::lock_guard lock(mutex_);
    mode_ = mode;
  }
  /// The next fetches end with this error (ok: they succeed), having written garbage first.
  void set_error(Status error) {
    const std::lock_guard lock(mutex_);
    error_ = std::move(error);
  }
  std::size_t num_pending() {
    const std::lock_guard lock(mutex_);
    return pending_.size();
  }
  std::size_t num_fetches() {
    const std::lock_guard lock(mutex_);
    return num_fetches_;
  }
  std::int64_t num_tokens_fetched() {
    const std::lock_guard lock(mutex_);
    return num_tokens_;
  }
  /// Ends the oldest pending fetch: as cancelled if it was, else with the set error or success.
  void complete_one() {
    Pending pending;
    {
      const std::lock_guard lock(mutex_);
      ASSERT_FALSE(pending_.empty());
      pending = std::move(pending_.front());
      pending_.pop_front();
    }
    complete(std::move(pending));
  }
  /// Producer: ends a lease without anybody asking.
  void expire(transfer::LeaseId lease, transfer::LeaseEnd how = transfer::LeaseEnd::kExpired) { end_lease(lease, how); }
  std::size_t num_leases() {
    const std::lock_guard lock(mutex_);
    return leases_.size();
  }
  /// Holds not yet answered by a drop or an ended fetch.
  std::int64_t num_open_holds() {
    const std::lock_guard lock(mutex_);
    return open_holds_;
  }
  std::size_t num_drops() {
    const std::lock_guard lock(mutex_);
    return num_drops_;
  }

  // TransferEngine.
  std::uint64_t incarnation() const override { return incarnation_; }
  std::uint16_t port() const override { return 1; }
  void on_lease_end(std::function<void(transfer::LeaseId, transfer::LeaseEnd)> callback) override {
    const std::lock_guard lock(mutex_);
    lease_ended_ = std::move(callback);
  }
  transfer::Handover open_lease(std::vector<kv::BlockId> blocks, std::int64_t num_tokens,
                                std::int32_t last_token) override {
    const std::lock_guard lock(mutex_);
    transfer::Handover handover;
    handover.engine_id = engine_id_;
    handover.host = "127.0.0.1";
    handover.port = 1;
    handover.blocks = blocks;
    handover.last_token = last_token;
    handover.lease = {incarnation_, next_++};
    handover.num_tokens = num_tokens;
    handover.block_size = memory_.layout().block_size;
    leases_.emplace(handover.lease.id, Lease{std::move(blocks), num_tokens, 0});
    return handover;
  }
  void revoke(transfer::LeaseId lease) override { end_lease(lease, transfer::LeaseEnd::kRevoked); }
  void hold(const transfer::Handover& source) override {
    {
      const std::lock_guard lock(mutex_);
      ++open_holds_;
    }
    producer_->count_hold(source.lease, 1);
  }
  void drop(const transfer::Handover& source) override {
    {
      const std::lock_guard lock(mutex_);
      ++num_drops_;
      --open_holds_;
      EXPECT_GE(open_holds_, 0) << "a drop without a hold";
    }
    if (producer_->count_hold(source.lease, -1) == 0) producer_->end_lease(source.lease, transfer::LeaseEnd::kDropped);
  }
  transfer::FetchId fetch(transfer::Fetch fetch, transfer::FetchDone done) override {
    Pending pending;
    bool at_once = false;
    {
      const std::lock_guard lock(mutex_);
      pending = {next_++, std::move(fetch), std::move(done), false};
      ++num_fetches_;
      at_once = mode_ == Mode::kAtOnce;
      if (!at_once) pending_.push_back(pending);
    }
    write_garbage(pending.fetch);
    const transfer::FetchId id = pending.id;
    if (at_once) complete(std::move(pending));
    return id;
  }
  // BRANCH ONLY: the engine's layerwise tests fill these in.
  transfer::Handover open_growing_lease(std::int64_t, std::uint64_t) override { return {}; }
  void extend(transfer::LeaseId, std::vector<kv::BlockId>) override {}
  void publish(transfer::LeaseId, std::int32_t, std::int32_t, std::int64_t) override {}
  void offer(const transfer::Delivery&, const transfer::Handover&, std::function<void(Status)>) override {}
  std::pair<transfer::FetchId, transfer::Delivery> receive(transfer::Reception, transfer::FetchDone) override {
    return {};
  }

  void cancel(transfer::FetchId fetch) override {
    const std::lock_guard lock(mutex_);
    for (Pending& pending : pending_) {
      if (pending.id == fetch) pending.cancelled = true;
    }
  }
  void stop() override {}

 private:
  struct Lease {
    std::vector<kv::BlockId> blocks;
    std::int64_t num_tokens = 0;
    int holds = 0;
  };
  struct Pending {
    transfer::FetchId id = 0;
    transfer::Fetch fetch;
    transfer::FetchDone done;
    bool cancelled = false;
  };

  /// Returns the holds left, or -1 if the lease has ended.
  int count_hold(transfer::LeaseId lease, int change) {
    const std::lock_guard lock(mutex_);
    const auto found = leases_.find(lease.id);
    return found == leases_.end() ? -1 : found->second.holds += change;
  }
  void end_lease(transfer::LeaseId lease, transfer::LeaseEnd how) {
    std::function<void(transfer::LeaseId, transfer::LeaseEnd)> callback;
    {
      const std::lock_guard lock(mutex_);
      if (leases_.erase(lease.id) == 0) return;
      callback = lease_ended_;
    }
    callback(lease, how);
  }
  bool has_lease(transfer::LeaseId lease) {
    const std::lock_guard lock(mutex_);
    return lease.incarnation == incarnation_ && leases_.contains(lease.id);
  }

  void complete(Pending pending) {
    Status error;
    {
      const std::lock_guard lock(mutex_);
      error = error_;
      --open_holds_;
      EXPECT_GE(open_holds_, 0) << "a fetch without a hold";
    }
    const transfer::LeaseId lease = pending.fetch.source.lease;
    if (error.ok() && !producer_->has_lease(lease)) {
      error = Status(Code::kUnavailable, "the lease has ended", Scope::kTransfer);
    }
    write_garbage(pending.fetch);
    if (pending.cancelled) error = Status(Code::kCancelled, "cancelled", Scope::kTransfer);
    if (error.ok()) copy(pending.fetch);
    if (producer_->count_hold(lease, -1) == 0) {
      producer_->end_lease(lease, error.ok() ? transfer::LeaseEnd::kDone : transfer::LeaseEnd::kDropped);
    }
    if (error.ok()) {
      transfer::FetchStats stats;
      stats.transport = "fake";
      pending.done(pending.id, stats);
    } else {
      pending.done(pending.id, error);
    }
  }

  template <class Visit>
  void for_each_token(const transfer::Fetch& fetch, Visit visit) {
    const kv::Layout& layout = memory_.layout();
    const kv::Layout& source = producer_->memory_.layout();  // it may have another number of blocks
    for (std::int64_t position = fetch.first_token; position < fetch.end_token; ++position) {
      const auto local = static_cast<std::size_t>((position - fetch.first_token) / layout.block_size);
      const auto remote = static_cast<std::size_t>(position / layout.block_size);
      const auto slot = static_cast<std::int32_t>(position % layout.block_size);
      for (std::int32_t layer = 0; layer < layout.num_layers; ++layer) {
        for (int kind = 0; kind < 2; ++kind) {
          for (std::int32_t head = 0; head < layout.num_kv_heads; ++head) {
            visit(source.offset(layer, fetch.source.blocks.at(remote), kind, head, slot),
                  layout.offset(layer, fetch.destination.at(local), kind, head, slot));
          }
        }
      }
    }
  }
  void write_garbage(const transfer::Fetch& fetch) {
    for_each_token(fetch, [&](std::size_t /*from*/, std::size_t to) {
      std::memset(memory_.data() + to, 0x5A, memory_.layout().token_bytes());
    });
  }
  void copy(const transfer::Fetch& fetch) {
    for_each_token(fetch, [&](std::size_t from, std::size_t to) {
      std::memcpy(memory_.data() + to, producer_->memory_.data() + from, memory_.layout().token_bytes());
    });
    const std::lock_guard lock(mutex_);
    num_tokens_ += fetch.end_token - fetch.first_token;
  }

  const std::string engine_id_;
  const std::uint64_t incarnation_;
  kv::CacheMemory& memory_;
  FakeTransfer* producer_ = nullptr;

  std::mutex mutex_;
  Mode mode_ = Mode::kAtOnce;
  Status error_;
  std::uint64_t next_ = 1;
  std::function<void(transfer::LeaseId, transfer::LeaseEnd)> lease_ended_;
  std::map<std::uint64_t, Lease> leases_;
  std::deque<Pending> pending_;
  std::int64_t open_holds_ = 0;
  std::int64_t num_tokens_ = 0;
  std::size_t num_fetches_ = 0;
  std::size_t num_drops_ = 0;
};

}  // namespace tandem::engine::testing
