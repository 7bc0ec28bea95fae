// SPDX-License-Identifier: Apache-2.0
// The owner's end of a data connection: sends asked-for runs straight from pool memory, chunk by chunk. Loop thread
// only.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <unordered_set>
#include <vector>

#include "base/status.h"
#include "kv/cache_memory.h"
#include "transfer/connection.h"
#include "transfer/wire.h"

namespace tandem::transfer {

/// ok if the run lies in the memory of the ranks and touches only blocks of `members`.
Status check_run(std::span<const kv::Layout> ranks, const wire::Run& run,
                 const std::unordered_set<kv::BlockId>& members);

class DataSender {
 public:
  /// `alive` is asked before every write to the socket: once it is false nothing more is sent.
  DataSender(Connection& connection, const std::byte* memory, std::function<bool()> alive)
      : connection_(connection), memory_(memory), alive_(std::move(alive)) {}

  /// An error if the reader is over its credits. Runs must have been checked.
  Status enqueue(wire::Pull pull);
  /// The socket takes more; false: it is broken.
  bool on_writable();
  bool idle() const { return vectors_.empty() && pulls_.empty(); }

 private:
  void next_chunk();

  Connection& connection_;
  const std::byte* memory_;
  std::function<bool()> alive_;
  std::deque<wire::Pull> pulls_;
  std::size_t run_ = 0;           ///< in pulls_.front(): first one not in a chunk yet
  std::uint32_t run_offset_ = 0;  ///< of it
  wire::HeaderBytes header_{};
  std::vector<iovec> vectors_;  ///< rest of the chunk under way
  std::size_t vector_ = 0;      ///< first one with something left
};

}  // namespace tandem::transfer
