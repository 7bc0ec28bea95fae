// SPDX-License-Identifier: Apache-2.0
#include "cluster/line_socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

namespace tandem::cluster {
namespace {

using SteadyTime = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::int64_t kStopSlice = 50;  // ms between two looks at the stop flag

Status failed(std::string_view what, int error) {
  const Code code = error == ETIMEDOUT ? Code::kDeadlineExceeded : Code::kUnavailable;
  return Status(code, fmt::format("{}: {}", what, strerror(error)), Scope::kPeer);
}

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Result<Addresses> resolve(const std::string& host, std::uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found); error != 0)
    return Status(Code::kNotFound, fmt::format("host '{}' is not known: {}", host, gai_strerror(error)), Scope::kPeer);
  return Addresses(found, &freeaddrinfo);
}

}  // namespace

LineSocket::LineSocket(int fd, const std::atomic<bool>* stop) : fd_(fd), stop_(stop) {
  if (fd_ < 0) return;
  fcntl(fd_, F_SETFL, fcntl(fd_, F_GETFL) | O_NONBLOCK);
  const int on = 1;
  setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

LineSocket::~LineSocket() {
  if (fd_ >= 0) close(fd_);
}

LineSocket::LineSocket(LineSocket&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), stop_(other.stop_), buffered_(std::move(other.buffered_)) {}

LineSocket& LineSocket::operator=(LineSocket&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(stop_, other.stop_);
  std::swap(buffered_, other.buffered_);
  return *this;
}

Result<LineSocket> LineSocket::connect(const std::string& host, std::uint16_t port, TimePoint deadline,
                                       const std::atomic<bool>* stop) {
  const std::string what = fmt::format("connect to {}:{}", host, port);
  TANDEM_ASSIGN(const Addresses addresses, resolve(host, port, 0));
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return failed(what, errno);
  LineSocket made(fd, stop);
  if (::connect(fd, addresses->ai_addr, addresses->ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return failed(what, errno);
    if (auto waited = made.wait(POLLOUT, deadline); !waited) return waited.error().context(what);
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return failed(what, error);
  }
  return made;
}

Result<void> LineSocket::wait(short events, TimePoint deadline) const {
  for (;;) {
    if (stop_ != nullptr && stop_->load(std::memory_order_relaxed))
      return Status(Code::kCancelled, "stopped", Scope::kPeer);
    const auto left = std::chrono::ceil<milliseconds>(deadline - SteadyTime::now()).count();
    if (left <= 0) return Status(Code::kDeadlineExceeded, "no answer in time", Scope::kPeer);
    pollfd poll_fd{fd_, events, 0};
    if (poll(&poll_fd, 1, static_cast<int>(std::min<std::int64_t>(left, kStopSlice))) > 0) return {};
  }
}

Result<void> LineSocket::send(std::string_view bytes, TimePoint deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
      if (SteadyTime::now() < deadline) continue;
      if (bytes.empty()) return {};
    } else if (errno == EINTR) {
      continue;
    } else if (errno != EAGAIN && errno != EWOULDBLOCK) {
      return failed("send", errno);
    }
    TANDEM_TRY(wait(POLLOUT, deadline));
  }
  return {};
}

Result<std::size_t> LineSocket::receive(char* buffer, std::size_t size, TimePoint deadline) {
  if (!buffered_.empty()) {
    const std::size_t taken = buffered_.copy(buffer, size);
    buffered_.erase(0, taken);
    return taken;
  }
  for (;;) {
    const ssize_t got = recv(fd_, buffer, size, 0);
    if (got >= 0) return static_cast<std::size_t>(got);
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return failed("receive", errno);
    TANDEM_TRY(wait(POLLIN, deadline));
  }
}

Result<std::string> LineSocket::receive_line(std::size_t max_bytes, TimePoint deadline) {
  std::string line;
  std::array<char, 16384> piece{};
  for (;;) {
    TANDEM_ASSIGN(const std::size_t got, receive(piece.data(), piece.size(), deadline));
    if (got == 0) return Status(Code::kUnavailable, "the peer closed the connection", Scope::kPeer);
    const std::string_view view(piece.data(), got);
    const std::size_t end = view.find('\n');
    line += view.substr(0, end);
    if (line.size() > max_bytes)
      return Status(Code::kResourceExhausted, fmt::format("a line of more than {} bytes", max_bytes), Scope::kPeer);
    if (end == std::string_view::npos) continue;
    buffered_ = std::string(view.substr(end + 1)) + buffered_;
    return line;
  }
}

void LineSocket::shutdown_send() { ::shutdown(fd_, SHUT_WR); }

Listener::~Listener() {
  if (fd_ >= 0) close(fd_);
}

Result<Listener> Listener::open(const std::string& host, std::uint16_t port) {
  const std::string what = fmt::format("listen on {}:{}", host, port);
  TANDEM_ASSIGN(const Addresses addresses, resolve(host, port, AI_PASSIVE));
  Listener listener;
  listener.fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (listener.fd_ < 0) return failed(what, errno);
  const int on = 1;
  setsockopt(listener.fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(listener.fd_, addresses->ai_addr, addresses->ai_addrlen) != 0 || listen(listener.fd_, 16) != 0)
    return failed(what, errno);
  sockaddr_in own{};
  socklen_t size = sizeof(own);
  getsockname(listener.fd_, reinterpret_cast<sockaddr*>(&own), &size);
  listener.port_ = ntohs(own.sin_port);
  return listener;
}

int Listener::accept(std::chrono::milliseconds timeout) const {
  pollfd poll_fd{fd_, POLLIN, 0};
  if (poll(&poll_fd, 1, static_cast<int>(timeout.count())) <= 0) return -1;
  return accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC);
}

}  // namespace tandem::cluster
