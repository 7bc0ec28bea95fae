// SPDX-License-Identifier: Apache-2.0
// HTTP/1.1 server on Asio coroutines: routes, limits, chunked streams, and notice of clients that leave. Knows nothing
// of models. Everything of one server runs on one io_context thread; Beast stays in the .cc files.
//
// g++ 12 miscompiles some co_await expressions (tools/lint_coroutines.py): pass named locals and moves of them only.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace tandem::net {

template <class T>
using Task = boost::asio::awaitable<T>;

/// Header fields in order; names compare without case.
class Headers {
 public:
  Headers() {}
  void add(std::string name, std::string value);
  void set(std::string name, std::string value);  ///< replaces all of that name
  void remove(std::string_view name);
  std::optional<std::string_view> find(std::string_view name) const;
  const std::vector<std::pair<std::string, std::string>>& fields() const { return fields_; }

 private:
  std::vector<std::pair<std::string, std::string>> fields_;
};

/// The names in a field's value that is a list with commas.
std::vector<std::string> listed_names(std::string_view value);

struct HttpRequest {
  std::string method;  ///< "POST"
  std::string path;    ///< without query, percent-decoded
  std::string query;   ///< after '?', raw
  Headers headers;
  std::string body;
  std::string peer;  ///< "127.0.0.1:45678"; "unix" on a Unix socket
};

struct HttpResponse {
  HttpResponse() {}
  HttpResponse(int status_code, std::string type, std::string text)
      : status(status_code), content_type(std::move(type)), body(std::move(text)) {}
  int status = 200;
  std::string content_type = "application/json";
  Headers headers;
  std::string body;
};

/// One request and the way to answer it: either respond() once, or begin_stream(), write()..., end_stream().
/// Used on the server's executor only.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual const HttpRequest& request() const = 0;
  virtual boost::asio::any_io_executor executor() const = 0;

  virtual Task<Result<void>> respond(HttpResponse response) = 0;
  /// Sends the head of a chunked answer. With a content-length field in `headers` the body is sent unframed and must
  /// have just that length (a shorter one breaks the connection); HTTP/1.0 clients get a body that ends with the
  /// connection.
  virtual Task<Result<void>> begin_stream(int status, Headers headers) = 0;
  /// One chunk in one write (one SSE event = one call). An error means that the client is gone.
  virtual Task<Result<void>> write(std::string bytes) = 0;
  virtual Task<Result<void>> end_stream() = 0;
  /// Closes the connection without a proper end, so that the client notices a broken stream.
  virtual void abandon() = 0;

  virtual bool answered() const = 0;  ///< whether a head was sent
  virtual bool client_gone() const = 0;
  /// Called once, on the executor, as soon as the client closes its side (also only its sending half) while the request
  /// is being handled (also when it is gone already). Replaces an earlier callback; an empty one clears it.
  virtual void on_client_gone(std::function<void()> callback) = 0;
};

/// What became of a request. Views and references hold during the call that brings it.
struct RequestReport {
  const HttpRequest& request;
  std::string_view route;          ///< its path if the server has that one, else "" (404)
  int status = 0;                  ///< 0: the client left before an answer
  std::size_t response_bytes = 0;  ///< of the body, without framing
  double seconds = 0.0;            ///< from the whole request to the end of its answer
};

/// Hears of every request that could be parsed, on the executor. Either may be empty.
struct ServerObserver {
  /// The head of the answer goes out. `version`: of the request's HTTP, "1.1" or "1.0".
  std::function<void(const HttpRequest& request, std::string_view version, int status)> answered;
  std::function<void(const RequestReport& report)> over;
};

using Handler = std::function<Task<void>(std::shared_ptr<Exchange>)>;

struct TlsFiles;

struct ServerLimits {
  std::size_t max_header_bytes = 64U << 10;
  std::size_t max_body_bytes = 64U << 20;       ///< over it: 413 with an error object
  std::chrono::seconds header_timeout{30};      ///< for the head and for each read of the body
  std::chrono::seconds keep_alive_timeout{75};  ///< idle between requests
  std::chrono::seconds write_timeout{60};       ///< a client that does not read is gone
  std::size_t max_connections = 10'000;         ///< over it: 503 and close
};

class HttpServer {
 public:
  static std::unique_ptr<HttpServer> create(boost::asio::any_io_executor executor, ServerLimits limits);
  virtual ~HttpServer() = default;

  /// Asked before routing, also for unknown paths: an answer here is the answer.
  virtual void gate(std::function<std::optional<HttpResponse>(const HttpRequest&)> check) = 0;
  /// Has the last word on the head of every answer to a request, the server's own 404 included; not on answers to what
  /// is no HTTP request.
  virtual void stamp(std::function<void(const HttpRequest&, Headers&)> add) = 0;
  /// Exact path. Unknown paths answer 404 {"detail":"Not Found"}, wrong methods 405 {"detail":"Method Not Allowed"}.
  virtual void route(std::string method, std::string path, Handler handler) = 0;
  /// Wraps a message as the body of errors that the server itself makes (400 bad HTTP, 413, 431, 503).
  virtual void error_body(std::function<std::string(int status, std::string_view message)> make) = 0;
  virtual void observe(ServerObserver observer) = 0;
  /// Speaks TLS from here on; before listen(). An error names the file.
  virtual Result<void> use_tls(const TlsFiles& files) = 0;
  /// Binds and starts accepting. Port 0 takes a free one. Returns the port; an error names host, port and reason.
  virtual Result<std::uint16_t> listen(const std::string& host, std::uint16_t port) = 0;
  /// The same on a Unix socket. What a server that died left at `path` is replaced; any other file, or a socket on
  /// which somebody listens, is an error. The file is removed by stop().
  virtual Result<void> listen_unix(const std::string& path) = 0;
  /// Stops accepting and closes idle connections; running exchanges may finish until `drain` is over, then are closed.
  virtual Task<void> stop(std::chrono::milliseconds drain) = 0;
  virtual std::size_t num_connections() const = 0;
};

}  // namespace tandem::net
