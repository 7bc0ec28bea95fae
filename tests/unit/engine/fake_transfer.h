// SPDX-License-Identifier: Apache-2.0
// Two instances' transfer engines in one process, without sockets: leases are counted, fetches copy token by token from
// one cache memory to the other. A test may complete fetches by hand, let them fail, or let leases expire. It checks
// the engine's side of the contract: every hold answered exactly once, blocks referenced as long as they are promised.
// A layerwise push is copied token by token as it is published, on the publishing thread.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "transfer/transfer_engine.h"

namespace tandem::engine::testing {

class FakeTransfer final : public transfer::TransferEngine {
 public:
  FakeTransfer(std::string engine_id, std::uint64_t incarnation, kv::CacheMemory& memory)
      : engine_id_(std::move(engine_id)), incarnation_(incarnation), memory_(memory) {}
  /// Where this consumer's hand-overs come from.
  void connect(FakeTransfer& producer) {
    producer_ = &producer;
    producer.consumer_ = this;
  }

  // What a test sets and asks.
  enum class Mode { kAtOnce, kByHand };
  void set_mode(Mode mode) {
    const std::lock_guard lock(mutex_);
    mode_ = mode;
  }
  /// What the next fetches say that they cost.
  void set_stats(const transfer::FetchStats& stats) { stats_ = stats; }
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
  /// Producer: what the decoder says to the next offers (not ok: it was not reached, or refused).
  void set_offer_answer(Status answer) {
    const std::lock_guard lock(push_mutex());
    offer_answer_ = std::move(answer);
  }
  /// Producer: what is published stays here until it is let go.
  void hold_back(bool held) {
    const std::lock_guard lock(push_mutex());
    held_back_ = held;
    std::vector<std::uint64_t> leases;
    for (const auto& [lease, growing] : growing_) leases.push_back(lease);
    for (const std::uint64_t lease : leases) consumer_->take({incarnation_, lease});
  }
  std::size_t num_receptions() {
    const std::lock_guard lock(push_mutex());
    return receptions_.size();
  }
  std::int64_t num_tokens_pushed() {
    const std::lock_guard lock(push_mutex());
    return num_tokens_pushed_;
  }
  /// Producer: how often publish() was called.
  std::size_t num_published() {
    const std::lock_guard lock(push_mutex());
    return num_published_;
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
    write_garbage(fetch);  // before others see the fetch, who may complete it
    {
      const std::lock_guard lock(mutex_);
      pending = {next_++, std::move(fetch), std::move(done), false};
      ++num_fetches_;
      at_once = mode_ == Mode::kAtOnce;
      if (!at_once) pending_.push_back(pending);
    }
    const transfer::FetchId id = pending.id;
    if (at_once) complete(std::move(pending));
    return id;
  }
  transfer::Handover open_growing_lease(std::int64_t num_tokens, std::uint64_t prompt_hash) override {
    transfer::Handover handover = open_lease({}, num_tokens, -1);
    handover.prompt_hash = prompt_hash;
    const std::lock_guard lock(push_mutex());
    growing_[handover.lease.id].published.assign(static_cast<std::size_t>(memory_.layout().num_layers), 0);
    return handover;
  }
  void extend(transfer::LeaseId lease, std::vector<kv::BlockId> blocks) override {
    const std::lock_guard lock(push_mutex());
    const auto found = growing_.find(lease.id);
    if (found == growing_.end()) return;
    found->second.blocks.insert(found->second.blocks.end(), blocks.begin(), blocks.end());
  }
  void publish(transfer::LeaseId lease, std::int32_t first_layer, std::int32_t end_layer,
               std::int64_t end_token) override {
    const std::lock_guard lock(push_mutex());
    ++num_published_;
    const auto found = growing_.find(lease.id);
    if (found == growing_.end()) return;
    Growing& growing = found->second;
    EXPECT_LE(end_token, std::ssize(growing.blocks) * memory_.layout().block_size) << "published before extend()";
    for (std::int32_t layer = first_layer; layer < end_layer; ++layer) {
      auto& published = growing.published[static_cast<std::size_t>(layer)];
      EXPECT_GE(end_token, published) << "what is published stays";
      published = end_token;
    }
    if (growing.offered) consumer_->take(lease);
  }
  void offer(const transfer::Delivery& to, const transfer::Handover& source,
             std::function<void(Status)> told) override {
    const std::lock_guard lock(push_mutex());
    Status answer = offer_answer_.ok() ? consumer_->accept(to, source) : offer_answer_;
    if (answer.ok()) growing_.at(source.lease.id).offered = true;
    told(answer);
    if (answer.ok()) consumer_->take(source.lease);
  }
  std::pair<transfer::FetchId, transfer::Delivery> receive(transfer::Reception reception,
                                                           transfer::FetchDone done) override {
    const std::lock_guard lock(push_mutex());
    transfer::Delivery delivery;
    delivery.engine_id = engine_id_;
    delivery.host = "127.0.0.1";
    delivery.port = 1;
    delivery.blocks = reception.destination;
    delivery.incarnation = incarnation_;
    delivery.first_token = reception.first_token;
    delivery.num_tokens = reception.num_tokens;
    delivery.prompt_hash = reception.prompt_hash;
    Receiving receiving;
    {
      const std::lock_guard inner(mutex_);
      receiving.id = next_++;
    }
    delivery.reception = 1000 + receiving.id;
    receiving.reached.assign(static_cast<std::size_t>(memory_.layout().num_layers), reception.first_token);
    receiving.reception = std::move(reception);
    receiving.done = std::move(done);
    const transfer::FetchId id = receiving.id;
    receptions_.emplace(delivery.reception, std::move(receiving));
    return {id, delivery};
  }

  void cancel(transfer::FetchId fetch) override {
    {
      const std::lock_guard lock(push_mutex());
      for (const auto& [name, receiving] : receptions_) {
        if (receiving.id != fetch) continue;
        return end_reception(name, Status(Code::kCancelled, "cancelled", Scope::kTransfer));
      }
    }
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

  /// Producer: a lease on a prompt that is still being computed.
  struct Growing {
    std::vector<kv::BlockId> blocks;
    std::vector<std::int64_t> published;  ///< tokens, by layer
    bool offered = false;
  };
  struct Receiving {
    transfer::FetchId id = 0;
    transfer::Reception reception;
    transfer::FetchDone done;
    std::optional<transfer::LeaseId> lease;
    std::vector<std::int64_t> reached;  ///< tokens copied, by layer
  };

  /// One for all: a push goes back and forth between two of these.
  static std::recursive_mutex& push_mutex() {
    static std::recursive_mutex mutex;
    return mutex;
  }

  Status accept(const transfer::Delivery& to, const transfer::Handover& source) {
    const auto found = receptions_.find(to.reception);
    if (found == receptions_.end()) return {Code::kNotFound, "nobody waits for this KV any more", Scope::kTransfer};
    EXPECT_EQ(source.num_tokens, found->second.reception.num_tokens);
    EXPECT_EQ(source.prompt_hash, found->second.reception.prompt_hash);
    found->second.lease = source.lease;
    if (found->second.reception.offered) found->second.reception.offered();
    return {};
  }

  /// Copies what the lease has published.
  void take(transfer::LeaseId lease) {
    const auto found = std::find_if(receptions_.begin(), receptions_.end(),
                                    [&](const auto& entry) { return entry.second.lease == lease; });
    if (found == receptions_.end() || producer_->held_back_) return;
    Receiving& receiving = found->second;
    const Growing& growing = producer_->growing_.at(lease.id);
    bool complete = true;
    for (std::size_t layer = 0; layer < receiving.reached.size(); ++layer) {
      const std::int64_t end = std::min(growing.published[layer], receiving.reception.end_token);
      for (std::int64_t& position = receiving.reached[layer]; position < end; ++position) {
        copy_token(growing.blocks, receiving.reception, static_cast<std::int32_t>(layer), position);
      }
      complete = complete && receiving.reached[layer] >= receiving.reception.end_token;
    }
    if (!complete) return;
    num_tokens_pushed_ += receiving.reception.end_token - receiving.reception.first_token;
    end_reception(found->first, {});
  }
  void copy_token(const std::vector<kv::BlockId>& from, const transfer::Reception& to, std::int32_t layer,
                  std::int64_t position) {
    const kv::Layout& local = memory_.layout();
    const kv::Layout& remote = producer_->memory_.layout();
    const auto to_block = to.destination.at(static_cast<std::size_t>((position - to.first_token) / local.block_size));
    const auto from_block = from.at(static_cast<std::size_t>(position / remote.block_size));
    for (int kind = 0; kind < 2; ++kind) {
      for (std::int32_t head = 0; head < local.num_kv_heads; ++head) {
        const auto to_slot = static_cast<std::int32_t>(position % local.block_size);
        const auto from_slot = static_cast<std::int32_t>(position % remote.block_size);
        std::memcpy(memory_.data() + local.offset(layer, to_block, kind, head, to_slot),
                    producer_->memory_.data() + remote.offset(layer, from_block, kind, head, from_slot),
                    local.token_bytes());
      }
    }
  }
  void end_reception(std::uint64_t name, const Status& error) {
    const auto found = receptions_.find(name);
    if (found == receptions_.end()) return;
    const Receiving receiving = std::move(found->second);
    receptions_.erase(found);
    transfer::FetchStats stats;
    stats.transport = "fake";
    receiving.done(receiving.id,
                   error.ok() ? Result<transfer::FetchStats>(stats) : Result<transfer::FetchStats>(error));
    if (receiving.lease) {
      producer_->end_lease(*receiving.lease, error.ok() ? transfer::LeaseEnd::kDone : transfer::LeaseEnd::kDropped);
    }
  }
  /// Consumer: its prefiller has ended a lease.
  void lease_is_gone(transfer::LeaseId lease) {
    const std::lock_guard lock(push_mutex());
    for (const auto& [name, receiving] : receptions_) {
      if (receiving.lease != lease) continue;
      return end_reception(name, Status(Code::kUnavailable, "the prefiller ended the lease", Scope::kTransfer));
    }
  }

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
    const std::lock_guard lock(push_mutex());
    if (growing_.erase(lease.id) > 0 && consumer_ != nullptr) consumer_->lease_is_gone(lease);
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
      pending.done(pending.id, stats_);
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
      const auto remote = static_cast<std::size_t>(position / source.block_size);
      const auto slot = static_cast<std::int32_t>(position % layout.block_size);
      const auto source_slot = static_cast<std::int32_t>(position % source.block_size);
      for (std::int32_t layer = 0; layer < layout.num_layers; ++layer) {
        for (int kind = 0; kind < 2; ++kind) {
          for (std::int32_t head = 0; head < layout.num_kv_heads; ++head) {
            visit(source.offset(layer, fetch.source.blocks.at(remote), kind, head, source_slot),
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
  FakeTransfer* consumer_ = nullptr;

  // Layerwise push; guarded by push_mutex().
  std::map<std::uint64_t, Growing> growing_;       ///< by lease
  std::map<std::uint64_t, Receiving> receptions_;  ///< by Delivery::reception
  Status offer_answer_;
  bool held_back_ = false;
  std::int64_t num_tokens_pushed_ = 0;
  std::size_t num_published_ = 0;

  std::mutex mutex_;
  Mode mode_ = Mode::kAtOnce;
  Status error_;
  transfer::FetchStats stats_;
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
