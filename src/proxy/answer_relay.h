// SPDX-License-Identifier: Apache-2.0
// A backend's answer to the client, byte for byte and piece by piece. The one place that decides how a broken answer is
// made visible. Serves every way of pairing prefill and decode.
#pragma once

#include <memory>
#include <string>

#include "net/http_client.h"
#include "net/http_server.h"

namespace tandem::proxy {

struct RelayOutcome {
  enum class End : std::uint8_t { kComplete, kClientGone, kBroken };
  RelayOutcome() {}
  End end = End::kComplete;
  Status error;  ///< of a broken answer
  std::size_t num_bytes = 0;
};

/// Sends head (`extra` fields of our own replace the backend's) and first piece, then what follows until the end. If
/// the backend breaks off, an event stream gets an error event and no [DONE] (after closing a half-sent event),
/// anything else a connection that ends too early.
net::Task<RelayOutcome> relay_answer(std::shared_ptr<net::Exchange> exchange,
                                     std::unique_ptr<net::ClientResponse> answer, std::string first_piece,
                                     net::Headers extra);

/// Whole answers that are not streams (errors passed on).
net::Task<void> relay_whole(std::shared_ptr<net::Exchange> exchange, int status, net::Headers headers,
                            std::string body);

}  // namespace tandem::proxy
