// SPDX-License-Identifier: Apache-2.0
#include "base/tcp_socket.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace tandem {
namespace {

constexpr int kBacklog = 512;

void set_option(int fd, int level, int name, int value) { (void)setsockopt(fd, level, name, &value, sizeof value); }

addrinfo* look_up(const std::string& host, std::uint16_t port, int flags, int& error) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  error = getaddrinfo(host.empty() ? nullptr : host.c_str(), std::to_string(port).c_str(), &hints, &list);
  return error == 0 ? list : nullptr;
}

std::vector<Address> take_addresses(addrinfo* list) {
  std::vector<Address> addresses;
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    Address address;
    if (entry->ai_addrlen > sizeof address.storage) continue;
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    address.size = entry->ai_addrlen;
    addresses.push_back(address);
  }
  freeaddrinfo(list);
  return addresses;
}

/// "[::1]" as people write it in addresses.
std::string without_brackets(const std::string& host) {
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') return host.substr(1, host.size() - 2);
  return host;
}

}  // namespace

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) close(fd_);
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

Socket::~Socket() {
  if (fd_ >= 0) close(fd_);
}

std::string endpoint_name(const std::string& host, std::uint16_t port) {
  const std::string bare = without_brackets(host);
  return bare.find(':') == std::string::npos ? fmt::format("{}:{}", bare, port) : fmt::format("[{}]:{}", bare, port);
}

Result<std::vector<Address>> resolve(const std::string& host, std::uint16_t port) {
  int error = 0;
  addrinfo* list = look_up(without_brackets(host), port, 0, error);
  if (list == nullptr) {
    return Status(Code::kUnavailable,
                  fmt::format("cannot resolve {}: {}", endpoint_name(host, port), gai_strerror(error)), Scope::kPeer);
  }
  return take_addresses(list);
}

bool is_numeric_host(const std::string& host) {
  int error = 0;
  addrinfo* list = look_up(without_brackets(host), 1, AI_NUMERICHOST, error);
  if (list == nullptr) return false;
  freeaddrinfo(list);
  return true;
}

Result<Socket> listen_tcp(const std::string& host, std::uint16_t port, std::string_view purpose) {
  int error = 0;
  addrinfo* list = look_up(without_brackets(host), port, AI_PASSIVE, error);
  if (list == nullptr) {
    return Status(
        Code::kInvalidArgument,
        fmt::format("cannot listen for {} on {}: {}", purpose, endpoint_name(host, port), gai_strerror(error)),
        Scope::kProcess);
  }
  int reason = EADDRNOTAVAIL;
  for (const Address& address : take_addresses(list)) {
    Socket socket(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket) {
      reason = errno;
      continue;
    }
    set_option(socket.fd(), SOL_SOCKET, SO_REUSEADDR, 1);
    // "::" takes IPv4 readers too, as people expect of a host that means "all".
    if (address.storage.ss_family == AF_INET6) set_option(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
    if (bind(socket.fd(), reinterpret_cast<const sockaddr*>(&address.storage), address.size) == 0 &&
        listen(socket.fd(), kBacklog) == 0) {
      return socket;
    }
    reason = errno;
  }
  const Code code = reason == EADDRINUSE ? Code::kAlreadyExists : Code::kUnavailable;
  return Status(code,
                fmt::format("cannot listen for {} on {}: {}; choose another port or stop what uses it", purpose,
                            endpoint_name(host, port), std::strerror(reason)),
                Scope::kProcess);
}

std::uint16_t bound_port(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  if (address.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

Result<Socket> start_connect(const Address& address) {
  Socket socket(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return Status(Code::kUnavailable, fmt::format("no socket: {}", std::strerror(errno)), Scope::kPeer);
  if (connect(socket.fd(), reinterpret_cast<const sockaddr*>(&address.storage), address.size) != 0 &&
      errno != EINPROGRESS) {
    return Status(Code::kUnavailable, std::strerror(errno), Scope::kPeer);
  }
  return socket;
}

int connect_error(const Socket& socket) {
  int error = 0;
  socklen_t size = sizeof error;
  if (getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) return errno;
  return error;
}

void tune(const Socket& socket, std::chrono::milliseconds dead_after) {
  set_option(socket.fd(), IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket.fd(), SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket.fd(), IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(dead_after.count()));
}

}  // namespace tandem
