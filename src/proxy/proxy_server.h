// SPDX-License-Identifier: Apache-2.0
// `tandem proxy`: pairs prefillers and decoders behind one OpenAI endpoint. One io thread of its own does everything.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "base/status.h"
#include "config/proxy_config.h"
#include "net/http_client.h"
#include "obs/metrics.h"

namespace tandem::proxy {

/// Endpoints: POST /v1/completions, /v1/chat/completions, /invocations; those of endpoints.h; POST /v1/metaserver
/// (metaserver.h), /instances/add, /instances/remove (instance_admin.h). With --api-key whatever is under /v1,
/// generates or changes something needs a key; decoders have one for the metaserver in its URL.
class ProxyServer {
 public:
  /// Backends may be down. `registry` must outlive the server. `instance_tls`: for https instances (net/tls.h).
  ProxyServer(config::ProxyConfig config, obs::Registry& registry,
              std::shared_ptr<boost::asio::ssl::context> instance_tls = nullptr);
  ~ProxyServer();
  ProxyServer(const ProxyServer&) = delete;
  ProxyServer& operator=(const ProxyServer&) = delete;

  /// Listens and serves. Returns the port (of use with port 0); an error names address and reason.
  Result<std::uint16_t> start();
  /// /health turns 503, new requests are refused with 503, running ones may end within `drain`; then all is closed.
  /// Blocks until done; harmless when not started or called twice.
  void stop(std::chrono::milliseconds drain);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::proxy
