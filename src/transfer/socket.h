// SPDX-License-Identifier: Apache-2.0
// Sockets of the transfer engine: an owning descriptor, addresses, listeners, and the abstract Unix socket that hands a
// rank's KV memory to readers on the same host.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace tandem::transfer {

class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();
  int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;
};

/// "10.0.0.1:8000", "[::1]:8000", "host:8000"
std::string endpoint_name(const std::string& host, std::uint16_t port);

/// IPv4, IPv6 or a name; may block in the resolver unless the host is numeric.
Result<std::vector<Address>> resolve(const std::string& host, std::uint16_t port);
/// Whether resolve() answers at once.
bool is_numeric_host(const std::string& host);

/// Non-blocking listener; port 0 takes a free one (see bound_port). An error names host and port.
Result<Socket> listen_tcp(const std::string& host, std::uint16_t port);
std::uint16_t bound_port(const Socket& socket);
/// Starts a non-blocking connect: writable when it is over, then connect_error() tells how.
Result<Socket> start_connect(const Address& address);
int connect_error(const Socket& socket);  ///< an errno, 0: connected
/// No delay for small messages; a peer that vanishes without a word is noticed within `dead_after` while data waits.
void tune(const Socket& socket, std::chrono::milliseconds dead_after);

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
