// SPDX-License-Identifier: Apache-2.0
// Inside of the HTTP server: what all connections share, and one connection. Not for use outside src/net.
#pragma once

#include <atomic>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <map>
#include <unordered_map>

#include "net/http_parser.h"
#include "net/http_server.h"
#include "net/watchdog.h"

namespace tandem::net {

class ServerConnection;
class ConnectionExchange;
using ServerSocket = boost::asio::generic::stream_protocol::socket;  ///< TCP or Unix

struct Found {
  const Handler* handler = nullptr;  ///< nullptr: there is none
  std::string_view route;            ///< the path if there is one, whatever the method; lives as long as the routes
};

/// Routes, limits and the list of open connections. Lives as long as the server or any connection.
struct ServerShared {
  explicit ServerShared(const boost::asio::any_io_executor& io, const ServerLimits& bounds)
      : executor(io), limits(bounds), connections_changed(io) {}

  std::string error_text(int status, std::string_view message) const;
  /// Handler of a request; else what the gate, or a 404 or 405, answers. HEAD is answered by GET's handler.
  Found find(const HttpRequest& request, HttpResponse& refusal) const;

  boost::asio::any_io_executor executor;
  ServerLimits limits;
  std::map<std::string, std::map<std::string, Handler>> routes;         ///< path, then method
  std::function<std::optional<HttpResponse>(const HttpRequest&)> gate;  ///< may be empty
  std::function<void(const HttpRequest&, Headers&)> stamp;              ///< may be empty
  std::function<std::string(int, std::string_view)> make_error;
  ServerObserver observer;
  std::shared_ptr<boost::asio::ssl::context> tls;  ///< nullptr: plain HTTP
  bool stopping = false;
  std::unordered_map<ServerConnection*, std::weak_ptr<ServerConnection>> connections;
  std::atomic<std::size_t> num_connections{0};
  boost::asio::steady_timer connections_changed;  ///< cancelled whenever a connection ends
};

/// One client connection: a reading loop that never stops (so that EOF is noticed at any moment, also behind pipelined
/// bytes) and a serving loop that parses from what was read and runs handlers, one request after the other.
class ServerConnection : public std::enable_shared_from_this<ServerConnection> {
 public:
  ServerConnection(ServerSocket socket, std::shared_ptr<ServerShared> shared);

  /// Starts both loops, after the TLS handshake if there is one. With `refuse_busy` the only answer is 503.
  void start(bool refuse_busy);
  /// Closes the socket now; a running handler is told that its client is gone.
  void close();
  bool idle() const { return phase_ == Phase::kIdle; }
  bool client_gone() const { return gone_; }
  const boost::asio::any_io_executor& executor() const { return shared_->executor; }
  const ServerShared& shared() const { return *shared_; }

  /// Writes everything within write_timeout per piece of progress. An error means that the client is gone.
  Task<Result<void>> write_all(std::string bytes);
  void exchange_over() { exchange_ = nullptr; }

 private:
  enum class Phase : std::uint8_t { kIdle, kReceiving, kHandling, kLingering };

  Task<void> shake_hands();
  Task<bool> speaks_tls();
  void start_loops();
  Task<void> serve();
  void forget();
  Task<bool> serve_one();
  Task<void> read_loop();
  /// Receives one whole request; false if there is none to handle (closed, refused).
  Task<bool> receive(RequestParser& parser);
  Task<bool> handle(HttpRequest request, bool keep_alive, bool http_1_0);
  Task<void> run_handler(const Handler& handler, std::shared_ptr<ConnectionExchange> exchange);
  Task<void> refuse(int status, std::string message);
  Task<void> wait_for_bytes(std::uint64_t seen);
  std::string_view available() const { return std::string_view(input_).substr(input_at_); }
  void consume(std::size_t bytes);
  void input_ended();

  ServerSocket socket_;
  std::optional<boost::asio::ssl::stream<ServerSocket&>> tls_;  ///< over socket_
  std::shared_ptr<ServerShared> shared_;
  std::string peer_;
  Phase phase_ = Phase::kIdle;
  bool closed_ = false;
  bool input_ended_ = false;
  bool gone_ = false;
  bool read_expired_ = false;
  std::optional<ParseError> refusal_;  ///< the only answer of this connection
  bool first_request_ = true;
  bool writing_ = false;
  std::string input_;  ///< received, from input_at_ on not yet parsed
  std::size_t input_at_ = 0;
  std::uint64_t bytes_read_ = 0;
  boost::asio::steady_timer data_arrived_;  ///< cancelled when the serving loop should look again
  boost::asio::steady_timer space_freed_;   ///< cancelled when the reading loop may go on
  Watchdog read_watch_;
  Watchdog write_watch_;
  ConnectionExchange* exchange_ = nullptr;  ///< the one being handled
};

/// Serialises a response head. Fields that the server decides itself are dropped from `headers` first.
struct ResponseHead {
  int status = 200;
  Headers headers;
  std::optional<std::size_t> content_length;
  bool chunked = false;
  bool keep_alive = true;
  bool http_1_0 = false;
};
std::string serialize_head(const ResponseHead& head);

class ConnectionExchange final : public Exchange, public std::enable_shared_from_this<ConnectionExchange> {
 public:
  ConnectionExchange(std::shared_ptr<ServerConnection> connection, HttpRequest request, bool keep_alive, bool http_1_0);

  const HttpRequest& request() const override { return request_; }
  boost::asio::any_io_executor executor() const override { return connection_->executor(); }
  Task<Result<void>> respond(HttpResponse response) override;
  Task<Result<void>> begin_stream(int status, Headers headers) override;
  Task<Result<void>> write(std::string bytes) override;
  Task<Result<void>> end_stream() override;
  void abandon() override;
  bool answered() const override { return state_ != State::kOpen; }
  bool client_gone() const override { return connection_->client_gone(); }
  void on_client_gone(std::function<void()> callback) override;

  /// The client left: calls the callback, once.
  void client_left();
  /// The handler returned. Afterwards every call is refused. Whether the connection may serve another request.
  bool finish();
  int status() const { return status_; }  ///< 0: no head was sent
  std::size_t response_bytes() const { return response_bytes_; }

 private:
  enum class State : std::uint8_t { kOpen, kStreaming, kDone, kBroken };

  Result<void> check(State expected, std::string_view call) const;
  /// This head goes out now.
  void finish_head(ResponseHead& head);

  std::shared_ptr<ServerConnection> connection_;
  HttpRequest request_;
  bool keep_alive_;
  bool http_1_0_;
  bool head_only_;
  bool over_ = false;
  bool chunked_ = false;
  std::optional<std::size_t> length_left_;  ///< of a stream with Content-Length
  State state_ = State::kOpen;
  int status_ = 0;
  std::size_t response_bytes_ = 0;
  std::function<void()> gone_callback_;
};

}  // namespace tandem::net
