// SPDX-License-Identifier: Apache-2.0
// Takes connections from a listening socket for as long as it lives. Loop thread only.
#pragma once

#include <functional>
#include <string>

#include "base/tcp_socket.h"
#include "transfer/event_loop.h"

namespace tandem::transfer {

class Acceptor {
 public:
  /// `on_socket` gets non-blocking sockets and, for TCP, the peer's address for messages.
  Acceptor(EventLoop& loop, Socket listener, std::function<void(Socket, std::string peer)> on_socket);
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

 private:
  void accept_all();

  EventLoop& loop_;
  Socket listener_;
  std::function<void(Socket, std::string)> on_socket_;
  EventLoop::WatchId watch_ = 0;
  EventLoop::TimerId pause_;
};

}  // namespace tandem::transfer
