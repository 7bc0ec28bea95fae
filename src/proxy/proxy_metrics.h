// SPDX-License-Identifier: Apache-2.0
// What the proxy counts, besides the scores that each instance carries itself.
#pragma once

#include <string_view>

#include "obs/metrics.h"

namespace tandem::proxy {

struct ProxyMetrics {
  explicit ProxyMetrics(obs::Registry& owner);

  /// By endpoint and "2xx", "4xx", "5xx", "client_gone" or "broken" (an answer that ended half-way).
  void count_request(std::string_view endpoint, std::string_view outcome);

  /// Of POST /v1/metaserver.
  void count_metaserver_post(int status);

  obs::Registry& registry;
  obs::Gauge inflight;
  obs::Counter prefill_retries, decode_retries;
  obs::Counter stream_resumes;  ///< streams that broke off and went to another decoder
  obs::Counter local_prefills;  ///< requests whose decoder got no KV from a prefiller: it prefilled or had it cached
  obs::Counter releases_ok, releases_unsupported, releases_failed;
  obs::Histogram prefill_seconds, first_byte_seconds;
};

/// "2xx" for 204.
std::string_view status_class(int status);

}  // namespace tandem::proxy
