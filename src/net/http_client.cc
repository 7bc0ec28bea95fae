// SPDX-License-Identifier: Apache-2.0
#include "net/http_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>

#include "net/client_connection.h"
#include "net/http_parser.h"

namespace tandem::net {
namespace {

TimePoint now() { return std::chrono::steady_clock::now(); }

std::string serialize_request(const ClientRequest& request, const std::string& host) {
  std::string out = fmt::format("{} {} HTTP/1.1\r\nhost: {}\r\n", request.method, request.target, host);
  for (const auto& [name, value] : request.headers.fields()) {
    out += name;
    out += ": ";
    out += value;
    out += "\r\n";
  }
  if (!request.body.empty() || request.method == "POST" || request.method == "PUT") {
    out += fmt::format("content-length: {}\r\n", request.body.size());
  }
  out += "\r\n";
  out += request.body;
  return out;
}

/// A line break inside would let whoever chose the value write headers or requests of his own.
Result<void> check_request(const ClientRequest& request) {
  const auto bad = [](std::string_view text) { return text.find_first_of(std::string_view("\r\n\0", 3)) != text.npos; };
  if (bad(request.method) || bad(request.target) || request.target.find(' ') != std::string::npos) {
    return Status(Code::kInvalidArgument, "the request's method or target holds a line break or a blank");
  }
  for (const auto& [name, value] : request.headers.fields()) {
    if (bad(name) || bad(value)) {
      return Status(Code::kInvalidArgument, fmt::format("request header '{}' holds a line break", name.substr(0, 80)));
    }
  }
  return {};
}

class Client;

/// What one request needs until its answer is read.
struct Call {
  ClientTimeouts timeouts;
  TimePoint total_deadline = TimePoint::max();
  Cancel cancel;
  bool is_head = false;

  TimePoint deadline(std::chrono::milliseconds limit) const { return std::min(total_deadline, now() + limit); }
};

class Response final : public ClientResponse {
 public:
  Response(std::shared_ptr<Client> client, std::shared_ptr<ClientConnection> connection, ResponseParser parser,
           Call call)
      : client_(std::move(client)),
        connection_(std::move(connection)),
        parser_(std::move(parser)),
        call_(std::move(call)),
        headers_(parser_.headers()) {}
  ~Response() override { drop(); }
  Response(const Response&) = delete;
  Response& operator=(const Response&) = delete;

  int status() const override { return parser_.status(); }
  const Headers& headers() const override { return headers_; }
  Task<Result<std::string>> read_piece() override;
  Task<Result<std::string>> read_all(std::size_t max_bytes) override;

 private:
  Result<void> parse_input();
  void release();
  void drop() {
    if (connection_) connection_->close();
    connection_.reset();
  }

  std::shared_ptr<Client> client_;
  std::shared_ptr<ClientConnection> connection_;  ///< null once the body is over or broken
  ResponseParser parser_;
  Call call_;
  Headers headers_;
  bool peer_closed_ = false;
};

class Client final : public HttpClient, public std::enable_shared_from_this<Client> {
 public:
  Client(boost::asio::any_io_executor executor, Endpoint endpoint, const ClientLimits& limits,
         std::shared_ptr<boost::asio::ssl::context> tls)
      : executor_(std::move(executor)),
        endpoint_(std::move(endpoint)),
        name_(endpoint_.to_string()),
        limits_(limits),
        tls_(std::move(tls)) {}
  ~Client() override { close_idle(); }

  Task<Result<std::unique_ptr<ClientResponse>>> send(ClientRequest request, ClientTimeouts timeouts,
                                                     Cancel cancel) override;
  const Endpoint& endpoint() const override { return endpoint_; }
  std::string local_address() const override { return local_address_; }
  std::size_t num_idle() const override { return idle_.size(); }
  void close_idle() override {
    for (auto& kept : idle_) kept.connection->close();
    idle_.clear();
  }

  const std::string& name() const { return name_; }
  void keep(std::shared_ptr<ClientConnection> connection) {
    connection->rest();
    if (idle_.size() >= limits_.max_idle_connections) {
      idle_.front().connection->close();
      idle_.pop_front();
    }
    idle_.emplace_back(std::move(connection), now());
  }

 private:
  struct Kept {
    Kept(std::shared_ptr<ClientConnection> c, TimePoint t) : connection(std::move(c)), since(t) {}
    std::shared_ptr<ClientConnection> connection;
    TimePoint since;
  };

  std::shared_ptr<ClientConnection> take_idle();
  Task<Result<ResponseParser>> exchange_head(std::shared_ptr<ClientConnection> connection, const std::string& bytes,
                                             const Call& call);

  boost::asio::any_io_executor executor_;
  Endpoint endpoint_;
  std::string name_;
  std::string local_address_;  ///< of the connection made last
  ClientLimits limits_;
  std::shared_ptr<boost::asio::ssl::context> tls_;  ///< nullptr: plain HTTP
  std::deque<Kept> idle_;                           ///< oldest first
};

std::shared_ptr<ClientConnection> Client::take_idle() {
  while (!idle_.empty() && now() - idle_.front().since > limits_.max_idle_time) {
    idle_.front().connection->close();
    idle_.pop_front();
  }
  while (!idle_.empty()) {
    auto connection = std::move(idle_.back().connection);
    idle_.pop_back();
    if (!connection->stale()) return connection;
    connection->close();
  }
  return nullptr;
}

Task<Result<std::unique_ptr<ClientResponse>>> Client::send(ClientRequest request, ClientTimeouts timeouts,
                                                           Cancel cancel) {
  const auto self = shared_from_this();
  if (auto valid = check_request(request); !valid) co_return valid.error();
  Call call;
  call.timeouts = timeouts;
  call.cancel = cancel;
  call.is_head = request.method == "HEAD";
  if (timeouts.total.count() > 0) call.total_deadline = now() + timeouts.total;
  const std::string bytes = serialize_request(request, name_);
  request.body = std::string();
  bool fresh_only = false;
  for (;;) {
    if (cancel.cancelled()) co_return Status(Code::kCancelled, fmt::format("{}: cancelled before sending", name_));
    std::shared_ptr<ClientConnection> connection;
    if (!fresh_only) connection = take_idle();
    const bool reused = connection != nullptr;
    if (!reused) connection = std::make_shared<ClientConnection>(executor_, name_, tls_);
    connection->watch_cancel(cancel);
    if (!reused) {
      auto connected = co_await connection->connect(endpoint_, call.deadline(timeouts.connect));
      if (!connected) {
        connection->close();
        co_return connected.error();
      }
      local_address_ = connection->local_address();
    }
    auto parser = co_await exchange_head(connection, bytes, call);
    if (parser) {
      connection->clear_deadline();
      std::unique_ptr<ClientResponse> response =
          std::make_unique<Response>(self, connection, std::move(*parser), std::move(call));
      co_return std::move(response);
    }
    connection->close();
    if (!reused || connection->any_answer_byte() || connection->ended_by_us()) co_return parser.error();
    fresh_only = true;  // the peer closed this kept connection at the same moment and did not take the request
  }
}

Task<Result<ResponseParser>> Client::exchange_head(std::shared_ptr<ClientConnection> connection,
                                                   const std::string& bytes, const Call& call) {
  connection->start_answer();
  connection->set_deadline(call.deadline(call.timeouts.head), "waiting for the head of the answer");
  // A peer may refuse without reading everything: what it said matters more than that the write failed.
  const auto written = co_await connection->write_all(bytes);
  if (!written && connection->ended_by_us()) co_return written.error();
  for (;;) {
    ResponseParser parser(limits_.max_header_bytes, call.is_head);
    while (!parser.head_done()) {
      if (!connection->input().empty()) {
        const Fed fed = parser.feed(connection->input());
        connection->consume(fed.consumed);
        if (fed.error) {
          co_return Status(Code::kUnavailable, fmt::format("{}: the answer is {}", name_, fed.error->message),
                           Scope::kTransfer);
        }
        if (parser.head_done()) break;
      }
      const auto more = co_await connection->fill();
      if (!more && !written) co_return written.error();
      if (!more) co_return more.error();
      if (!*more) {
        co_return Status(Code::kUnavailable, fmt::format("{}: the connection was closed before an answer came", name_),
                         Scope::kTransfer);
      }
    }
    const int status = parser.status();
    if (status >= 200 || status == 101) co_return std::move(parser);
  }
}

Result<void> Response::parse_input() {
  const auto input = connection_->input();
  const Fed fed = parser_.feed(input);
  connection_->consume(fed.consumed);
  if (fed.error) {
    return Status(Code::kUnavailable, fmt::format("{}: the answer is {}", client_->name(), fed.error->message),
                  Scope::kTransfer);
  }
  constexpr std::size_t kMostHeld = 64U << 10;  // only a chunk header or trailer can be held, and those are short
  if (fed.consumed == 0 && input.size() > kMostHeld) {
    return Status(Code::kUnavailable, fmt::format("{}: a chunk header of the answer is too long", client_->name()),
                  Scope::kTransfer);
  }
  return {};
}

void Response::release() {
  if (parser_.keep_alive() && !peer_closed_ && connection_->input().empty()) {
    client_->keep(std::move(connection_));
  }
  drop();
}

Task<Result<std::string>> Response::read_piece() {
  for (;;) {
    std::string piece = parser_.take_body();
    if (connection_ && parser_.done()) release();
    if (!piece.empty()) co_return std::move(piece);
    if (parser_.done()) co_return std::string();
    if (!connection_) {
      co_return Status(Code::kUnavailable, fmt::format("{}: the answer is broken already", client_->name()),
                       Scope::kTransfer);
    }
    if (!connection_->input().empty()) {
      if (auto parsed = parse_input(); !parsed) {
        drop();
        co_return parsed.error();
      }
      piece = parser_.take_body();
      if (!piece.empty() || parser_.done()) {
        if (parser_.done()) release();
        co_return std::move(piece);
      }
    }
    connection_->set_deadline(call_.deadline(call_.timeouts.idle), "waiting for more of the answer");
    const auto more = co_await connection_->fill();
    connection_->clear_deadline();  // whoever reads may be slow to come back; that is not the peer's silence
    if (!more) {
      drop();
      co_return more.error();
    }
    if (!*more) {
      peer_closed_ = true;
      if (parser_.finish()) {
        drop();
        co_return Status(Code::kUnavailable,
                         fmt::format("{}: the connection was closed in the middle of the answer", client_->name()),
                         Scope::kTransfer);
      }
    }
  }
}

Task<Result<std::string>> Response::read_all(std::size_t max_bytes) {
  std::string body;
  for (;;) {
    auto piece = co_await read_piece();
    if (!piece) co_return piece.error();
    if (piece->empty()) co_return std::move(body);
    if (body.size() + piece->size() > max_bytes) {
      drop();
      co_return Status(Code::kResourceExhausted,
                       fmt::format("{}: the answer is longer than {} bytes", client_->name(), max_bytes),
                       Scope::kTransfer);
    }
    body += *piece;
  }
}

}  // namespace

std::shared_ptr<HttpClient> HttpClient::create(boost::asio::any_io_executor executor, Endpoint endpoint,
                                               ClientLimits limits, std::shared_ptr<boost::asio::ssl::context> tls) {
  TANDEM_ASSERT(!endpoint.tls || tls, "an https endpoint needs a TLS context");
  if (!endpoint.tls) tls.reset();
  return std::make_shared<Client>(std::move(executor), std::move(endpoint), limits, std::move(tls));
}

}  // namespace tandem::net
