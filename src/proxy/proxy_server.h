// SPDX-License-Identifier: Apache-2.0
// `tandem proxy`: pairs prefillers and decoders behind one OpenAI endpoint. One io thread of its own does everything.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "base/status.h"
#include "config/proxy_config.h"
#include "obs/metrics.h"

namespace tandem::proxy {

/// Endpoints: POST /v1/completions, /v1/chat/completions, /tokenize, /detokenize, /reset_prefix_cache; GET /v1/models,
/// /healthcheck (static), /health and /ping (200 once a prefiller and a decoder of one connector answer), /load,
/// /version, /metrics; POST /v1/metaserver (metaserver.h), /instances/add, /instances/remove (instance_admin.h).
class ProxyServer {
 public:
  /// Backends may be down. `registry` must outlive the server. The environment variable OPENAI_API_KEY, if set, is sent
  /// to backends for clients without an Authorization of their own.
  ProxyServer(config::ProxyConfig config, obs::Registry& registry);
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
