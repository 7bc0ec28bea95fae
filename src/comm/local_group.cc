// SPDX-License-Identifier: Apache-2.0
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <utility>

#include "comm/group.h"

namespace tandem::comm {
namespace {

using Message = std::vector<std::byte>;

/// What all members share.
struct Exchange {
  explicit Exchange(int size) : queues(static_cast<std::size_t>(size * size)), woken(static_cast<std::size_t>(size)) {}

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::deque<Message>> queues;  // guarded by mutex; [to * size + from]
  std::vector<std::uint8_t> woken;          // guarded by mutex; [rank]
};

class LocalGroup final : public Group {
 public:
  LocalGroup(int rank, int size, std::shared_ptr<Exchange> exchange)
      : rank_(rank),
        size_(size),
        exchange_(std::move(exchange)),
        received_(static_cast<std::size_t>(size)),
        views_(static_cast<std::size_t>(size)) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Result<void> begin(std::span<const Bytes> outgoing) override {
    TANDEM_ASSERT(outgoing.size() == static_cast<std::size_t>(size_), "a round has one message for each process");
    const std::scoped_lock lock(exchange_->mutex);
    for (int peer = 0; peer < size_; ++peer) {
      const Bytes bytes = outgoing[static_cast<std::size_t>(peer)];
      if (peer != rank_) queue(peer, rank_).emplace_back(bytes.begin(), bytes.end());
    }
    exchange_->changed.notify_all();
    return {};
  }

  Result<std::span<const Bytes>> finish() override {
    std::unique_lock lock(exchange_->mutex);
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      auto& from = queue(rank_, peer);
      exchange_->changed.wait(lock, [&] { return !from.empty(); });
      received_[static_cast<std::size_t>(peer)] = std::move(from.front());
      from.pop_front();
      views_[static_cast<std::size_t>(peer)] = received_[static_cast<std::size_t>(peer)];
    }
    return std::span<const Bytes>(views_);
  }

  bool wait_for_others(std::chrono::milliseconds timeout) override {
    std::unique_lock lock(exchange_->mutex);
    std::uint8_t& woken = exchange_->woken[static_cast<std::size_t>(rank_)];
    const auto begun = [&] {
      for (int peer = 0; peer < size_; ++peer)
        if (!queue(rank_, peer).empty()) return true;
      return false;
    };
    exchange_->changed.wait_for(lock, timeout, [&] { return woken != 0 || begun(); });
    return !std::exchange(woken, std::uint8_t{0}) && begun();
  }

  void wake() override {
    const std::scoped_lock lock(exchange_->mutex);
    exchange_->woken[static_cast<std::size_t>(rank_)] = 1;
    exchange_->changed.notify_all();
  }

 private:
  std::deque<Message>& queue(int to, int from) {
    return exchange_->queues[static_cast<std::size_t>(to * size_ + from)];
  }

  const int rank_;
  const int size_;
  const std::shared_ptr<Exchange> exchange_;
  std::vector<Message> received_;  ///< the last round's
  std::vector<Bytes> views_;
};

}  // namespace

std::vector<std::unique_ptr<Group>> make_local_group(int size) {
  const auto exchange = std::make_shared<Exchange>(size);
  std::vector<std::unique_ptr<Group>> members;
  for (int rank = 0; rank < size; ++rank) members.push_back(std::make_unique<LocalGroup>(rank, size, exchange));
  return members;
}

}  // namespace tandem::comm
