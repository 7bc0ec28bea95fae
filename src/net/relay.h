// SPDX-License-Identifier: Apache-2.0
// What stands between a client and a backend: which headers pass, and the backend's answer to the client, byte for byte
// and piece by piece. The one place that decides how a broken answer is made visible.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "net/http_client.h"
#include "net/http_server.h"

namespace tandem::net {

/// The client's headers for a backend: without hop-by-hop fields (and those that Connection names), Host,
/// Content-Length, Expect and Accept-Encoding.
Headers request_headers(const Headers& client);
/// A backend's headers for the client: without hop-by-hop fields and Date. Content-Length stays: the server keeps that
/// promise.
Headers answer_headers(const Headers& backend);

struct RelayOutcome {
  enum class End : std::uint8_t { kComplete, kClientGone, kBroken };
  RelayOutcome() {}
  End end = End::kComplete;
  Status error;  ///< of a broken answer
  std::size_t num_bytes = 0;
};

/// The event, line ends included, that tells a client of an event stream that its answer broke off.
using ErrorEvent = std::function<std::string(std::string_view why)>;

/// Sends head (`extra` fields of our own replace the backend's) and first piece, then what follows until the end. If
/// the backend breaks off, or the request to it is cancelled while the client is still there, an event stream gets an
/// error event and no [DONE] (after closing a half-sent event), anything else a connection that ends too early.
Task<RelayOutcome> relay_answer(std::shared_ptr<Exchange> exchange, std::unique_ptr<ClientResponse> answer,
                                std::string first_piece, Headers extra, ErrorEvent error_event);

/// Whole answers that are not streams (errors passed on).
Task<void> relay_whole(std::shared_ptr<Exchange> exchange, int status, Headers headers, std::string body);

}  // namespace tandem::net
