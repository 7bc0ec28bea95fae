// SPDX-License-Identifier: Apache-2.0
// Messages over a connection with a deadline on every wait, and what comes before the first one: who may take part, and
// the TLS handshake. For the few and small messages that are not part of a round.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "base/channel.h"
#include "base/clock.h"
#include "base/peer_tls.h"
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

/// What connections of a cluster are let in by; nullptr: plain, and then only hosts of private networks are let in
/// (is_private_host).
using Credentials = std::shared_ptr<const PeerTls>;
/// Not ok if the other end of the connection may not take part.
Status check_peer(const Credentials& credentials, const Socket& socket);
/// Both sides prove who they are. Nothing of a peer is read before. kFailedPrecondition: they do not fit.
Result<void> shake_hands(Channel& channel, TimePoint deadline);
/// All of the above for the side that connects.
Result<Channel> connect_peer(const std::string& host, std::uint16_t port, const Credentials& credentials,
                             TimePoint deadline);

/// One frame: "TCOM", a length of 4 bytes, a payload. A receiver and a sender may be two threads.
Result<void> send_message(Channel& channel, const Message& message, TimePoint deadline);
Result<Message> receive_message(Channel& channel, TimePoint deadline);
/// Whether something can be read (also the end of the stream) before `timeout` is over.
bool readable(const Socket& socket, std::chrono::milliseconds timeout);
bool readable(const Channel& channel, std::chrono::milliseconds timeout);

}  // namespace tandem::comm
