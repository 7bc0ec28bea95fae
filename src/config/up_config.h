// SPDX-License-Identifier: Apache-2.0
// Options of `tandem up`: a whole deployment on this machine, from flags or from a YAML file.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/serve_config.h"
#include "config/tls_config.h"

namespace tandem::config {

/// Whether output is coloured: kAuto means only if it goes to a terminal.
enum class Color { kAuto, kAlways, kNever };

struct UpConfig {
  std::string model;                        ///< what every `serve` gets; empty only if deployment_file names one
  int prefill = 1;                          ///< instances with role kv_producer
  int decode = 1;                           ///< instances with role kv_consumer
  std::string host = "127.0.0.1";           ///< where the proxy listens
  std::uint16_t port = 8000;                ///< the proxy's port
  std::optional<KvConnector> connector;     ///< how KV moves; nullopt: as the file says, else pull
  std::string deployment_file;              ///< YAML; empty: the fields above describe everything
  std::vector<std::string> serve_flags;     ///< what stood after `--`, handed to every `serve` as it is
  std::vector<std::string> api_keys;        ///< of the proxy and of every instance; empty: as their flags say
  ServerTls tls;                            ///< of the proxy's port
  std::chrono::seconds ready_timeout{600};  ///< until all processes answer
  /// After the first signal, for the proxy's running requests, before instances are stopped; 0: all stop at once.
  std::chrono::milliseconds shutdown_timeout{0};
  Color color = Color::kAuto;
  std::string log_level = "info";
};

}  // namespace tandem::config
