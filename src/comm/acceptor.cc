// SPDX-License-Identifier: Apache-2.0
#include "comm/acceptor.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "base/log.h"
#include "comm/stream.h"

namespace tandem::comm {
namespace {

using namespace std::chrono_literals;

constexpr auto kLookAround = 200ms;
constexpr auto kHandshake = 3s;
/// Strangers that connect and say nothing take a thread each until their time is over; more are turned away.
constexpr std::size_t kMaxConnections = 4 * static_cast<std::size_t>(kMaxRanks);

}  // namespace

Status check_peer(const Admission& admission, const Socket& socket) {
  const std::string host = peer_host(socket);
  if (!admission.only_private || is_private_host(host)) return {};
  return {
      Code::kFailedPrecondition,
      fmt::format("{} is an address of the internet; set TANDEM_CLUSTER_SECRET to the same text in all processes of "
                  "the instance",
                  host),
      Scope::kPeer};
}

Acceptor::Acceptor(Socket listener, Admission admission, Handler handler)
    : listener_(std::move(listener)),
      port_(bound_port(listener_)),
      admission_(std::move(admission)),
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

void Acceptor::serve(Socket socket, const std::stop_token& stop) const {
  const std::string host = peer_host(socket);
  const auto turn_away = [&](const Status& why) {
    log::warning("a connection from {} is turned away: {}", host, why.message());
  };
  if (const Status allowed = check_peer(admission_, socket); !allowed.ok()) return turn_away(allowed);
  const auto deadline = std::chrono::steady_clock::now() + kHandshake;
  if (auto known = authenticate(socket, admission_.secret, Side::kServer, deadline); !known)
    return turn_away(known.error());
  auto first = receive_message(socket, deadline);
  if (!first) return turn_away(first.error());
  watch_link(socket);
  handler_(std::move(socket), *first, stop);
}

}  // namespace tandem::comm
