// SPDX-License-Identifier: Apache-2.0
#include "app/port_reservation.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <utility>

namespace tandem::app {
namespace {

void set_port(sockaddr* address, std::uint16_t port) {
  if (address->sa_family == AF_INET)
    reinterpret_cast<sockaddr_in*>(address)->sin_port = htons(port);
  else if (address->sa_family == AF_INET6)
    reinterpret_cast<sockaddr_in6*>(address)->sin6_port = htons(port);
}

std::uint16_t port_of(int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0) return 0;
  if (storage.ss_family == AF_INET) return ntohs(reinterpret_cast<sockaddr_in*>(&storage)->sin_port);
  return ntohs(reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port);
}

/// A bound socket, or -1 with errno set.
int bind_socket(const addrinfo& entry) {
  const int fd = socket(entry.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (entry.ai_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
  if (bind(fd, entry.ai_addr, entry.ai_addrlen) == 0) return fd;
  const int reason = errno;
  close(fd);
  errno = reason;
  return -1;
}

std::string in_use_by(std::uint16_t port) {
  const std::string owner = port_owner(port);
  return fmt::format("{}; stop what uses it or choose another port", owner.empty() ? "" : " by " + owner);
}

/// Inodes of the sockets that listen on `port`, from a table like /proc/net/tcp.
void add_listeners(const char* table, std::uint16_t port, std::vector<std::string>& inodes) {
  std::ifstream file(table);
  std::string line;
  std::getline(file, line);  // headings
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string slot, local, remote, state, skip, inode;
    fields >> slot >> local >> remote >> state;
    for (int i = 0; i < 5; ++i) fields >> skip;  // queues, timer, retransmissions, user, timeout
    fields >> inode;
    constexpr std::string_view kListening = "0A";
    if (state == kListening && local.ends_with(fmt::format(":{:04X}", port)))
      inodes.push_back("socket:[" + inode + "]");
  }
}

bool has_one_of(const std::filesystem::path& descriptors, const std::vector<std::string>& sockets) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(descriptors, error)) {
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    if (std::find(sockets.begin(), sockets.end(), target) != sockets.end()) return true;
  }
  return false;
}

}  // namespace

std::string port_owner(std::uint16_t port) {
  std::vector<std::string> sockets;
  add_listeners("/proc/net/tcp", port, sockets);
  add_listeners("/proc/net/tcp6", port, sockets);
  std::error_code error;
  if (sockets.empty()) return {};
  for (const auto& process : std::filesystem::directory_iterator("/proc", error)) {
    const std::string pid = process.path().filename().string();
    const bool is_number = pid.find_first_not_of("0123456789") == std::string::npos;
    if (!is_number || !has_one_of(process.path() / "fd", sockets)) continue;
    std::ifstream file(process.path() / "comm");
    std::string name;
    std::getline(file, name);
    return fmt::format("process {} ({})", pid, name);
  }
  return {};
}

Result<PortReservation> PortReservation::reserve(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* raw = nullptr;
  const std::string name = host.empty() ? "0.0.0.0" : host;
  if (const int failure = getaddrinfo(name.c_str(), std::to_string(port).c_str(), &hints, &raw); failure != 0)
    return Status(Code::kInvalidArgument, fmt::format("cannot resolve host '{}': {}", host, gai_strerror(failure)));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> list(raw, &freeaddrinfo);
  PortReservation reservation;
  reservation.port_ = port;
  int reason = 0;
  for (addrinfo* entry = raw; entry != nullptr; entry = entry->ai_next) {
    set_port(entry->ai_addr, reservation.port_);
    const int fd = bind_socket(*entry);
    if (fd >= 0) {
      reservation.sockets_.push_back(fd);
      reservation.port_ = port_of(fd);
      continue;
    }
    reason = errno;
    if (reason == EADDRINUSE) break;  // others (no IPv6 here) do not count while one address works
  }
  if (reason == EADDRINUSE || reservation.sockets_.empty())
    return Status(Code::kUnavailable,
                  fmt::format("cannot listen on {}:{}: {}{}", name, port, std::strerror(reason),
                              reason == EADDRINUSE      ? in_use_by(port)
                              : reason == EADDRNOTAVAIL ? " (no interface of this host has that address)"
                                                        : ""));
  return reservation;
}

PortReservation::PortReservation(PortReservation&& other) noexcept
    : sockets_(std::exchange(other.sockets_, {})), port_(other.port_) {}

PortReservation& PortReservation::operator=(PortReservation&& other) noexcept {
  release();
  sockets_ = std::exchange(other.sockets_, {});
  port_ = other.port_;
  return *this;
}

void PortReservation::release() {
  for (const int fd : sockets_) close(fd);
  sockets_.clear();
}

std::string local_address() {
  // "Connecting" a UDP socket sends nothing; it only asks the kernel which source address it would take.
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return "127.0.0.1";
  sockaddr_in target{};
  target.sin_family = AF_INET;
  target.sin_port = htons(53);
  inet_pton(AF_INET, "192.0.2.1", &target.sin_addr);  // an address of documentation: any route will do
  sockaddr_in source{};
  socklen_t length = sizeof(source);
  char text[INET_ADDRSTRLEN] = "127.0.0.1";
  if (connect(fd, reinterpret_cast<sockaddr*>(&target), sizeof(target)) == 0 &&
      getsockname(fd, reinterpret_cast<sockaddr*>(&source), &length) == 0)
    inet_ntop(AF_INET, &source.sin_addr, text, sizeof(text));
  close(fd);
  return text;
}

Result<std::string> interface_address(const std::string& interface) {
  ifaddrs* raw = nullptr;
  if (getifaddrs(&raw) != 0)
    return Status(Code::kInternal, fmt::format("cannot list the network interfaces: {}", std::strerror(errno)));
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> list(raw, &freeifaddrs);
  std::vector<std::string> names;
  for (const ifaddrs* entry = raw; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET) continue;
    char text[INET_ADDRSTRLEN] = "";
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr, text, sizeof(text));
    if (interface == entry->ifa_name) return std::string(text);
    names.emplace_back(entry->ifa_name);
  }
  return Status(Code::kNotFound, fmt::format("interface '{}' is not here or has no IPv4 address; there are {}",
                                             interface, fmt::join(names, ", ")));
}

bool is_loopback(const std::string& host) { return host == "localhost" || host == "::1" || host.starts_with("127."); }

}  // namespace tandem::app
