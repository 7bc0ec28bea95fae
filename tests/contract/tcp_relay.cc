// SPDX-License-Identifier: Apache-2.0
#include "contract/tcp_relay.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>

namespace tandem::transfer::test {

TcpRelay::TcpRelay(std::uint16_t target_port) : target_port_(target_port) {
  auto made = listen_tcp("127.0.0.1", 0, "a test");
  EXPECT_TRUE(made) << made.error().to_string();
  listener_ = std::move(*made);
  thread_ = std::jthread([this] { run(); });
}

TcpRelay::~TcpRelay() { stopping_ = true; }

void TcpRelay::cut_all() {
  const std::lock_guard lock(mutex_);
  links_.clear();
}

void TcpRelay::arm(Fault fault, std::uint64_t at) {
  const std::lock_guard lock(mutex_);
  fault_ = fault;
  at_ = at;
  passed_ = 0;
}

void TcpRelay::heal() {
  const std::lock_guard lock(mutex_);
  fault_ = Fault::kNone;
  if (frozen_) links_.clear();
  frozen_ = false;
}

void TcpRelay::accept_one() {
  Socket reader(accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!reader || refusing_) return;
  auto link = std::make_unique<Link>();
  auto addresses = resolve("127.0.0.1", target_port_);
  ASSERT_TRUE(addresses);
  link->reader = std::move(reader);
  link->target = Socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr* address = reinterpret_cast<const sockaddr*>(&(*addresses)[0].storage);
  if (connect(link->target.fd(), address, (*addresses)[0].size) != 0) return;
  ++accepted_;
  links_.push_back(std::move(link));
}

void TcpRelay::run() {
  while (!stopping_) {
    std::vector<pollfd> fds = {{listener_.fd(), POLLIN, 0}};
    {
      const std::lock_guard lock(mutex_);
      for (const auto& link : links_) {
        const short events = frozen_ ? 0 : POLLIN;
        fds.push_back({link->reader.fd(), events, 0});
        fds.push_back({link->target.fd(), events, 0});
      }
    }
    poll(fds.data(), fds.size(), 5);
    const std::lock_guard lock(mutex_);
    if ((fds[0].revents & POLLIN) != 0) accept_one();
    for (const auto& link : links_) {
      for (const pollfd& fd : fds) {
        if (fd.revents == 0 || link->dead || frozen_) continue;
        if (fd.fd == link->reader.fd()) link->dead = !forward(*link, false);
        if (!link->dead && fd.fd == link->target.fd()) link->dead = !forward(*link, true);
      }
    }
    std::erase_if(links_, [](const auto& link) { return link->dead; });
  }
}

bool TcpRelay::forward(Link& link, bool from_target) {
  char bytes[4096];
  const Socket& from = from_target ? link.target : link.reader;
  const Socket& to = from_target ? link.reader : link.target;
  const ssize_t count = recv(from.fd(), bytes, sizeof bytes, MSG_DONTWAIT);
  if (count < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
  if (count == 0) return false;
  auto size = static_cast<std::size_t>(count);
  bool over = false;
  if (from_target && fault_ != Fault::kNone) {
    if (passed_ + size > at_ && passed_ <= at_) {
      const std::uint64_t within = at_ - passed_;
      if (fault_ == Fault::kFlip) {
        bytes[within] = static_cast<char>(bytes[within] ^ 0x04);
      } else {
        size = within;
        over = fault_ == Fault::kCut;
        frozen_ = fault_ == Fault::kFreeze;
      }
    }
    passed_ += static_cast<std::size_t>(count);
  }
  for (std::size_t sent = 0; sent < size;) {
    const ssize_t n = send(to.fd(), bytes + sent, size - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      sent += static_cast<std::size_t>(n);
      continue;
    }
    if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) return false;
    pollfd writable{to.fd(), POLLOUT, 0};
    poll(&writable, 1, 100);
    if (stopping_) return false;
  }
  return !over;
}

}  // namespace tandem::transfer::test
