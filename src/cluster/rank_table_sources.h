// SPDX-License-Identifier: Apache-2.0
// Where the device addresses of a rank table come from: hccn_tool, a list, a file, the host's own interface, or the
// shares that other nodes wrote.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cluster/hccn.h"
#include "cluster/host_network.h"
#include "cluster/rank_table.h"
#include "config/ranktable_config.h"

namespace tandem::cluster {

/// What this host is; a test makes one up.
struct RankTableHost {
  const Hccn* hccn = nullptr;  ///< null: no hccn_tool here
  std::vector<HostInterface> interfaces;
};

/// A whole table, or this node's share if the other nodes' devices are not known here.
struct RankTableFile {
  std::string path;
  std::string text;
  bool partial = false;
  std::string node;   ///< whose share
  int num_nodes = 0;  ///< of the whole table
};

/// Does what `tandem ranktable` was asked for, except writing. An error names the flag, file or command.
Result<RankTableFile> build_rank_table(const config::RanktableConfig& config, const RankTableHost& host);

/// Lines "NODE_IP DEVICE_ID DEVICE_IP [SUPER_POD_ID SUPER_DEVICE_ID]"; # begins a comment. Nodes in order of
/// appearance.
Result<std::vector<NodeDevices>> parse_address_list(std::string_view text);

}  // namespace tandem::cluster
