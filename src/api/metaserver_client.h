// SPDX-License-Identifier: Apache-2.0
// A decoder's calls to the metaserver of a layerwise proxy (pd_protocol.md 7.2): one POST a prompt, open for as long as
// its prefill takes. The URL comes with each request, so this server connects where its clients (proxies) say; it
// sends nothing but where KV is wanted, and --kv-metaserver-hosts limits the hosts.
#pragma once

#include <chrono>
#include <memory>

#include "engine/announcer.h"
#include "net/http_client.h"

namespace tandem::api {

struct MetaserverOptions {
  std::size_t max_in_flight = 256;  ///< calls; more wait in a queue, one entry a request that waits for its KV
  int max_attempts = 3;             ///< only while no connection comes about: what was sent is never sent again
  std::chrono::milliseconds retry_pause{100};
  std::chrono::milliseconds connect_timeout{3'000};
  std::chrono::milliseconds answer_timeout{480'000};  ///< the answer comes after the prefill
  std::shared_ptr<boost::asio::ssl::context> tls;     ///< for https; nullptr: such calls fail
};

/// An engine::Announcer with a thread of its own; end it after the engine. Any status but 2xx is an error.
std::unique_ptr<engine::Announcer> start_metaserver_client(const MetaserverOptions& options);

}  // namespace tandem::api
