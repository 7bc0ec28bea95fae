// SPDX-License-Identifier: Apache-2.0
// Messages over a TCP connection with a deadline on every wait, and the handshake that comes first. For the few and
// small messages that are not part of a round.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "base/tcp_socket.h"
#include "comm/messages.h"

namespace tandem::comm {

/// Connects with a deadline. The error says whether the name is unknown, nobody listens or nobody answers.
Result<Socket> connect_tcp(const std::string& host, std::uint16_t port, TimePoint deadline);
/// No delay, and a peer whose host or link is gone is noticed within some four seconds, also when nothing is sent.
void watch_link(const Socket& socket);
std::string local_host(const Socket& socket);
std::string peer_host(const Socket& socket);

/// Whether an address belongs to this machine, or to a network that does not reach the internet: loopback, RFC 1918,
/// link-local, 100.64/10, and 192.0.0.0/24; their IPv6 counterparts.
bool is_private_host(const std::string& address);

/// Mutual proof of the secret: each side sends 32 random bytes, then HMAC-SHA256 over its role and both sides' bytes.
/// Nothing else of a peer is read before. The connecting side is the client.
enum class Side { kClient, kServer };
Result<void> authenticate(const Socket& socket, std::string_view secret, Side side, TimePoint deadline);

/// One frame: a length of 4 bytes and a payload.
Result<void> send_message(const Socket& socket, const Message& message, TimePoint deadline);
Result<Message> receive_message(const Socket& socket, TimePoint deadline);
/// Whether something can be read (also the end of the stream) before `timeout` is over.
bool readable(const Socket& socket, std::chrono::milliseconds timeout);

}  // namespace tandem::comm
