// SPDX-License-Identifier: Apache-2.0
// The event stream that a client gets: from one decoder, or from another one after it when that broke off
// (stream_trail.h). Always ends with whole events: those of an answer, or an error event and no [DONE].
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "net/http_client.h"
#include "net/http_server.h"
#include "net/relay.h"
#include "proxy/stream_trail.h"

namespace tandem::proxy {

/// Used on the proxy's io thread only.
class ClientStream {
 public:
  explicit ClientStream(std::shared_ptr<net::Exchange> exchange) : exchange_(std::move(exchange)) {}

  /// Whether the client has the head, so that nothing but events can follow.
  bool begun() const { return begun_; }
  /// Passes on what of an answer is new to the client, and its end. `headers` are those of the first answer's head.
  /// kBroken: the stream is still open; relay() another answer if may_resume(), or end_with_error().
  net::Task<net::RelayOutcome> relay(std::unique_ptr<net::ClientResponse> answer, std::string first_piece,
                                     net::Headers headers, std::function<bool()> may_resume);
  net::Task<void> end_with_error(int status, std::string why);
  /// False once an answer was not the same as the one before it: another one would be of no use.
  bool can_resume() const { return !differs_; }

 private:
  std::shared_ptr<net::Exchange> exchange_;
  StreamTrail trail_;
  bool begun_ = false;
  bool differs_ = false;
};

}  // namespace tandem::proxy
