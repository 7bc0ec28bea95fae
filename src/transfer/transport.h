// SPDX-License-Identifier: Apache-2.0
// The contract of a transport, from the reader's side: move granted runs from an owner's KV memory into ours. What is
// granted, whether it may still be read, and whether the bytes are right is decided above; tests/contract holds every
// transport, plain and behind the fault decorator, to this header.
//
// Threads: everything here is called, and calls back, on the loop thread, but on_part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/peer_tls.h"
#include "base/status.h"
#include "transfer/event_loop.h"
#include "transfer/peer_memory.h"
#include "transfer/plan.h"
#include "transfer/wire.h"
#include "transfer/work_pool.h"

namespace tandem::transfer {

struct MoveRequest {
  std::uint64_t token = 0;                     ///< of the grant
  std::span<const Copy> copies;                ///< stays valid until on_done
  std::span<const wire::GrantedBlock> blocks;  ///< all blocks that the copies read; stays valid until on_done
  std::byte* destination = nullptr;            ///< what the copies' destination offsets count from
  std::function<void(std::uint64_t bytes)> on_progress;
  /// Plan::piece_ends; stays valid until on_done. Empty: on_part is not wanted.
  std::span<const std::uint64_t> piece_ends;
  std::size_t pieces_per_part = 1;
  /// A transport that knows when a part (pieces_per_part pieces, in order) is whole says so, once, on any thread and
  /// before on_done, with CRC32C of each of its pieces as it stored them. Others never call it.
  std::function<void(std::size_t part, std::span<const std::uint32_t> sums)> on_part;
  /// Exactly once, never from within start(); afterwards nothing writes to the destination. kCancelled after cancel(),
  /// kDataLoss if a block got a new owner meanwhile.
  std::function<void(Status)> on_done;
};

/// One request under way.
class Move {
 public:
  virtual ~Move() = default;
  /// Stops as soon as it can; on_done is still called.
  virtual void cancel() = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string_view name() const = 0;  ///< "shm", "tcp"; static storage
  virtual std::shared_ptr<Move> start(MoveRequest request) = 0;
};

/// Copies out of the mapped memory of a process on this host, then checks the blocks' generations.
std::shared_ptr<Transport> make_shm_transport(EventLoop& loop, WorkPool& pool, std::shared_ptr<PeerMemory> memory);

struct TcpPeer {
  std::vector<Address> addresses;
  std::string name;  ///< for messages
  std::uint64_t incarnation = 0;
  std::chrono::milliseconds connect_timeout{5'000};
  std::shared_ptr<const PeerTls> tls;  ///< nullptr: plain
};
/// One connection a request at a time: asks for windows of runs and reads them from the socket straight into place.
std::shared_ptr<Transport> make_tcp_transport(EventLoop& loop, TcpPeer peer);

}  // namespace tandem::transfer
