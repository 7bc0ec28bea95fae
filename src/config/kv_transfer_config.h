// SPDX-License-Identifier: Apache-2.0
// Reads the JSON object of --kv-transfer-config. Spec: pd_protocol.md 1.1 to 1.4.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "config/command_options.h"
#include "config/serve_config.h"

namespace tandem::config {

/// Sizes this instance really has; a config that declares others is refused.
struct ParallelSizes {
  std::int64_t tensor = 1;
  std::int64_t data = 1;
};

/// Completes a config of LLMDataDistCMgrConnector, which is set up by variables (pd_protocol.md 1.7); leaves others as
/// they are.
Result<void> apply_environment(KvTransferConfig& config, const Environment& environment);
/// The ports that peers connect to, kv_port and one more for each further rank, against their end and --port.
Result<void> check_ports(const KvTransferConfig& config, std::int64_t num_ranks, std::uint16_t http_port);

/// nullopt for "{}" and "null". Keys that mean nothing here are named in one line appended to `notes`.
Result<std::optional<KvTransferConfig>> parse_kv_transfer_config(std::string_view text, ParallelSizes real,
                                                                 std::vector<std::string>& notes);

}  // namespace tandem::config
