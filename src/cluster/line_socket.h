// SPDX-License-Identifier: Apache-2.0
// A TCP connection with a deadline on everything: lines for the agent's protocol, bytes for measuring. For tools that
// talk to one peer at a time; the serving path has its own (net, transfer).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/status.h"

namespace tandem::cluster {

class LineSocket {
 public:
  /// Takes over `fd`. Every wait also ends, with kCancelled, once `*stop` is set (may be null; must outlive this).
  explicit LineSocket(int fd, const std::atomic<bool>* stop = nullptr);
  ~LineSocket();
  LineSocket(LineSocket&& other) noexcept;
  LineSocket& operator=(LineSocket&& other) noexcept;

  /// The error tells a name that is not known, a refusal and silence apart.
  static Result<LineSocket> connect(const std::string& host, std::uint16_t port, TimePoint deadline,
                                    const std::atomic<bool>* stop = nullptr);

  Result<void> send(std::string_view bytes, TimePoint deadline);
  /// Without its newline. kResourceExhausted: longer than `max_bytes`; kUnavailable: closed before a line was whole.
  Result<std::string> receive_line(std::size_t max_bytes, TimePoint deadline);
  /// At least one byte; 0: the peer sends no more.
  Result<std::size_t> receive(char* buffer, std::size_t size, TimePoint deadline);
  void shutdown_send();

 private:
  Result<void> wait(short events, TimePoint deadline) const;

  int fd_ = -1;
  const std::atomic<bool>* stop_ = nullptr;
  std::string buffered_;  ///< read behind the last line
};

/// A listening socket.
class Listener {
 public:
  Listener() = default;
  ~Listener();
  Listener(Listener&& other) noexcept : fd_(std::exchange(other.fd_, -1)), port_(other.port_) {}
  Listener& operator=(Listener&&) = delete;

  /// IPv4 address; port 0: any free one.
  static Result<Listener> open(const std::string& host, std::uint16_t port);
  std::uint16_t port() const { return port_; }
  /// The next connection's descriptor, or -1 if none came within `timeout`.
  int accept(std::chrono::milliseconds timeout) const;

 private:
  int fd_ = -1;
  std::uint16_t port_ = 0;
};

}  // namespace tandem::cluster
