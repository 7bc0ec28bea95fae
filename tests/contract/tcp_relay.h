// SPDX-License-Identifier: Apache-2.0
// A TCP relay on 127.0.0.1 that forwards connections to a port and can cut, freeze or bend what the owner sends.
#pragma once

#include <sys/socket.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/tcp_socket.h"

namespace tandem::transfer::test {

class TcpRelay {
 public:
  explicit TcpRelay(std::uint16_t target_port);
  ~TcpRelay();
  TcpRelay(const TcpRelay&) = delete;
  TcpRelay& operator=(const TcpRelay&) = delete;

  std::uint16_t port() const { return bound_port(listener_); }
  int num_accepted() const { return accepted_; }
  /// Closes all connections, both ways, now.
  void cut_all();
  void refuse_new() { refusing_ = true; }

  // Positions are bytes from the target, over all connections, from now on.
  void cut_after(std::uint64_t bytes) { arm(Fault::kCut, bytes); }
  void freeze_after(std::uint64_t bytes) { arm(Fault::kFreeze, bytes); }
  void flip_at(std::uint64_t byte) { arm(Fault::kFlip, byte); }
  void heal();

 private:
  enum class Fault { kNone, kCut, kFreeze, kFlip };
  struct Link {
    Socket reader;
    Socket target;
    bool dead = false;
  };
  void arm(Fault fault, std::uint64_t at);
  void run();
  void accept_one();
  /// False if the connection is over.
  bool forward(Link& link, bool from_target);

  std::uint16_t target_port_;
  Socket listener_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> refusing_{false};
  std::atomic<int> accepted_{0};
  std::mutex mutex_;  ///< guards all below
  std::vector<std::unique_ptr<Link>> links_;
  Fault fault_ = Fault::kNone;
  bool frozen_ = false;
  std::uint64_t at_ = 0;
  std::uint64_t passed_ = 0;
  std::jthread thread_;
};

}  // namespace tandem::transfer::test
