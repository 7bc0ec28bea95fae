// SPDX-License-Identifier: Apache-2.0
#include "transfer/acceptor.h"

#include <fmt/format.h>
#include <netdb.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.h"

namespace tandem::transfer {
namespace {

constexpr auto kPause = std::chrono::milliseconds(100);

std::string address_name(const sockaddr_storage& address, socklen_t size) {
  char host[NI_MAXHOST] = "?";
  char port[NI_MAXSERV] = "?";
  (void)getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV);
  return fmt::format("{} port {}", host, port);
}

}  // namespace

Acceptor::Acceptor(EventLoop& loop, Socket listener, std::function<void(Socket, std::string)> on_socket)
    : loop_(loop), listener_(std::move(listener)), on_socket_(std::move(on_socket)) {
  watch_ = loop_.watch(listener_.fd(), EPOLLIN, [this](std::uint32_t) { accept_all(); });
}

Acceptor::~Acceptor() {
  loop_.cancel(pause_);
  loop_.unwatch(watch_, listener_.fd());
}

void Acceptor::accept_all() {
  for (;;) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    Socket socket(accept4(listener_.fd(), reinterpret_cast<sockaddr*>(&address), &size, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket) {
      on_socket_(std::move(socket), address_name(address, size));
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return;
    // Out of descriptors: the listener stays readable, so look away for a while instead of spinning.
    log::warning("transfer: cannot accept a connection: {}", std::strerror(errno));
    loop_.change(watch_, listener_.fd(), 0);
    pause_ = loop_.after(kPause, [this] { loop_.change(watch_, listener_.fd(), EPOLLIN); });
    return;
  }
}

}  // namespace tandem::transfer
