// SPDX-License-Identifier: Apache-2.0
#include "net/client_connection.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <cerrno>
#include <tuple>
#include <utility>

namespace tandem::net {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
constexpr std::size_t kReadBytes = 32U << 10;

std::string bare_host(const std::string& host) {
  return host.size() > 2 && host.front() == '[' && host.back() == ']' ? host.substr(1, host.size() - 2) : host;
}

/// A lookup runs on a thread of the library and cannot be interrupted there; whoever waits can leave.
struct Lookup {
  explicit Lookup(const asio::any_io_executor& executor)
      : resolver(executor), done(std::make_shared<asio::steady_timer>(executor)) {}
  tcp::resolver resolver;
  std::shared_ptr<asio::steady_timer> done;
  bool finished = false;
  error_code error;
  tcp::resolver::results_type found;
};

void start_lookup(const std::shared_ptr<Lookup>& lookup, const std::string& host, std::uint16_t port) {
  lookup->resolver.async_resolve(host, std::to_string(port), tcp::resolver::numeric_service,
                                 [lookup](const error_code& error, tcp::resolver::results_type found) {
                                   lookup->finished = true;
                                   lookup->error = error;
                                   lookup->found = std::move(found);
                                   lookup->done->cancel();
                                 });
}

}  // namespace

std::string Endpoint::to_string() const {
  const std::string name = bare_host(host);
  return name.find(':') == std::string::npos ? fmt::format("{}:{}", name, port) : fmt::format("[{}]:{}", name, port);
}

ClientConnection::ClientConnection(const asio::any_io_executor& executor, std::string peer,
                                   std::shared_ptr<asio::ssl::context> tls)
    : executor_(executor),
      socket_(executor),
      tls_context_(std::move(tls)),
      peer_(std::move(peer)),
      watch_(executor, [this] {
        timed_out_ = true;
        close();
      }) {}

void ClientConnection::close() {
  error_code ignored;
  socket_.close(ignored);
  watch_.cancel();
  if (lookup_done_) lookup_done_->cancel();
}

void ClientConnection::set_deadline(TimePoint deadline, std::string_view step) {
  if (step != step_) step_ = step;
  watch_.arm(deadline);
}

void ClientConnection::watch_cancel(const Cancel& cancel) {
  cancel_hook_ = cancel.on_cancel([this] {
    cancelled_ = true;
    close();
  });
}

void ClientConnection::rest() {
  watch_.cancel();
  cancel_hook_.release();
  chunk_ = std::string();  // idle connections should be small
  input_ = std::string();
  input_at_ = 0;
}

void ClientConnection::consume(std::size_t bytes) {
  input_at_ += bytes;
  if (input_at_ == input_.size()) {
    input_.clear();
    input_at_ = 0;
  }
}

Status ClientConnection::failure(const error_code& error) const {
  const Scope scope = connected_ ? Scope::kTransfer : Scope::kPeer;
  if (cancelled_) return {Code::kCancelled, fmt::format("{}: cancelled while {}", peer_, step_)};
  if (timed_out_) {
    return {Code::kDeadlineExceeded, fmt::format("{}: no progress in time while {}", peer_, step_), scope};
  }
  if (error == asio::error::no_descriptors || error == boost::system::errc::too_many_files_open_in_system) {
    return {Code::kResourceExhausted,
            fmt::format("{}: this process has no file descriptor left ({}) while {}; raise its limit (ulimit -n)",
                        peer_, error.message(), step_),
            Scope::kProcess};
  }
  const std::string why = error == asio::error::eof ? "the connection was closed" : error.message();
  return {Code::kUnavailable, fmt::format("{}: {} while {}", peer_, why, step_), scope};
}

Task<Result<void>> ClientConnection::connect(Endpoint endpoint, TimePoint deadline) {
  const auto self = shared_from_this();
  set_deadline(deadline, "connecting");
  std::string host = bare_host(endpoint.host);
  auto result = co_await connect_tcp(std::move(endpoint));
  if (!result || !tls_context_) co_return result;
  set_deadline(deadline, "shaking hands by TLS");
  result = co_await shake_hands(std::move(host));
  co_return result;
}

/// The peer is nobody until its certificate says that it is the host that was asked for.
Task<Result<void>> ClientConnection::shake_hands(std::string host) {
  connected_ = false;  // a failure is one of the peer, nothing was sent
  tls_.emplace(socket_, *tls_context_);
  error_code error;
  error_code no_literal;
  (void)asio::ip::make_address(host, no_literal);
  if (no_literal) SSL_set_tlsext_host_name(tls_->native_handle(), host.c_str());
  tls_->set_verify_callback(asio::ssl::host_name_verification(host), error);
  if (!error) std::tie(error) = co_await tls_->async_handshake(asio::ssl::stream_base::client, kAwait);
  if (ended_by_us()) co_return failure(error);
  if (error) {
    co_return Status(Code::kUnavailable,
                     fmt::format("{}: no TLS connection: {}; does it speak TLS, with a certificate for {} that the CA "
                                 "file's owner signed?",
                                 peer_, error.message(), host),
                     Scope::kPeer);
  }
  connected_ = true;
  co_return Result<void>();
}

Task<Result<void>> ClientConnection::connect_tcp(Endpoint endpoint) {
  const std::string host = bare_host(endpoint.host);
  error_code literal_error;
  const auto literal = asio::ip::make_address(host, literal_error);
  error_code connect_error;
  if (!literal_error) {
    const tcp::endpoint target(literal, endpoint.port);
    const auto [error] = co_await socket_.async_connect(target, kAwait);
    connect_error = error;
  } else {
    const auto lookup = std::make_shared<Lookup>(executor_);
    lookup_done_ = lookup->done;
    start_lookup(lookup, host, endpoint.port);
    while (!lookup->finished && !ended_by_us()) {
      lookup_done_->expires_at(TimePoint::max());
      co_await lookup_done_->async_wait(kAwait);
    }
    lookup_done_.reset();
    if (ended_by_us()) {
      lookup->resolver.cancel();
      co_return failure(asio::error::operation_aborted);
    }
    if (lookup->error) {
      co_return Status(Code::kUnavailable, fmt::format("{}: cannot find the host: {}", peer_, lookup->error.message()),
                       Scope::kPeer);
    }
    const auto [error, used] = co_await asio::async_connect(socket_, lookup->found, kAwait);
    connect_error = error;
  }
  if (connect_error || ended_by_us()) co_return failure(connect_error);
  connected_ = true;
  error_code ignored;
  socket_.set_option(tcp::no_delay(true), ignored);
  socket_.set_option(asio::socket_base::keep_alive(true), ignored);
  co_return Result<void>();
}

Task<Result<void>> ClientConnection::write_all(std::string_view bytes) {
  const auto self = shared_from_this();
  const auto buffer = asio::buffer(bytes.data(), bytes.size());
  error_code error;
  std::size_t written = 0;
  if (tls_)
    std::tie(error, written) = co_await asio::async_write(*tls_, buffer, kAwait);
  else
    std::tie(error, written) = co_await asio::async_write(socket_, buffer, kAwait);
  if (error || ended_by_us()) co_return failure(error);
  co_return Result<void>();
}

Task<Result<bool>> ClientConnection::fill() {
  const auto self = shared_from_this();
  if (chunk_.empty()) chunk_.resize(kReadBytes);
  const auto buffer = asio::buffer(chunk_);
  error_code error;
  std::size_t bytes = 0;
  if (tls_)
    std::tie(error, bytes) = co_await tls_->async_read_some(buffer, kAwait);
  else
    std::tie(error, bytes) = co_await socket_.async_read_some(buffer, kAwait);
  if (ended_by_us()) co_return failure(error);
  if (error == asio::error::eof) co_return false;
  if (error) co_return failure(error);
  input_.append(chunk_, 0, bytes);
  answer_bytes_ += bytes;
  co_return true;
}

std::string ClientConnection::local_address() const {
  error_code error;
  const auto local = socket_.local_endpoint(error);
  return error ? std::string() : local.address().to_string();
}

bool ClientConnection::stale() {
  if (!socket_.is_open() || !input_.empty()) return true;
  char byte = 0;
  const auto got = ::recv(socket_.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return got >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
}

}  // namespace tandem::net
