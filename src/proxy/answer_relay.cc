// SPDX-License-Identifier: Apache-2.0
#include "proxy/answer_relay.h"

#include "net/sse.h"
#include "proxy/forwarding.h"

namespace tandem::proxy {
namespace {

using End = RelayOutcome::End;

/// Remembers where an event stream stands and whether it said that it is over.
class StreamState {
 public:
  void feed(std::string_view bytes) {
    boundary_.feed(bytes);
    if (bytes.size() >= kTail) {
      tail_ = bytes.substr(bytes.size() - kTail);
    } else {
      tail_ += bytes;
      if (tail_.size() > kTail) tail_.erase(0, tail_.size() - kTail);
    }
  }
  bool said_done() const { return boundary_.between_events() && tail_.find("data: [DONE]") != std::string::npos; }
  /// Ends what is half sent, so that the next line starts an event.
  std::string_view closing() const {
    if (boundary_.between_events()) return "";
    return boundary_.at_line_start() ? "\n" : "\n\n";
  }

 private:
  static constexpr std::size_t kTail = 16;  // "data: [DONE]" and its line ends
  net::SseBoundary boundary_;
  std::string tail_;
};

/// No [DONE]: a client that reads no error events must not take what it has for a whole answer.
net::Task<void> end_with_error(std::shared_ptr<net::Exchange> exchange, const StreamState& state, std::string message) {
  std::string bytes(state.closing());
  bytes += "data: " + error_body(502, message) + "\n\n";
  const auto sent = co_await exchange->write(std::move(bytes));
  if (sent) (void)co_await exchange->end_stream();
}

}  // namespace

net::Task<RelayOutcome> relay_answer(std::shared_ptr<net::Exchange> exchange,
                                     std::unique_ptr<net::ClientResponse> answer, std::string first_piece,
                                     net::Headers extra) {
  RelayOutcome outcome;
  net::Headers headers = client_headers(answer->headers());
  for (const auto& [name, value] : extra.fields()) headers.set(name, value);
  const auto type = headers.find("content-type");
  const bool events = type && type->starts_with("text/event-stream");
  if (events) headers.remove("content-length");  // an error event may have to follow
  const auto begun = co_await exchange->begin_stream(answer->status(), std::move(headers));
  StreamState state;
  std::string piece = std::move(first_piece);
  bool client_there = begun.has_value();
  while (client_there && !piece.empty()) {
    outcome.num_bytes += piece.size();
    if (events) state.feed(piece);
    const auto written = co_await exchange->write(std::move(piece));
    client_there = written.has_value();
    if (!client_there) break;
    auto next = co_await answer->read_piece();
    if (next) {
      piece = std::move(*next);
      continue;
    }
    outcome.error = next.error();
    if (outcome.error.code() == Code::kCancelled || exchange->client_gone()) {
      client_there = false;
      break;
    }
    if (events && state.said_done()) {
      piece.clear();  // everything was said; only the end of the transfer is missing
      break;
    }
    outcome.end = End::kBroken;
    if (events) {
      co_await end_with_error(exchange, state, outcome.error.message());
    } else {
      exchange->abandon();
    }
    co_return outcome;
  }
  if (client_there) {
    const auto ended = co_await exchange->end_stream();
    client_there = ended.has_value();
  }
  if (!client_there) outcome.end = End::kClientGone;
  co_return outcome;
}

net::Task<void> relay_whole(std::shared_ptr<net::Exchange> exchange, int status, net::Headers headers,
                            std::string body) {
  net::HttpResponse response;
  response.status = status;
  response.headers = client_headers(headers);
  response.content_type = std::string(response.headers.find("content-type").value_or("application/json"));
  response.body = std::move(body);
  (void)co_await exchange->respond(std::move(response));
}

}  // namespace tandem::proxy
