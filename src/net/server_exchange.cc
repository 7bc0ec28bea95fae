// SPDX-License-Identifier: Apache-2.0
// One request's answer: framing (length, chunked, until close) and the order of calls.
#include <array>
#include <boost/asio/post.hpp>
#include <charconv>
#include <ctime>

#include "base/log.h"
#include "net/server_connection.h"

namespace tandem::net {
namespace {

/// "Sun, 06 Nov 1994 08:49:37 GMT", made once a second.
std::string_view http_date() {
  thread_local std::time_t made = 0;
  thread_local std::array<char, 40> text{};
  const std::time_t now = std::time(nullptr);
  if (now != made) {
    std::tm parts{};
    gmtime_r(&now, &parts);
    std::strftime(text.data(), text.size(), "%a, %d %b %Y %H:%M:%S GMT", &parts);
    made = now;
  }
  return text.data();
}

/// Header text from a handler or a backend must not be able to end the line and start its own.
void append_clean(std::string& out, std::string_view text) {
  for (const char c : text) {
    if (c != '\r' && c != '\n' && c != '\0') out += c;
  }
}

bool bodiless(int status) { return status < 200 || status == 204 || status == 304; }

}  // namespace

std::string serialize_head(const ResponseHead& head) {
  std::string out = fmt::format("HTTP/1.1 {} {}\r\ndate: {}\r\n", head.status, reason_phrase(head.status), http_date());
  Headers headers = head.headers;
  for (const char* own : {"content-length", "transfer-encoding", "connection", "keep-alive", "date"})
    headers.remove(own);
  for (const auto& [name, value] : headers.fields()) {
    append_clean(out, name);
    out += ": ";
    append_clean(out, value);
    out += "\r\n";
  }
  if (head.content_length) out += fmt::format("content-length: {}\r\n", *head.content_length);
  if (head.chunked) out += "transfer-encoding: chunked\r\n";
  if (!head.keep_alive) {
    out += "connection: close\r\n";
  } else if (head.http_1_0) {
    out += "connection: keep-alive\r\n";
  }
  out += "\r\n";
  return out;
}

ConnectionExchange::ConnectionExchange(std::shared_ptr<ServerConnection> connection, HttpRequest request,
                                       bool keep_alive, bool http_1_0)
    : connection_(std::move(connection)),
      request_(std::move(request)),
      keep_alive_(keep_alive),
      http_1_0_(http_1_0),
      head_only_(request_.method == "HEAD") {}

Result<void> ConnectionExchange::check(State expected, std::string_view call) const {
  if (over_ || state_ != expected) {
    return Status(Code::kInternal, fmt::format("{} is not allowed at this point of the answer to {} {}", call,
                                               request_.method, request_.path));
  }
  if (client_gone()) return Status(Code::kCancelled, fmt::format("client {} is gone", request_.peer));
  return {};
}

void ConnectionExchange::finish_head(ResponseHead& head) {
  status_ = head.status;
  const ServerShared& server = connection_->shared();
  if (server.stamp) server.stamp(request_, head.headers);
  if (const auto& answered = server.observer.answered) answered(request_, http_1_0_ ? "1.0" : "1.1", status_);
}

Task<Result<void>> ConnectionExchange::respond(HttpResponse response) {
  const auto self = shared_from_this();
  if (auto allowed = check(State::kOpen, "respond"); !allowed) co_return allowed;
  state_ = State::kDone;
  ResponseHead head;
  head.status = response.status;
  head.headers = std::move(response.headers);
  if (!response.content_type.empty()) head.headers.set("content-type", response.content_type);
  if (!bodiless(response.status)) head.content_length = response.body.size();
  head.keep_alive = keep_alive_;
  head.http_1_0 = http_1_0_;
  finish_head(head);
  std::string bytes = serialize_head(head);
  if (!head_only_ && !bodiless(response.status)) {
    bytes += response.body;
    response_bytes_ = response.body.size();
  }
  const auto written = co_await connection_->write_all(std::move(bytes));
  if (!written) state_ = State::kBroken;
  co_return written;
}

Task<Result<void>> ConnectionExchange::begin_stream(int status, Headers headers) {
  const auto self = shared_from_this();
  if (auto allowed = check(State::kOpen, "begin_stream"); !allowed) co_return allowed;
  ResponseHead head;
  head.status = status;
  if (const auto length = headers.find("content-length")) {
    std::size_t bytes = 0;
    const auto parsed = std::from_chars(length->data(), length->data() + length->size(), bytes);
    if (parsed.ec != std::errc() || parsed.ptr != length->data() + length->size()) {
      co_return Status(Code::kInvalidArgument, fmt::format("content-length '{}' is not a number", *length));
    }
    length_left_ = bytes;
    head.content_length = bytes;
  }
  head.headers = std::move(headers);
  state_ = State::kStreaming;
  finish_head(head);
  if (bodiless(status)) {
    head.content_length.reset();
    length_left_ = 0;
  }
  chunked_ = !length_left_ && !http_1_0_;
  head.chunked = chunked_;
  if (!length_left_ && !chunked_) keep_alive_ = false;  // HTTP/1.0: the end of the connection is the end of the body
  head.keep_alive = keep_alive_;
  head.http_1_0 = http_1_0_;
  std::string bytes = serialize_head(head);
  const auto written = co_await connection_->write_all(std::move(bytes));
  if (!written) state_ = State::kBroken;
  co_return written;
}

Task<Result<void>> ConnectionExchange::write(std::string bytes) {
  const auto self = shared_from_this();
  if (auto allowed = check(State::kStreaming, "write"); !allowed) co_return allowed;
  if (bytes.empty()) co_return Result<void>();
  if (length_left_) {
    if (bytes.size() > *length_left_) {
      abandon();
      co_return Status(Code::kInternal, "more bytes were written than content-length said");
    }
    *length_left_ -= bytes.size();
  }
  if (head_only_) co_return Result<void>();
  response_bytes_ += bytes.size();
  if (chunked_) {
    std::string framed = fmt::format("{:x}\r\n", bytes.size());
    framed.reserve(framed.size() + bytes.size() + 2);
    framed += bytes;
    framed += "\r\n";
    bytes = std::move(framed);
  }
  const auto written = co_await connection_->write_all(std::move(bytes));
  if (!written) state_ = State::kBroken;
  co_return written;
}

Task<Result<void>> ConnectionExchange::end_stream() {
  const auto self = shared_from_this();
  if (auto allowed = check(State::kStreaming, "end_stream"); !allowed) co_return allowed;
  if (length_left_ && *length_left_ > 0 && !head_only_) {
    const std::size_t missing = *length_left_;
    abandon();
    co_return Status(Code::kInternal, fmt::format("{} bytes of the body are missing", missing));
  }
  state_ = State::kDone;
  if (!chunked_ || head_only_) co_return Result<void>();
  std::string last = "0\r\n\r\n";
  const auto written = co_await connection_->write_all(std::move(last));
  if (!written) state_ = State::kBroken;
  co_return written;
}

void ConnectionExchange::abandon() {
  if (over_) return;
  state_ = State::kBroken;
  connection_->close();
}

void ConnectionExchange::on_client_gone(std::function<void()> callback) {
  if (over_) return;
  gone_callback_ = std::move(callback);
  if (!gone_callback_ || !client_gone()) return;
  boost::asio::post(connection_->executor(), [self = shared_from_this()] { self->client_left(); });
}

void ConnectionExchange::client_left() {
  if (auto callback = std::exchange(gone_callback_, nullptr)) callback();
}

bool ConnectionExchange::finish() {
  if (state_ == State::kStreaming) abandon();  // a handler that forgot end_stream: the client must see a broken answer
  over_ = true;
  gone_callback_ = nullptr;
  return state_ == State::kDone && keep_alive_;
}

}  // namespace tandem::net
