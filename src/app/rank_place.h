// SPDX-License-Identifier: Apache-2.0
// LLMDataDistCMgrConnector: which rows of the rank table are this instance's ranks, and who its peers are
// (pd_protocol.md 8.4 and 10.3). Checked before anything is loaded.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "config/serve_config.h"

namespace tandem::app {

/// Fills advertised_host (the server_id of this instance's rows) and kv_transfer->peer_hosts of a config whose
/// connector is of kind kRankTable. The server_id is VLLM_HOST_IP if that is set, else the one of `addresses` (this
/// host's) that the role's list has. An error names the file and what of it does not fit: the list, the node, the
/// number of devices.
Result<void> take_place_in_rank_table(config::ServeConfig& config, const std::vector<std::string>& addresses);

/// IPv4 addresses of this host's interfaces, loopback last.
std::vector<std::string> host_addresses();

}  // namespace tandem::app
