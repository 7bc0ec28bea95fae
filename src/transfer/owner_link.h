// SPDX-License-Identifier: Apache-2.0
// The reader's link to one incarnation of one owner: control connection, handshake, choice of transport, the leases
// that we hold there and their heartbeats. Loop thread only.
//
//   kIdle ──connect()──▶ kConnecting ──Welcome, transport chosen──▶ kReady
//     ▲                      │ refused, timeout, wrong peer            │ lost, silent
//     └──────────────────────┴─────────────────────────────────────────┘   (again while leases are held)
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transfer/connection.h"
#include "transfer/context.h"
#include "transfer/dialer.h"
#include "transfer/transport.h"

namespace tandem::transfer {

class OwnerLink : public std::enable_shared_from_this<OwnerLink> {
 public:
  /// A restarted owner is another key, however equal its address is.
  struct Key {
    std::string host;
    std::uint16_t port = 0;
    std::uint64_t incarnation = 0;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  /// Called on later turns of the loop than the call that caused them.
  struct Events {
    std::function<void(OwnerLink&)> on_ready;
    /// An attempt to connect, or the connection. `gone`: the link gives up, the leases are over.
    std::function<void(OwnerLink&, Status, bool gone)> on_failed;
    std::function<void(OwnerLink&, wire::Message)> on_message;
    std::function<void(OwnerLink&)> on_unused;  ///< nothing held here for a while, or the owner is gone for good
  };

  OwnerLink(Context& context, Key key, std::string engine_id, Events events);
  ~OwnerLink() { close(); }
  OwnerLink(const OwnerLink&) = delete;
  OwnerLink& operator=(const OwnerLink&) = delete;

  const Key& key() const { return key_; }
  const std::string& name() const { return name_; }  ///< "'engine' at host:port"
  bool ready() const { return state_ == State::kReady; }
  void connect();
  void send(const wire::Message& message);
  Transport& transport() { return *transport_; }
  /// The owner's KV memory; of a ready link. What still reads by it may keep it beyond the link.
  const std::shared_ptr<const Shards>& owner() const { return owner_; }

  void hold(std::uint64_t lease);
  /// A fetch of the lease starts: it uses one of the holds, or adds one.
  void begin_fetch(std::uint64_t lease);
  void end_fetch(std::uint64_t lease, bool success);
  /// One hold less, or "not needed" for a lease that was never held here.
  void drop(std::uint64_t lease);
  /// The owner said that it is over; later releases need not be sent.
  void lease_over(std::uint64_t lease);
  bool used() const { return !holds_.empty() || !releases_.empty(); }
  /// Releases everything and closes.
  void close();

 private:
  enum class State { kIdle, kConnecting, kReady, kClosed };
  struct Hold {
    int count = 0;
    int fetches = 0;
    bool fetched = false;  ///< at least one fetch succeeded: the owner hears "done"
    bool over = false;
  };
  struct Release {
    std::uint64_t lease = 0;
    bool done = false;
  };

  void on_connected(Socket socket);
  void on_message(wire::Message message);
  void on_welcome(wire::Welcome welcome);
  Status check_identity(const wire::Identity& owner) const;
  void choose_transport();
  void use_transport(std::shared_ptr<Transport> transport);
  void on_mapped(Result<std::shared_ptr<PeerMemory>> memory);
  void heartbeat();
  void release(std::uint64_t lease);
  void flush_releases();
  void fail(Status why, bool for_good);
  void reset();
  LeaseId lease_id(std::uint64_t lease) const { return {key_.incarnation, lease}; }
  Duration term() const;
  void arm(EventLoop::TimerId& timer, Duration delay, std::function<void()> task);

  Context& context_;
  Key key_;
  std::string engine_id_;
  std::string name_;
  Events events_;
  State state_ = State::kIdle;
  std::uint64_t attempt_ = 0;  ///< answers of pool threads to an older attempt are ignored
  std::shared_ptr<Dialer> dialer_;
  std::shared_ptr<Connection> connection_;
  std::optional<wire::Welcome> welcome_;
  std::shared_ptr<const Shards> owner_;
  std::shared_ptr<Transport> transport_;
  std::map<std::uint64_t, Hold> holds_;
  std::vector<Release> releases_;  ///< to be said once connected
  EventLoop::TimerId deadline_;    ///< of the connect
  EventLoop::TimerId beat_;
  EventLoop::TimerId retry_;
  std::uint64_t renew_sequence_ = 0;
  std::uint64_t renew_answered_ = 0;
  TimePoint last_contact_;
  TimePoint last_use_;
  Duration backoff_{};
};

}  // namespace tandem::transfer
