// SPDX-License-Identifier: Apache-2.0
// A port taken before the model is loaded: bound, but not listening, so that a port in use is known at once and clients
// see "connection refused" until the instance is ready. A listener that sets SO_REUSEADDR can be bound beside it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace tandem::app {

class PortReservation {
 public:
  /// `host` empty: all interfaces. Port 0 takes a free one. An error names host, port and reason, and of a port in use
  /// the process that listens on it, where the system tells.
  static Result<PortReservation> reserve(const std::string& host, std::uint16_t port);
  PortReservation(PortReservation&& other) noexcept;
  PortReservation& operator=(PortReservation&& other) noexcept;
  ~PortReservation() { release(); }

  std::uint16_t port() const { return port_; }
  void release();

 private:
  PortReservation() = default;
  std::vector<int> sockets_;
  std::uint16_t port_ = 0;
};

/// "process 123 (nginx)" for a local TCP port that somebody listens on, as /proc tells it; else "".
std::string port_owner(std::uint16_t port);

/// The address that other hosts reach this one at: the source address of the default route, or 127.0.0.1.
std::string local_address();
/// The IPv4 address of an interface by name. The error lists the interfaces that have one.
Result<std::string> interface_address(const std::string& interface);
/// Whether the host is the machine itself and no other can reach it.
bool is_loopback(const std::string& host);

}  // namespace tandem::app
