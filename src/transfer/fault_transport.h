// SPDX-License-Identifier: Apache-2.0
// A transport that does to another one what networks and machines do. For tests: give fault_hook() to
// TransferHooks::wrap_transport and change the faults between fetches.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "transfer/event_loop.h"
#include "transfer/transport.h"

namespace tandem::transfer {

/// Positions are bytes of the request, in the order of its copies.
struct Faults {
  bool refuse = false;                        ///< the request fails at once
  std::chrono::milliseconds delay{0};         ///< before anything moves
  std::optional<std::uint64_t> drop_after;    ///< that many bytes arrive, then the connection is lost
  std::optional<std::uint64_t> stall_after;   ///< that many bytes arrive, then nothing more
  std::optional<std::uint64_t> corrupt_byte;  ///< one bit of this byte flips on the way
  std::optional<std::uint64_t> piece_bytes;   ///< moved in pieces of this size,
  std::chrono::milliseconds piece_pause{0};   ///< with a pause between them
  std::function<void()> after_move;  ///< on the loop thread, when the bytes are there and before they are checked
};

/// What requests find when they start. Any thread.
class FaultScript {
 public:
  void set(Faults faults) {
    const std::lock_guard lock(mutex_);
    faults_ = std::move(faults);
  }
  Faults get() const {
    const std::lock_guard lock(mutex_);
    return faults_;
  }

 private:
  mutable std::mutex mutex_;
  Faults faults_;  ///< guarded by mutex_
};

/// Wraps the transports of one engine. The loop is that of the wrapped transport.
std::shared_ptr<Transport> make_fault_transport(EventLoop& loop, std::shared_ptr<Transport> inner,
                                                std::shared_ptr<const FaultScript> script);

}  // namespace tandem::transfer
