// SPDX-License-Identifier: Apache-2.0
#include "cluster/host_network.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

namespace tandem::cluster {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

std::string address_text(const sockaddr_in& address) {
  std::array<char, INET_ADDRSTRLEN> text{};
  inet_ntop(AF_INET, &address.sin_addr, text.data(), text.size());
  return text.data();
}

int interface_mtu(int fd, const char* name) {
  ifreq request{};
  std::strncpy(request.ifr_name, name, IFNAMSIZ - 1);
  return ioctl(fd, SIOCGIFMTU, &request) == 0 ? request.ifr_mtu : 0;
}

}  // namespace

std::vector<HostInterface> host_interfaces() {
  std::vector<HostInterface> interfaces;
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return interfaces;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(first, &freeifaddrs);
  const Descriptor socket_fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET) continue;
    HostInterface& made = interfaces.emplace_back();
    made.name = entry->ifa_name;
    made.address = address_text(*reinterpret_cast<const sockaddr_in*>(entry->ifa_addr));
    made.mtu = interface_mtu(socket_fd.get(), entry->ifa_name);
    made.up = (entry->ifa_flags & IFF_UP) != 0 && (entry->ifa_flags & IFF_RUNNING) != 0;
    made.loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0;
  }
  return interfaces;
}

const HostInterface* interface_with_address(const std::vector<HostInterface>& interfaces, std::string_view address) {
  for (const HostInterface& one : interfaces)
    if (one.address == address) return &one;
  return nullptr;
}

Result<Route> route_to(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), "9", &hints, &found); error != 0)
    return Status(Code::kNotFound, fmt::format("host '{}' is not known: {}", host, gai_strerror(error)));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  const Descriptor socket_fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  // Connecting a datagram socket only looks the route up.
  if (socket_fd.get() < 0 || connect(socket_fd.get(), found->ai_addr, found->ai_addrlen) != 0)
    return Status(Code::kUnavailable, fmt::format("no route to {}: {}", host, strerror(errno)));
  Route route;
  sockaddr_in own{};
  socklen_t size = sizeof(own);
  getsockname(socket_fd.get(), reinterpret_cast<sockaddr*>(&own), &size);
  route.source = address_text(own);
  socklen_t mtu_size = sizeof(route.mtu);
  getsockopt(socket_fd.get(), IPPROTO_IP, IP_MTU, &route.mtu, &mtu_size);
  const auto interfaces = host_interfaces();
  if (const HostInterface* through = interface_with_address(interfaces, route.source))
    route.interface_name = through->name;
  return route;
}

}  // namespace tandem::cluster
