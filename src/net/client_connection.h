// SPDX-License-Identifier: Apache-2.0
// Inside of the HTTP client: one connection, with a deadline and a cancellation that close it. Not for use outside
// src/net.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "net/cancel.h"
#include "net/http_client.h"
#include "net/watchdog.h"

namespace tandem::net {

class ClientConnection : public std::enable_shared_from_this<ClientConnection> {
 public:
  /// `tls`: nullptr is plain TCP.
  ClientConnection(const boost::asio::any_io_executor& executor, std::string peer,
                   std::shared_ptr<boost::asio::ssl::context> tls);

  /// With TLS its handshake is a part of it.
  Task<Result<void>> connect(Endpoint endpoint, TimePoint deadline);
  Task<Result<void>> write_all(std::string_view bytes);
  /// Appends what arrives to the input; false at end of stream.
  Task<Result<bool>> fill();
  void close();

  /// From now on missing the deadline, or cancel(), closes the connection; what was waited for says so.
  void set_deadline(TimePoint deadline, std::string_view step);
  /// The waiting is over; whoever uses the connection may take his time.
  void clear_deadline() { watch_.disarm(); }
  void watch_cancel(const Cancel& cancel);
  /// Nobody uses it now: no deadline, no cancellation.
  void rest();

  std::string_view input() const { return std::string_view(input_).substr(input_at_); }
  void consume(std::size_t bytes);
  void start_answer() { answer_bytes_ = 0; }
  bool any_answer_byte() const { return answer_bytes_ > 0; }
  bool ended_by_us() const { return timed_out_ || cancelled_; }
  std::string local_address() const;
  /// Whether a kept connection was closed by its peer (or has bytes that nobody asked for).
  bool stale();

 private:
  Task<Result<void>> connect_tcp(Endpoint endpoint);
  Task<Result<void>> shake_hands(std::string host);
  Status failure(const boost::system::error_code& error) const;

  boost::asio::any_io_executor executor_;
  boost::asio::ip::tcp::socket socket_;
  std::shared_ptr<boost::asio::ssl::context> tls_context_;
  std::optional<boost::asio::ssl::stream<boost::asio::ip::tcp::socket&>> tls_;  ///< over socket_
  std::string peer_;
  std::string step_;
  Watchdog watch_;
  Cancel::Hook cancel_hook_;
  std::shared_ptr<boost::asio::steady_timer> lookup_done_;  ///< cancelled when a name lookup ends or is given up
  bool connected_ = false;
  bool timed_out_ = false;
  bool cancelled_ = false;
  std::string input_;
  std::size_t input_at_ = 0;
  std::size_t answer_bytes_ = 0;
  std::string chunk_;
};

}  // namespace tandem::net
