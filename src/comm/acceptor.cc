// SPDX-License-Identifier: Apache-2.0
#include "comm/acceptor.h"

#include <chrono>
#include <utility>

#include "base/log.h"

namespace tandem::comm {
namespace {

using namespace std::chrono_literals;

constexpr auto kLookAround = 200ms;
constexpr auto kHandshake = 3s;
/// Strangers that connect and say nothing take a thread each until their time is over; more are turned away.
constexpr std::size_t kMaxConnections = 4 * static_cast<std::size_t>(kMaxRanks);

}  // namespace

Acceptor::Acceptor(Socket listener, Credentials credentials, Handler handler)
    : listener_(std::move(listener)),
      port_(bound_port(listener_)),
      credentials_(std::move(credentials)),
      handler_(std::move(handler)),
      thread_([this](const std::stop_token& stop) { run(stop); }) {}

void Acceptor::run(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    if (!readable(listener_, kLookAround)) continue;
    connections_.remove_if([](const Connection& one) { return one.over->load(); });
    // Blocking reads never happen: stream.cc waits with a deadline.
    Socket socket(accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      std::this_thread::sleep_for(10ms);  // gone already, or out of descriptors
      continue;
    }
    if (connections_.size() >= kMaxConnections) continue;
    Connection& connection = connections_.emplace_back();
    connection.thread =
        std::jthread([this, socket = std::move(socket), over = connection.over](const std::stop_token& own) mutable {
          serve(std::move(socket), own);
          over->store(true);
        });
  }
  for (Connection& connection : connections_) connection.thread.request_stop();
  connections_.clear();
}

/// The connection's first message, once it has proved who it is.
Result<Message> Acceptor::let_in(Channel& channel) {
  if (const Status allowed = check_peer(credentials_, channel.socket()); !allowed.ok()) return allowed;
  const auto deadline = std::chrono::steady_clock::now() + kHandshake;
  TANDEM_TRY(shake_hands(channel, deadline));
  auto first = receive_message(channel, deadline);
  // A peer with TLS learns from a plain answer that there is none here.
  if (!first && first.error().code() == Code::kFailedPrecondition)
    (void)send_message(channel, Refused{true, first.error().message()}, deadline);
  return first;
}

void Acceptor::serve(Socket socket, const std::stop_token& stop) {
  const std::string host = peer_host(socket);
  watch_link(socket);
  Channel channel(std::move(socket), credentials_, Channel::Side::kServer);
  const Result<Message> first = let_in(channel);
  if (first) return handler_(std::move(channel), *first, stop);
  if (turned_away_.due(host)) log::warning("a connection from {} is turned away: {}", host, first.error().message());
}

}  // namespace tandem::comm
