// SPDX-License-Identifier: Apache-2.0
// One attempt to connect: a name is resolved off the loop, then the addresses are tried in turn. It has no deadline of
// its own; whoever started it lets go of it when it has lasted too long, and then hears nothing more. Loop thread only.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/tcp_socket.h"
#include "transfer/event_loop.h"
#include "transfer/work_pool.h"

namespace tandem::transfer {

class Dialer : public std::enable_shared_from_this<Dialer> {
 public:
  /// Called once, on a later turn of the loop. The error says why the last address could not be reached.
  using Done = std::function<void(Result<Socket>)>;

  static std::shared_ptr<Dialer> start(EventLoop& loop, std::vector<Address> addresses, Done done);
  static std::shared_ptr<Dialer> start(EventLoop& loop, WorkPool& blocking, const std::string& host, std::uint16_t port,
                                       Done done);
  ~Dialer();
  Dialer(const Dialer&) = delete;
  Dialer& operator=(const Dialer&) = delete;

  /// What the name stands for; empty until it is resolved.
  const std::vector<Address>& addresses() const { return addresses_; }

 private:
  Dialer(EventLoop& loop, Done done) : loop_(loop), done_(std::move(done)) {}
  void on_resolved(Result<std::vector<Address>> addresses);
  void try_next(std::string why);
  void finish(Result<Socket> result);

  EventLoop& loop_;
  Done done_;
  std::vector<Address> addresses_;
  std::size_t next_ = 0;
  Socket socket_;
  EventLoop::WatchId watch_ = 0;
};

}  // namespace tandem::transfer
