// SPDX-License-Identifier: Apache-2.0
#include "comm/stream.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
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
constexpr std::size_t kProofBytes = 32;
using Proof = std::array<std::byte, kProofBytes>;
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

Result<void> send_all(const Socket& socket, std::span<const std::byte> bytes, TimePoint deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    } else if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      TANDEM_TRY(wait_for(socket.fd(), POLLOUT, deadline));
    } else if (errno != EINTR) {
      return gone(std::strerror(errno));
    }
  }
  return {};
}

Result<void> receive_all(const Socket& socket, std::span<std::byte> bytes, TimePoint deadline) {
  while (!bytes.empty()) {
    const ssize_t got = recv(socket.fd(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(got));
    } else if (got == 0) {
      return gone("it closed the connection");
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      TANDEM_TRY(wait_for(socket.fd(), POLLIN, deadline));
    } else if (errno != EINTR) {
      return gone(std::strerror(errno));
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

Proof prove(std::string_view secret, std::string_view role, const Proof& client, const Proof& server) {
  std::vector<unsigned char> text(role.begin(), role.end());
  for (const Proof* part : {&client, &server})
    for (const std::byte byte : *part) text.push_back(static_cast<unsigned char>(byte));
  Proof proof{};
  unsigned int size = 0;
  const unsigned char* done = HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()), text.data(),
                                   text.size(), reinterpret_cast<unsigned char*>(proof.data()), &size);
  TANDEM_ASSERT(done != nullptr && size == kProofBytes, "HMAC-SHA256 has 32 bytes");
  return proof;
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

Result<void> authenticate(const Socket& socket, std::string_view secret, Side side, TimePoint deadline) {
  Proof ours{};
  if (RAND_bytes(reinterpret_cast<unsigned char*>(ours.data()), static_cast<int>(ours.size())) != 1)
    return Status(Code::kInternal, "the system gives no random bytes", Scope::kProcess);
  TANDEM_TRY(send_all(socket, ours, deadline));
  Proof theirs{};
  TANDEM_TRY(receive_all(socket, theirs, deadline));
  const bool client = side == Side::kClient;
  const Proof& of_client = client ? ours : theirs;
  const Proof& of_server = client ? theirs : ours;
  const Proof client_proof = prove(secret, "tandem client", of_client, of_server);
  const Proof server_proof = prove(secret, "tandem server", of_client, of_server);
  TANDEM_TRY(send_all(socket, client ? client_proof : server_proof, deadline));
  Proof proof{};
  TANDEM_TRY(receive_all(socket, proof, deadline));
  const Proof& expected = client ? server_proof : client_proof;
  if (CRYPTO_memcmp(proof.data(), expected.data(), proof.size()) != 0)
    return Status(Code::kFailedPrecondition,
                  "it has another secret (TANDEM_CLUSTER_SECRET must be the same in all processes of an instance)",
                  Scope::kPeer);
  return {};
}

Result<void> send_message(const Socket& socket, const Message& message, TimePoint deadline) {
  const std::vector<std::byte> payload = encode(message);
  TANDEM_ASSERT(payload.size() <= kMaxMessageBytes, "our own messages are short");
  const auto size = static_cast<std::uint32_t>(payload.size());
  std::vector<std::byte> frame(sizeof size);
  std::memcpy(frame.data(), &size, sizeof size);
  frame.insert(frame.end(), payload.begin(), payload.end());
  return send_all(socket, frame, deadline);
}

Result<Message> receive_message(const Socket& socket, TimePoint deadline) {
  std::array<std::byte, sizeof(std::uint32_t)> head{};
  TANDEM_TRY(receive_all(socket, head, deadline));
  std::uint32_t size = 0;
  std::memcpy(&size, head.data(), sizeof size);
  if (size > kMaxMessageBytes)
    return Status(Code::kInvalidArgument,
                  fmt::format("a message of {} bytes; at most {} are allowed", size, kMaxMessageBytes), Scope::kPeer);
  std::vector<std::byte> payload;
  // As it comes: a length alone takes no memory.
  while (payload.size() < size) {
    const std::size_t done = payload.size();
    payload.resize(std::min<std::size_t>(size, done + kGrowth));
    TANDEM_TRY(receive_all(socket, std::span(payload).subspan(done), deadline));
  }
  auto message = decode(payload);
  if (!message) return message.error().with_scope(Scope::kPeer);
  return message;
}

bool readable(const Socket& socket, std::chrono::milliseconds timeout) {
  pollfd entry{socket.fd(), POLLIN, 0};
  return poll(&entry, 1, static_cast<int>(timeout.count())) > 0;
}

}  // namespace tandem::comm
