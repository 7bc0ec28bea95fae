// SPDX-License-Identifier: Apache-2.0
// Group over TCP: rounds on the links of an epoch. The Member says which epoch there is; this links up when a new one
// is formed, and tells when a link fails.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "comm/acceptor.h"
#include "comm/group.h"
#include "comm/links.h"
#include "comm/member.h"

namespace tandem::comm {

/// Connections that other processes made for rounds, until the group takes them.
class LinkInbox {
 public:
  void put(const LinkHello& hello, Channel channel);
  /// An empty channel after the deadline or once `current` is no longer the epoch.
  Channel take(std::uint64_t epoch, std::int32_t process, TimePoint deadline, const Member& member);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<std::uint64_t, std::int32_t>, Channel> channels_;  // guarded by mutex_
};

class TcpGroup final : public Group {
 public:
  /// `rank` of `size` is known once the roster is; see place().
  TcpGroup(Member& member, LinkInbox& inbox, Credentials credentials, std::chrono::milliseconds round_timeout)
      : member_(member), inbox_(inbox), credentials_(std::move(credentials)), round_timeout_(round_timeout) {}
  void place(int rank, int size) {
    rank_ = rank;
    size_ = size;
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Result<void> start_step() override;
  Result<void> begin(std::span<const Bytes> outgoing) override;
  Result<std::span<const Bytes>> finish() override;
  bool wait_for_others(std::chrono::milliseconds timeout) override;
  void wake() override;

 private:
  void follow_epoch();
  void link_up(const Form& form);
  Result<Channel> connect_to(const Form& form, std::size_t process, TimePoint deadline) const;
  Status lose(std::int32_t process, const std::string& why);
  Result<void> usable();
  Result<void> move_all();

  Member& member_;
  LinkInbox& inbox_;
  const Credentials credentials_;
  const std::chrono::milliseconds round_timeout_;
  int rank_ = 0;
  int size_ = 1;
  std::unique_ptr<Links> links_;  ///< of epoch_
  std::uint64_t epoch_ = 0;       ///< 0: no links
  Status broken_;                 ///< why the current step is lost
  std::atomic<bool> woken_{false};
};

}  // namespace tandem::comm
