// SPDX-License-Identifier: Apache-2.0
// The one port of a process at which the other processes of its instance connect. A connection is read only after it
// proved that it knows the secret; its first message says what it is for.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>

#include "base/status.h"
#include "base/tcp_socket.h"
#include "comm/messages.h"

namespace tandem::comm {

/// What all connections of a cluster are checked with.
struct Admission {
  std::string secret;
  /// No secret was given, so that everybody who knows this program could prove it: then only hosts of private networks
  /// are let in (is_private_host).
  bool only_private = false;
};
/// Not ok if the other end of the connection may not take part.
Status check_peer(const Admission& admission, const Socket& socket);

class Acceptor {
 public:
  /// Runs on a thread of the connection's own; returns when it is over or soon after a stop is asked for.
  using Handler = std::function<void(Socket, const Message& first, const std::stop_token&)>;

  Acceptor(Socket listener, Admission admission, Handler handler);
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
  void serve(Socket socket, const std::stop_token& stop) const;

  const Socket listener_;
  const std::uint16_t port_;
  const Admission admission_;
  const Handler handler_;
  std::list<Connection> connections_;  ///< used by thread_ only
  std::jthread thread_;                // last: stops first
};

}  // namespace tandem::comm
