// SPDX-License-Identifier: Apache-2.0
#include "net/relay.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "net/sse.h"

namespace tandem::net {
namespace {

using End = RelayOutcome::End;

constexpr std::array<std::string_view, 9> kHopByHop = {
    "connection",        "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
    "transfer-encoding", "upgrade"};

void remove_hop_by_hop(Headers& headers) {
  std::vector<std::string> named;
  for (const auto& [name, value] : headers.fields()) {
    Headers probe;
    probe.add(name, "");
    if (!probe.find("connection")) continue;
    for (std::string& token : listed_names(value)) named.push_back(std::move(token));
  }
  for (const auto& name : named) headers.remove(name);
  for (const auto name : kHopByHop) headers.remove(name);
}

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
  SseBoundary boundary_;
  std::string tail_;
};

/// No [DONE]: a client that reads no error events must not take what it has for a whole answer.
Task<void> end_with_error(std::shared_ptr<Exchange> exchange, const StreamState& state, std::string event) {
  std::string bytes(state.closing());
  bytes += event;
  const auto sent = co_await exchange->write(std::move(bytes));
  if (sent) (void)co_await exchange->end_stream();
}

}  // namespace

Headers request_headers(const Headers& client) {
  Headers headers = client;
  remove_hop_by_hop(headers);
  for (const char* name : {"host", "content-length", "expect", "accept-encoding"}) headers.remove(name);
  return headers;
}

Headers answer_headers(const Headers& backend) {
  Headers headers = backend;
  remove_hop_by_hop(headers);
  headers.remove("date");
  return headers;
}

Task<RelayOutcome> relay_answer(std::shared_ptr<Exchange> exchange, std::unique_ptr<ClientResponse> answer,
                                std::string first_piece, Headers extra, ErrorEvent error_event) {
  RelayOutcome outcome;
  Headers headers = answer_headers(answer->headers());
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
    if (exchange->client_gone()) {
      client_there = false;
      break;
    }
    if (events && state.said_done()) {
      piece.clear();  // everything was said; only the end of the transfer is missing
      break;
    }
    outcome.end = End::kBroken;
    if (events) {
      std::string event = error_event(outcome.error.message());
      co_await end_with_error(exchange, state, std::move(event));
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

Task<void> relay_whole(std::shared_ptr<Exchange> exchange, int status, Headers headers, std::string body) {
  HttpResponse response;
  response.status = status;
  response.headers = answer_headers(headers);
  response.content_type = std::string(response.headers.find("content-type").value_or("application/json"));
  response.body = std::move(body);
  (void)co_await exchange->respond(std::move(response));
}

}  // namespace tandem::net
