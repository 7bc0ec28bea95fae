// SPDX-License-Identifier: Apache-2.0
// Options of `tandem ranktable`: those of vLLM-Ascend's gen_ranktable.sh and .py, and where addresses come from on
// hosts without hccn_tool.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "config/ascend_paths.h"

namespace tandem::config {

/// Which form the rows have; kAuto asks npu-smi.
enum class AscendSoc { kAuto, kA2, kA3 };

struct RanktableConfig {
  std::vector<std::string> ips;  ///< addresses of all nodes, prefill nodes first
  int npus_per_node = 8;
  std::string network_card_name;      ///< "": the one with the node's address
  int prefill_device_cnt = 0;         ///< over all nodes; 0 only with check_file
  int decode_device_cnt = 0;          ///< over all nodes; 0 only with check_file
  std::vector<int> local_device_ids;  ///< empty: all
  std::string local_host;             ///< "": the entry of ips that is an address of this host
  std::vector<std::string> device_ips;
  std::string addresses_file;
  std::vector<std::string> merge_files;
  bool plain_hosts = false;  ///< nodes without NPUs: every device has its node's address
  AscendSoc soc = AscendSoc::kAuto;
  std::string output;  ///< "": ranktable.json, for a node's share ranktable.<ip>.json
  std::string check_file;
  std::string hccn_tool{kDefaultHccnTool};
  std::chrono::milliseconds tool_timeout{10'000};
};

}  // namespace tandem::config
