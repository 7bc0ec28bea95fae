// SPDX-License-Identifier: Apache-2.0
// Options of `tandem check network` and `tandem check agent`.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/ascend_paths.h"

namespace tandem::config {

/// A node of the deployment, named by one of its addresses.
struct CheckNode {
  std::string host;
  std::uint16_t port = 0;   ///< of its agent
  bool port_given = false;  ///< HOST:PORT: an agent even if the address is one of this host
};

struct CheckNetworkConfig {
  std::vector<CheckNode> nodes;
  std::optional<int> npus_per_node;  ///< nullopt: 8, on A3 16, and none where there is no NPU
  bool a3 = false;
  bool json = false;
  bool host_only = false;
  double min_gbit_per_s = 0;                ///< between two nodes; 0: any
  double max_latency_us = 0;                ///< median of a round trip; 0: any
  std::chrono::milliseconds measure{500};   ///< how long the bandwidth of one pair of nodes is measured
  std::chrono::milliseconds timeout{5000};  ///< of one connection or one hccn_tool call
  std::string hccn_tool{kDefaultHccnTool};
  std::string hccn_conf{kDefaultHccnConf};
};

struct CheckAgentConfig {
  std::string host = "0.0.0.0";
  std::uint16_t port = kDefaultAgentPort;
  std::chrono::milliseconds lifetime{3'600'000};  ///< then it ends by itself
  std::chrono::milliseconds timeout{5000};
  std::string hccn_tool{kDefaultHccnTool};
  std::string hccn_conf{kDefaultHccnConf};
};

}  // namespace tandem::config
