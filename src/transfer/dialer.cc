// SPDX-License-Identifier: Apache-2.0
#include "transfer/dialer.h"

#include <sys/epoll.h>

#include <cstring>
#include <utility>

namespace tandem::transfer {

std::shared_ptr<Dialer> Dialer::start(EventLoop& loop, std::vector<Address> addresses, Done done) {
  std::shared_ptr<Dialer> dialer(new Dialer(loop, std::move(done)));
  dialer->on_resolved(std::move(addresses));
  return dialer;
}

std::shared_ptr<Dialer> Dialer::start(EventLoop& loop, WorkPool& blocking, const std::string& host, std::uint16_t port,
                                      Done done) {
  std::shared_ptr<Dialer> dialer(new Dialer(loop, std::move(done)));
  if (is_numeric_host(host)) {
    dialer->on_resolved(resolve(host, port));
    return dialer;
  }
  blocking.submit([weak = dialer->weak_from_this(), &loop, host, port] {
    auto addresses = std::make_shared<Result<std::vector<Address>>>(resolve(host, port));
    loop.post([weak, addresses] {
      if (const auto self = weak.lock()) self->on_resolved(std::move(*addresses));
    });
  });
  return dialer;
}

Dialer::~Dialer() {
  if (socket_) loop_.unwatch(watch_, socket_.fd());
}

void Dialer::on_resolved(Result<std::vector<Address>> addresses) {
  if (!addresses) return finish(addresses.error());
  addresses_ = std::move(*addresses);
  try_next("no address");
}

void Dialer::try_next(std::string why) {
  while (next_ < addresses_.size()) {
    auto socket = start_connect(addresses_[next_++]);
    if (!socket) {
      why = socket.error().message();
      continue;
    }
    socket_ = std::move(*socket);
    watch_ = loop_.watch(socket_.fd(), EPOLLOUT, [this](std::uint32_t) {
      const auto self = shared_from_this();
      loop_.unwatch(watch_, socket_.fd());
      const int error = connect_error(socket_);
      Socket connected = std::move(socket_);
      if (error != 0) return try_next(std::strerror(error));
      std::exchange(done_, nullptr)(std::move(connected));
    });
    return;
  }
  finish(Status(Code::kUnavailable, std::move(why), Scope::kPeer));
}

void Dialer::finish(Result<Socket> result) {
  loop_.post([weak = weak_from_this(), shared = std::make_shared<Result<Socket>>(std::move(result))] {
    if (const auto self = weak.lock()) std::exchange(self->done_, nullptr)(std::move(*shared));
  });
}

}  // namespace tandem::transfer
