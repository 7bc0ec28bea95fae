// SPDX-License-Identifier: Apache-2.0
#include "net/server_connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <cstring>
#include <exception>
#include <tuple>

#include "base/log.h"

namespace tandem::net {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
constexpr std::size_t kReadBytes = 16U << 10;
constexpr std::chrono::seconds kLinger{3};

std::string peer_name(const ServerSocket& socket) {
  error_code error;
  const auto generic = socket.remote_endpoint(error);
  if (error) return "unknown";
  if (generic.protocol().family() == AF_UNIX) return "unix";
  asio::ip::tcp::endpoint endpoint;
  if (generic.size() > endpoint.capacity()) return "unknown";
  std::memcpy(endpoint.data(), generic.data(), generic.size());
  endpoint.resize(generic.size());
  const auto address = endpoint.address();
  return address.is_v6() ? fmt::format("[{}]:{}", address.to_string(), endpoint.port())
                         : fmt::format("{}:{}", address.to_string(), endpoint.port());
}

}  // namespace

ServerConnection::ServerConnection(ServerSocket socket, std::shared_ptr<ServerShared> shared)
    : socket_(std::move(socket)),
      shared_(std::move(shared)),
      peer_(peer_name(socket_)),
      data_arrived_(shared_->executor),
      space_freed_(shared_->executor),
      read_watch_(shared_->executor,
                  [this] {
                    read_expired_ = true;
                    data_arrived_.cancel();
                  }),
      write_watch_(shared_->executor, [this] { close(); }) {}

void ServerConnection::start(bool refuse_busy) {
  if (refuse_busy) refusal_ = ParseError(503, "too many connections");
  error_code ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  socket_.set_option(asio::socket_base::keep_alive(true), ignored);
  if (shared_->tls) {
    tls_.emplace(socket_, *shared_->tls);
    asio::co_spawn(shared_->executor, shake_hands(), asio::detached);
  } else {
    start_loops();
  }
}

void ServerConnection::start_loops() {
  asio::co_spawn(shared_->executor, read_loop(), asio::detached);
  asio::co_spawn(shared_->executor, serve(), asio::detached);
}

/// By the first byte, which stays unread. True also for a client that closes: the handshake will say so.
Task<bool> ServerConnection::speaks_tls() {
  constexpr char kHandshakeRecord = 0x16;
  const auto [error] = co_await socket_.async_wait(asio::socket_base::wait_read, kAwait);
  char first = kHandshakeRecord;
  if (!error && !closed_) (void)::recv(socket_.native_handle(), &first, 1, MSG_PEEK | MSG_DONTWAIT);
  co_return first == kHandshakeRecord;
}

/// A client that does not come to an end with it is closed like one that does not send its request.
Task<void> ServerConnection::shake_hands() {
  const auto self = shared_from_this();
  write_watch_.arm_after(shared_->limits.header_timeout);
  const bool tls = co_await speaks_tls();
  if (!tls && !closed_) {
    write_watch_.disarm();
    tls_.reset();
    refusal_ = ParseError(400, "this port speaks TLS, and the request came without; use https://");
    start_loops();
    co_return;
  }
  error_code error = asio::error::operation_aborted;
  if (!closed_) std::tie(error) = co_await tls_->async_handshake(asio::ssl::stream_base::server, kAwait);
  write_watch_.disarm();
  if (!error && !closed_) {
    start_loops();
    co_return;
  }
  if (error) log::debug("TLS handshake with {}: {}", peer_, error.message());
  close();
  forget();
}

void ServerConnection::forget() {
  shared_->connections.erase(this);
  shared_->num_connections = shared_->connections.size();
  shared_->connections_changed.cancel();
}

void ServerConnection::close() {
  if (closed_) return;
  closed_ = true;
  error_code ignored;
  socket_.shutdown(asio::socket_base::shutdown_both, ignored);
  socket_.close(ignored);
  read_watch_.cancel();
  write_watch_.cancel();
  space_freed_.cancel();
  input_ended();
}

void ServerConnection::input_ended() {
  input_ended_ = true;
  data_arrived_.cancel();
  if (phase_ == Phase::kHandling && !gone_) {
    gone_ = true;
    if (exchange_ != nullptr) exchange_->client_left();
  }
}

void ServerConnection::consume(std::size_t bytes) {
  input_at_ += bytes;
  if (input_at_ == input_.size()) {
    input_.clear();
    input_at_ = 0;
  } else if (input_at_ > kReadBytes) {
    input_.erase(0, input_at_);
    input_at_ = 0;
  }
  space_freed_.cancel();
}

Task<void> ServerConnection::read_loop() {
  const auto self = shared_from_this();
  const std::size_t most = shared_->limits.max_header_bytes + kReadBytes;
  std::string chunk(kReadBytes, '\0');
  while (!closed_) {
    if (available().size() >= most) {
      space_freed_.expires_at(TimePoint::max());
      co_await space_freed_.async_wait(kAwait);
      continue;
    }
    const auto buffer = asio::buffer(chunk);
    error_code error;
    std::size_t bytes = 0;
    if (tls_)
      std::tie(error, bytes) = co_await tls_->async_read_some(buffer, kAwait);
    else
      std::tie(error, bytes) = co_await socket_.async_read_some(buffer, kAwait);
    if (error) break;
    bytes_read_ += bytes;
    if (phase_ != Phase::kLingering) input_.append(chunk, 0, bytes);
    data_arrived_.cancel();
  }
  input_ended();
}

Task<void> ServerConnection::wait_for_bytes(std::uint64_t seen) {
  while (bytes_read_ == seen && !input_ended_ && !read_expired_ && !closed_) {
    data_arrived_.expires_at(TimePoint::max());
    co_await data_arrived_.async_wait(kAwait);
  }
}

Task<void> ServerConnection::serve() {
  const auto self = shared_from_this();
  try {
    if (refusal_) {
      co_await refuse(refusal_->status, std::move(refusal_->message));
    } else {
      bool again = true;
      while (again && !closed_) again = co_await serve_one();
    }
  } catch (const std::exception& error) {
    log::error("connection of {} ended: {}", peer_, error.what());
  }
  close();
  forget();
}

Task<bool> ServerConnection::serve_one() {
  RequestParser parser(shared_->limits.max_header_bytes, shared_->limits.max_body_bytes);
  const bool received = co_await receive(parser);
  if (!received) co_return false;
  HttpRequest request;
  if (auto error = parser.take(request)) {
    co_await refuse(error->status, std::move(error->message));
    co_return false;
  }
  request.peer = peer_;
  const bool again = co_await handle(std::move(request), parser.keep_alive(), parser.http_1_0());
  co_return again;
}

Task<bool> ServerConnection::receive(RequestParser& parser) {
  const auto& limits = shared_->limits;
  const bool was_first = std::exchange(first_request_, false);
  phase_ = Phase::kIdle;
  read_expired_ = false;
  read_watch_.arm_after(was_first ? limits.header_timeout : limits.keep_alive_timeout);
  bool continue_sent = false;
  while (!parser.done()) {
    const std::uint64_t seen = bytes_read_;
    const bool had_head = parser.head_done();
    const Fed fed = parser.feed(available());
    const bool stuck = fed.consumed == 0 && available().size() >= limits.max_header_bytes;
    if (phase_ == Phase::kIdle && !available().empty()) {
      phase_ = Phase::kReceiving;
      read_watch_.arm_after(limits.header_timeout);
    }
    consume(fed.consumed);
    if (fed.error || stuck) {
      auto error = fed.error.value_or(ParseError(400, "a chunk header of the body is too long"));
      co_await refuse(error.status, std::move(error.message));
      co_return false;
    }
    if (parser.done()) break;
    if (parser.head_done()) {
      if (!had_head || fed.consumed > 0) read_watch_.arm_after(limits.header_timeout);
      if (!continue_sent && parser.expects_continue()) {
        continue_sent = true;
        std::string interim = "HTTP/1.1 100 Continue\r\n\r\n";
        (void)co_await write_all(std::move(interim));
      }
    }
    co_await wait_for_bytes(seen);
    if (closed_) co_return false;
    if (bytes_read_ != seen) continue;
    if (read_expired_ && phase_ == Phase::kReceiving) {
      std::string message = "the request did not arrive in time";
      co_await refuse(408, std::move(message));
    }
    co_return false;  // idle for too long, or the client closed between or within requests
  }
  read_watch_.disarm();
  co_return true;
}

Task<bool> ServerConnection::handle(HttpRequest request, bool keep_alive, bool http_1_0) {
  phase_ = Phase::kHandling;
  gone_ = false;
  const auto started = std::chrono::steady_clock::now();
  HttpResponse refusal;
  const Found found = shared_->find(request, refusal);
  auto exchange = std::make_shared<ConnectionExchange>(shared_from_this(), std::move(request),
                                                       keep_alive && !shared_->stopping, http_1_0);
  exchange_ = exchange.get();
  if (input_ended_) input_ended();
  if (found.handler == nullptr) {
    (void)co_await exchange->respond(std::move(refusal));
  } else {
    co_await run_handler(*found.handler, exchange);
  }
  exchange_ = nullptr;
  const bool again = exchange->finish();
  if (shared_->observer.over) {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - started;
    shared_->observer.over(
        {exchange->request(), found.route, exchange->status(), exchange->response_bytes(), passed.count()});
  }
  co_return again && !gone_ && !shared_->stopping;
}

Task<void> ServerConnection::run_handler(const Handler& handler, std::shared_ptr<ConnectionExchange> exchange) {
  std::string failure = "the request was not answered";
  try {
    std::shared_ptr<Exchange> argument = exchange;
    co_await handler(std::move(argument));
  } catch (const std::exception& error) {
    failure = error.what();
  } catch (...) {
    failure = "unknown exception";
  }
  if (exchange->answered()) co_return;
  if (!exchange->client_gone()) {
    log::error("{} {}: the handler ended without an answer: {}", exchange->request().method, exchange->request().path,
               failure);
  }
  // The text of an exception is for the log, not for clients.
  HttpResponse response(500, "application/json", shared_->error_text(500, "Internal Server Error"));
  (void)co_await exchange->respond(std::move(response));
}

Task<void> ServerConnection::refuse(int status, std::string message) {
  ResponseHead head;
  head.status = status;
  head.keep_alive = false;
  head.headers.add("content-type", "application/json");
  if (status == 503) head.headers.add("retry-after", "1");
  std::string body = shared_->error_text(status, message);
  head.content_length = body.size();
  std::string bytes = serialize_head(head) + body;
  // From here on input is dropped: closing with unread input would reset the connection, and the answer with it.
  phase_ = Phase::kLingering;
  input_.clear();
  input_at_ = 0;
  space_freed_.cancel();
  const auto written = co_await write_all(std::move(bytes));
  if (!written) co_return;
  error_code ignored;
  socket_.shutdown(asio::socket_base::shutdown_send, ignored);
  read_expired_ = false;
  read_watch_.arm_after(kLinger);
  while (!input_ended_ && !read_expired_ && !closed_) co_await wait_for_bytes(bytes_read_);
}

Task<Result<void>> ServerConnection::write_all(std::string bytes) {
  if (writing_) co_return Status(Code::kInternal, "two writes to one client at the same time");
  writing_ = true;
  std::size_t done = 0;
  while (done < bytes.size() && !closed_ && !gone_) {
    write_watch_.arm_after(shared_->limits.write_timeout);
    const auto rest = asio::buffer(bytes.data() + done, bytes.size() - done);
    error_code error;
    std::size_t written = 0;
    if (tls_)
      std::tie(error, written) = co_await tls_->async_write_some(rest, kAwait);
    else
      std::tie(error, written) = co_await socket_.async_write_some(rest, kAwait);
    done += written;
    if (error) {
      gone_ = gone_ || phase_ == Phase::kHandling;
      close();
      break;
    }
  }
  write_watch_.disarm();
  writing_ = false;
  if (done < bytes.size()) co_return Status(Code::kCancelled, fmt::format("client {} is gone", peer_));
  co_return Result<void>();
}

}  // namespace tandem::net
