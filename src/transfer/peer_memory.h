// SPDX-License-Identifier: Apache-2.0
// The abstract Unix socket that hands a rank's KV memory to readers on the same host.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "base/tcp_socket.h"

namespace tandem::transfer {

/// A mapped, read-only view of another process's KV memory.
class PeerMemory {
 public:
  PeerMemory(const std::byte* data, std::size_t bytes, std::size_t generations_offset)
      : data_(data), bytes_(bytes), generations_offset_(generations_offset) {}
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;
  const std::byte* data() const { return data_; }
  /// The block's counter now; also orders earlier reads of the block before it.
  std::uint32_t generation(std::int32_t block) const;

 private:
  const std::byte* data_;
  std::size_t bytes_;
  std::size_t generations_offset_;
};

/// Listens on the abstract name "tandem-kv-<name>". Only processes of the same user are served.
Result<Socket> listen_memory(const std::string& name);
/// Answers one accepted connection with a read-only descriptor of the memory.
void serve_memory(const Socket& connection, int memory_fd, std::size_t bytes, std::size_t generations_offset);
/// The reader's side; blocks for at most `timeout`. `min_bytes` and `num_blocks` are what the peer's layout needs.
Result<std::shared_ptr<PeerMemory>> map_peer_memory(const std::string& name, std::size_t min_bytes,
                                                    std::int32_t num_blocks, std::chrono::milliseconds timeout);

}  // namespace tandem::transfer
