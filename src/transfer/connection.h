// SPDX-License-Identifier: Apache-2.0
// One TCP connection that carries messages (control, and the owner's end of data connections). Loop thread only.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/channel.h"
#include "base/status.h"
#include "transfer/event_loop.h"
#include "transfer/wire.h"

namespace tandem::transfer {

/// For a request, a peer that does not fit (Connection::start) is one that cannot be reached.
Status as_unreachable(const Status& why);

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  /// Output that a peer does not take is held up to this; then the connection is closed.
  static constexpr std::size_t kMaxOutput = std::size_t{32} << 20;

  Connection(EventLoop& loop, Channel channel, std::string peer);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// `on_message` gets what the peer says; `on_closed` is called once, never from within send() or close(), when the
  /// peer closed, broke the protocol or could not be reached; kFailedPrecondition: it is of another release, or does
  /// not prove who it is as this side does (base/peer_tls.h). close() ends both.
  void start(std::function<void(wire::Message)> on_message, std::function<void(Status)> on_closed);
  /// Called when buffered output has gone out and while more is wanted (see want_writable).
  void on_writable(std::function<void()> callback) { on_writable_ = std::move(callback); }
  void want_writable(bool want);
  void send(const wire::Message& message);
  /// Drops the connection now. What send() took and the kernel has not is tried once more.
  void close();

  std::size_t unsent_bytes() const { return output_.size() - sent_; }
  Channel& channel() { return channel_; }
  const std::string& peer() const { return peer_; }
  bool open() const { return static_cast<bool>(channel_); }
  /// Closes and reports `why` to on_closed, on a later turn of the loop.
  void fail(Status why);

 private:
  void handle(std::uint32_t events);
  void read_some();
  void flush();
  void update_interest();
  Status broken() const;

  EventLoop& loop_;
  Channel channel_;
  std::string peer_;
  EventLoop::WatchId watch_ = 0;
  std::uint32_t interest_ = 0;
  wire::FrameReader reader_;
  std::vector<std::byte> output_;
  std::size_t sent_ = 0;  ///< of output_
  bool want_writable_ = false;
  std::function<void(wire::Message)> on_message_;
  std::function<void(Status)> on_closed_;
  std::function<void()> on_writable_;
};

}  // namespace tandem::transfer
