// SPDX-License-Identifier: Apache-2.0
// The messages of rounds: one connection to each other process, all of them moved together by the one thread that
// runs the steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/channel.h"
#include "base/clock.h"
#include "base/status.h"
#include "comm/group.h"
#include "comm/messages.h"

namespace tandem::comm {

/// A link that failed.
struct LinkFailure {
  std::int32_t process = 0;
  std::string why;
};

class Links {
 public:
  /// channels[p] leads to process p, ready for messages; that of `own` is empty.
  Links(std::vector<Channel> channels, std::int32_t own, std::uint64_t epoch);

  void begin(std::span<const Bytes> outgoing);
  /// Moves what can be moved now, both ways. True if anything moved. After a failure the links are of no more use.
  bool advance();
  bool done() const { return num_open_ == 0; }
  const LinkFailure* failure() const { return failed_ ? &failure_ : nullptr; }
  /// What has arrived in a finished round; element p is from process p.
  std::span<const Bytes> received();
  /// Waits until something can be moved, `event_fd` is readable or `deadline`. True if event_fd is readable.
  bool wait(int event_fd, TimePoint deadline);
  /// Between rounds: whether another process has begun the next one. Notices closed links.
  bool others_began();
  /// The first process that this one waits for.
  std::int32_t awaited() const;

 private:
  struct Link {
    Channel channel;
    bool active = false;  ///< not the own place
    RoundHeader out_header;
    Bytes out;
    std::size_t sent = 0;  ///< of header and message together
    RoundHeader in_header;
    std::size_t in_header_bytes = 0;
    std::vector<std::byte> in;  ///< only grows, so that rounds do not clear memory again and again
    std::size_t in_bytes = 0;   ///< of this round
    bool sending = false;
    bool receiving = false;
    std::vector<std::byte> staged;  ///< read ahead: may hold the start of the next round's message
    std::size_t staged_at = 0;
    std::size_t staged_end = 0;

    bool has_staged() const { return staged_at < staged_end; }
  };

  bool send_some(std::size_t process);
  bool receive_some(std::size_t process);
  bool take_staged(std::size_t process);
  bool read_into(std::size_t process, std::byte* buffer, std::size_t size, std::size_t& got);
  void fail(std::size_t process, std::string why);
  void finish_one(bool& flag);

  std::vector<Link> links_;
  const std::uint64_t epoch_;
  std::uint64_t round_ = 0;   ///< the current one, or the next if none is under way
  std::size_t num_open_ = 0;  ///< sends and receives that are not over
  bool under_way_ = false;
  bool failed_ = false;
  LinkFailure failure_;
  std::vector<Bytes> received_;
};

}  // namespace tandem::comm
