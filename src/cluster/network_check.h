// SPDX-License-Identifier: Apache-2.0
// `tandem check network`: the verification chapter of the deployment guides as one table. Facts and probes of all nodes
// come in (node_facts.h), judged rows with the command that mends each failure go out.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "cluster/node_facts.h"
#include "config/check_config.h"

namespace tandem::cluster {

enum class Outcome { kOk, kFailed, kSkipped };
std::string_view outcome_name(Outcome outcome);  ///< "ok", "FAILED", "skipped"

/// One row.
struct CheckRow {
  std::string node;
  std::string subject;  ///< "host", "device 3", "to 192.0.0.2"
  std::string check;    ///< "link"
  Outcome outcome = Outcome::kOk;
  std::string found;
  std::string remedy;  ///< a command or what to do; not empty if failed
};

struct CheckedNode {
  std::string name;           ///< as given with --nodes
  std::string host;           ///< its address
  std::uint16_t port = 0;     ///< of its agent
  std::string unreachable;    ///< why its facts are not known; "" if they are
  std::string probe_failure;  ///< why its probes are not complete; "" if they are
  NodeFacts facts;
  NodeProbes probes;
};

/// Pure: the rows of all nodes.
std::vector<CheckRow> assess_network(std::span<const CheckedNode> nodes, const config::CheckNetworkConfig& config);

/// How many devices each node should have: --npus-per-node, else 16 on A3 and 8 else.
int expected_devices(const config::CheckNetworkConfig& config);

/// Asks this node and the agents of the others; takes seconds, with device pings minutes.
std::vector<CheckedNode> inspect_network(const config::CheckNetworkConfig& config, const NodeTools& tools);

/// Rows of devices that are all well become one line ("devices 0-7").
std::string check_table_text(std::span<const CheckRow> rows);
/// {"ok": false, "failed": 2, "checks": [{"node", "subject", "check", "outcome", "found", "remedy"}]}
std::string check_table_json(std::span<const CheckRow> rows);
std::size_t num_failed(std::span<const CheckRow> rows);

}  // namespace tandem::cluster
