// SPDX-License-Identifier: Apache-2.0
// Options of `tandem proxy`: the flags of vLLM-Ascend's two proxy scripts, load_balance_proxy_server_example.py and
// load_balance_proxy_layerwise_server_example.py (pd_protocol.md 9.1), and what those scripts lack.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "config/tls_config.h"

namespace tandem::config {

struct Backend {
  std::string host;
  std::uint16_t port = 0;
  bool tls = false;  ///< https
};

/// Who is asked first, and which way the KV then moves.
enum class ProxyConnector : std::uint8_t {
  kAuto,       ///< what each decoder says of itself at /tandem/info; pull for those that do not know that endpoint
  kPull,       ///< prefiller first, the decoder fetches (pd_protocol.md 4.1)
  kLayerwise,  ///< decoder first, the prefiller pushes (pd_protocol.md 7.1)
};

struct ProxyConfig {
  std::string host = "localhost";
  std::uint16_t port = 8000;
  std::vector<std::string> api_keys;  ///< --api-key or VLLM_API_KEY, of clients; empty: the proxy asks for none
  std::string instance_api_key;       ///< sent to instances in place of what the client sent; empty: the client's
  std::string fallback_api_key;       ///< OPENAI_API_KEY: sent to instances for clients without an Authorization
  ServerTls tls;                      ///< of the proxy's own port
  ClientTls instance_tls;             ///< for https instances
  std::vector<Backend> prefillers;
  std::vector<Backend> decoders;
  ProxyConnector connector = ProxyConnector::kAuto;
  /// Where decoders reach POST /v1/metaserver, if not at host and port; empty: http(s)://<host>:<port>/v1/metaserver.
  std::string metaserver_url;
  int max_retries = 3;                       ///< attempts of the prefill stage, over different prefillers
  std::chrono::milliseconds retry_delay{1};  ///< doubles with each attempt
  int max_stream_resumes = 1;                ///< decoders that go on with one stream, one after the other
  std::chrono::milliseconds connect_timeout{3'000};
  std::chrono::milliseconds prefill_timeout{600'000};         ///< whole prefill answer
  std::chrono::milliseconds first_byte_timeout{600'000};      ///< decode: until the head of a streamed answer
  std::chrono::milliseconds whole_answer_timeout{3'600'000};  ///< decode: until the head of one that is not streamed
  std::chrono::milliseconds stream_idle_timeout{300'000};     ///< decode: between two pieces
  std::chrono::milliseconds shutdown_timeout{25'000};         ///< for running requests after SIGTERM
  int max_inflight = 4096;                                    ///< over it: 503 with Retry-After
  int max_waiting_retries = 3;                                ///< readiness probes of an added instance
  std::chrono::milliseconds waiting_retry_interval{10'000};   ///< between two of them
  bool access_log = true;                                     ///< a line for each HTTP request
  std::string log_level = "info";
};

}  // namespace tandem::config
