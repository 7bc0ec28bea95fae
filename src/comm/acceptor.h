// SPDX-License-Identifier: Apache-2.0
// The one port of a process at which the other processes of its instance connect. With TLS a connection is read only
// after it proved who it is; its first message says what it is for.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>

#include "base/channel.h"
#include "base/seldom.h"
#include "base/status.h"
#include "base/tcp_socket.h"
#include "comm/messages.h"
#include "comm/stream.h"

namespace tandem::comm {

class Acceptor {
 public:
  /// Runs on a thread of the connection's own; returns when it is over or soon after a stop is asked for.
  using Handler = std::function<void(Channel, const Message& first, const std::stop_token&)>;

  Acceptor(Socket listener, Credentials credentials, Handler handler);
  /// Waits for all handlers.
  ~Acceptor() = default;
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  std::uint16_t port() const { return port_; }

 private:
  struct Connection {
    std::shared_ptr<std::atomic<bool>> over = std::make_shared<std::atomic<bool>>(false);
    std::jthread thread;
  };
  void run(const std::stop_token& stop);
  void serve(Socket socket, const std::stop_token& stop);
  Result<Message> let_in(Channel& channel);

  const Socket listener_;
  const std::uint16_t port_;
  const Credentials credentials_;
  const Handler handler_;
  Seldom turned_away_;                 ///< by host
  std::list<Connection> connections_;  ///< used by thread_ only
  std::jthread thread_;                // last: stops first
};

}  // namespace tandem::comm
