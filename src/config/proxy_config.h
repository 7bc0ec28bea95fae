// SPDX-License-Identifier: Apache-2.0
// Options of `tandem proxy`: the flags of vLLM-Ascend's load_balance_proxy_server_example.py (pd_protocol.md 9.1) and
// the time limits that script lacks.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace tandem::config {

struct Backend {
  std::string host;
  std::uint16_t port = 0;
};

struct ProxyConfig {
  std::string host = "localhost";
  std::uint16_t port = 8000;
  std::vector<Backend> prefillers;
  std::vector<Backend> decoders;
  int max_retries = 3;                       ///< attempts of the prefill stage, over different prefillers
  std::chrono::milliseconds retry_delay{1};  ///< doubles with each attempt
  std::chrono::milliseconds connect_timeout{3'000};
  std::chrono::milliseconds prefill_timeout{600'000};      ///< whole prefill answer
  std::chrono::milliseconds first_byte_timeout{600'000};   ///< decode: until the head of the answer
  std::chrono::milliseconds stream_idle_timeout{300'000};  ///< decode: between two pieces
  int max_inflight = 4096;                                 ///< over it: 503 with Retry-After
  std::string log_level = "info";
};

}  // namespace tandem::config
