// SPDX-License-Identifier: Apache-2.0
// TCP sockets for those who do their own framing (KV transfer, groups of processes): an owning descriptor, addresses,
// listeners, and non-blocking connects. HTTP has its own in src/net.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace tandem {

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

/// Non-blocking listener; port 0 takes a free one (see bound_port). An error says what for ("KV transfer"), host, port
/// and reason; kAlreadyExists: the port is in use.
Result<Socket> listen_tcp(const std::string& host, std::uint16_t port, std::string_view purpose);
std::uint16_t bound_port(const Socket& socket);
/// Starts a non-blocking connect: writable when it is over, then connect_error() tells how.
Result<Socket> start_connect(const Address& address);
int connect_error(const Socket& socket);  ///< an errno, 0: connected
/// No delay for small messages; a peer that vanishes without a word is noticed within `dead_after` while data waits.
void tune(const Socket& socket, std::chrono::milliseconds dead_after);

}  // namespace tandem
