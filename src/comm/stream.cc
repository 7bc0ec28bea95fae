// SPDX-License-Identifier: Apache-2.0
#include "comm/stream.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>
#include <vector>

namespace tandem::comm {
namespace {

constexpr std::chrono::milliseconds kDeadLink{4000};
constexpr std::size_t kGrowth = std::size_t{64} << 10;

int left_ms(TimePoint deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count() + 1, 0, 1 << 30));
}

Status gone(const std::string& why) { return Status(Code::kUnavailable, why, Scope::kPeer); }

Result<void> wait_for(int fd, short events, TimePoint deadline) {
  while (true) {
    pollfd entry{fd, events, 0};
    const int count = poll(&entry, 1, left_ms(deadline));
    if (count > 0) return {};
    if (count < 0 && errno != EINTR) return gone(std::strerror(errno));
    if (std::chrono::steady_clock::now() >= deadline)
      return Status(Code::kDeadlineExceeded, "no answer in time", Scope::kPeer);
  }
}

Result<void> send_all(Channel& channel, std::span<const std::byte> bytes, TimePoint deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = channel.send(bytes);
    if (sent > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    } else if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      TANDEM_TRY(wait_for(channel.fd(), POLLOUT, deadline));
    } else if (errno != EINTR) {
      return channel.error();
    }
  }
  return {};
}

Result<void> receive_all(Channel& channel, std::span<std::byte> bytes, TimePoint deadline) {
  while (!bytes.empty()) {
    const ssize_t got = channel.receive(bytes);
    if (got > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(got));
    } else if (got == 0) {
      return gone("it closed the connection");
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      TANDEM_TRY(wait_for(channel.fd(), POLLIN, deadline));
    } else if (errno != EINTR) {
      return channel.error();
    }
  }
  return {};
}

std::string numeric_host(const sockaddr_storage& address, socklen_t size) {
  char host[NI_MAXHOST] = "?";
  (void)getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
  const std::string_view text = host;
  constexpr std::string_view kMapped = "::ffff:";
  return std::string(text.starts_with(kMapped) ? text.substr(kMapped.size()) : text);
}

}  // namespace

Result<Socket> connect_tcp(const std::string& host, std::uint16_t port, TimePoint deadline) {
  TANDEM_ASSIGN(const auto addresses, resolve(host, port));
  Status last = gone("no address");
  for (const Address& address : addresses) {
    auto socket = start_connect(address);
    if (!socket) {
      last = socket.error();
      continue;
    }
    if (auto waited = wait_for(socket->fd(), POLLOUT, deadline); !waited) {
      last = waited.error();
    } else if (const int error = connect_error(*socket); error != 0) {
      last = gone(std::strerror(error));
    } else {
      return socket;
    }
  }
  return last.context(endpoint_name(host, port));
}

void watch_link(const Socket& socket) {
  tune(socket, kDeadLink);
  // The kernel asks an idle peer after one second, then each second; the third silence is the end.
  for (const auto& [name, value] : {std::pair{TCP_KEEPIDLE, 1}, std::pair{TCP_KEEPINTVL, 1}, std::pair{TCP_KEEPCNT, 3}})
    (void)setsockopt(socket.fd(), IPPROTO_TCP, name, &value, sizeof value);
}

std::string local_host(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address), &size) != 0) return {};
  return numeric_host(address, size);
}

std::string peer_host(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (getpeername(socket.fd(), reinterpret_cast<sockaddr*>(&address), &size) != 0) return {};
  return numeric_host(address, size);
}

bool is_private_host(const std::string& address) {
  in_addr four{};
  if (inet_pton(AF_INET, address.c_str(), &four) == 1) {
    const std::uint32_t ip = ntohl(four.s_addr);
    const auto in = [ip](std::uint32_t network, int bits) { return (ip ^ network) >> (32 - bits) == 0; };
    return in(0x7f000000, 8) || in(0x0a000000, 8) || in(0xac100000, 12) || in(0xc0a80000, 16) || in(0xa9fe0000, 16) ||
           in(0x64400000, 10) || in(0xc0000000, 24);
  }
  in6_addr six{};
  const std::string bare = address.substr(0, address.find('%'));
  if (inet_pton(AF_INET6, bare.c_str(), &six) != 1) return false;
  return IN6_IS_ADDR_LOOPBACK(&six) || IN6_IS_ADDR_LINKLOCAL(&six) || (six.s6_addr[0] & 0xfeU) == 0xfcU;
}

Status check_peer(const Credentials& credentials, const Socket& socket) {
  const std::string host = peer_host(socket);
  if (credentials || is_private_host(host)) return {};
  return {
      Code::kFailedPrecondition,
      fmt::format("{} is an address of the internet, and nothing protects the connection; {}", host, kSameCredentials),
      Scope::kPeer};
}

Result<void> shake_hands(Channel& channel, TimePoint deadline) {
  while (true) {
    TANDEM_ASSIGN(const bool done, channel.handshake());
    if (done) return {};
    TANDEM_TRY(wait_for(channel.fd(), static_cast<short>(channel.events(false)), deadline));
  }
}

Result<Channel> connect_peer(const std::string& host, std::uint16_t port, const Credentials& credentials,
                             TimePoint deadline) {
  TANDEM_ASSIGN(Socket socket, connect_tcp(host, port, deadline));
  if (const Status allowed = check_peer(credentials, socket); !allowed.ok())
    return allowed.context(endpoint_name(host, port));
  watch_link(socket);
  Channel channel(std::move(socket), credentials, Channel::Side::kClient);
  if (auto done = shake_hands(channel, deadline); !done) return done.error().context(endpoint_name(host, port));
  return channel;
}

Result<void> send_message(Channel& channel, const Message& message, TimePoint deadline) {
  const std::vector<std::byte> payload = encode(message);
  TANDEM_ASSERT(payload.size() <= kMaxMessageBytes, "our own messages are short");
  const auto size = static_cast<std::uint32_t>(payload.size());
  std::vector<std::byte> frame(kFrameMagic.size() + sizeof size);
  std::copy(kFrameMagic.begin(), kFrameMagic.end(), frame.begin());
  std::memcpy(frame.data() + kFrameMagic.size(), &size, sizeof size);
  frame.insert(frame.end(), payload.begin(), payload.end());
  return send_all(channel, frame, deadline);
}

Result<Message> receive_message(Channel& channel, TimePoint deadline) {
  std::array<std::byte, kFrameMagic.size()> magic{};
  TANDEM_TRY(receive_all(channel, magic, deadline));
  if (begins_like_tls(magic)) return speaks_tls_error();
  if (magic != kFrameMagic) return Status(Code::kInvalidArgument, "it speaks another protocol", Scope::kPeer);
  std::uint32_t size = 0;
  TANDEM_TRY(receive_all(channel, std::as_writable_bytes(std::span(&size, 1)), deadline));
  if (size > kMaxMessageBytes)
    return Status(Code::kInvalidArgument,
                  fmt::format("a message of {} bytes; at most {} are allowed", size, kMaxMessageBytes), Scope::kPeer);
  std::vector<std::byte> payload;
  // As it comes: a length alone takes no memory.
  while (payload.size() < size) {
    const std::size_t done = payload.size();
    payload.resize(std::min<std::size_t>(size, done + kGrowth));
    TANDEM_TRY(receive_all(channel, std::span(payload).subspan(done), deadline));
  }
  auto message = decode(payload);
  if (!message) return message.error().with_scope(Scope::kPeer);
  return message;
}

bool readable(const Socket& socket, std::chrono::milliseconds timeout) {
  pollfd entry{socket.fd(), POLLIN, 0};
  return poll(&entry, 1, static_cast<int>(timeout.count())) > 0;
}

bool readable(const Channel& channel, std::chrono::milliseconds timeout) {
  return channel.has_buffered() || readable(channel.socket(), timeout);
}

}  // namespace tandem::comm
