// SPDX-License-Identifier: Apache-2.0
// Flags of `tandem check network` and `tandem check agent`.
#include <fmt/format.h>

#include <algorithm>

#include "config/command_options.h"

namespace tandem::config {
namespace {

Status invalid(std::string message) { return Status(Code::kInvalidArgument, std::move(message)); }

constexpr std::size_t kMaxNodes = 256;
constexpr int kMaxDevices = 1024;  // of one node

/// HOST or HOST:PORT.
Result<CheckNode> parse_node(const std::string& text) {
  CheckNode node;
  const std::size_t colon = text.find(':');
  node.host = text.substr(0, colon);
  const std::string_view odd = " /\\\t\n'\"";
  if (node.host.empty() || node.host.size() > 255 || node.host[0] == '-' ||
      node.host.find_first_of(odd) != std::string::npos)
    return invalid(fmt::format("'{}' is not a node; expected HOST or HOST:PORT", text));
  if (colon == std::string::npos) return node;
  TANDEM_ASSIGN(const std::int64_t port, parse_integer(text.substr(colon + 1), 1, 65535));
  node.port = static_cast<std::uint16_t>(port);
  node.port_given = true;
  return node;
}

Setter milliseconds_up_to(std::chrono::milliseconds& target, std::int64_t most) {
  return [&target, most](const std::string& value) -> Result<void> {
    TANDEM_ASSIGN(const std::int64_t count, parse_milliseconds(value));
    if (count > most) return invalid(fmt::format("{} is too long; at most {} s", value, most / 1000));
    target = std::chrono::milliseconds(count);
    return {};
  };
}

Setter number_into(double& target) {
  return [&target](const std::string& value) -> Result<void> {
    TANDEM_ASSIGN(target, parse_number(value, 0, true, 1e9));
    return {};
  };
}

}  // namespace

CheckNetworkOptions::CheckNetworkOptions(FlagList& flags, const Environment& environment) {
  config_.hccn_tool = environment("HCCN_TOOL_PATH").value_or(config_.hccn_tool);
  flags.group("Nodes");
  flags.many("--nodes", "HOST", "all nodes; HOST:PORT if its agent has another port; on each runs `tandem check agent`",
             "this host", [this](const std::vector<std::string>& values) -> Result<void> {
               config_.nodes.clear();
               if (values.size() > kMaxNodes) return invalid(fmt::format("more than {} nodes", kMaxNodes));
               for (const std::string& value : values) {
                 TANDEM_ASSIGN(CheckNode node, parse_node(value));
                 for (const CheckNode& known : config_.nodes)
                   if (known.host == node.host && known.port == node.port)
                     return invalid(fmt::format("{} is given twice", value));
                 config_.nodes.push_back(std::move(node));
               }
               return {};
             });
  flags.one("--port", "PORT", "of the agents", std::to_string(kDefaultAgentPort), integer_into(port_, 1, 65535));
  flags.one("--npus-per-node", "N", "devices of each node; 0: none", "8, on A3 16, none where there is no NPU",
            [this](const std::string& value) -> Result<void> {
              TANDEM_ASSIGN(const std::int64_t count, parse_integer(value, 0, kMaxDevices));
              config_.npus_per_node = static_cast<int>(count);
              return {};
            });
  flags.toggle("--a3", "Atlas A3: also the vnic addresses and hccs_ping", config_.a3, false);
  flags.toggle("--host-only", "nothing about NPUs", config_.host_only, false);
  flags.group("What is asked of the hosts");
  flags.one("--min-bandwidth", "GBIT", "Gbit/s of one TCP stream between two nodes", "any",
            number_into(config_.min_gbit_per_s));
  flags.one("--max-latency", "US", "median round trip in microseconds", "any", number_into(config_.max_latency_us));
  flags.one("--measure", "TIME", "for which a pair of nodes is measured", "500ms",
            milliseconds_up_to(config_.measure, 10'000));
  flags.one("--timeout", "TIME", "of one connection and one call of hccn_tool", "5s",
            milliseconds_up_to(config_.timeout, 120'000));
  flags.group("Output and files");
  flags.toggle("--json", "all checks as JSON instead of a table", config_.json, false);
  flags.one("--hccn-tool", "PATH", "hccn_tool of this host; also HCCN_TOOL_PATH", config_.hccn_tool,
            text_into(config_.hccn_tool));
  flags.one("--hccn-conf", "PATH", "hccn.conf of this host", config_.hccn_conf, text_into(config_.hccn_conf));
}

Result<CheckNetworkConfig> CheckNetworkOptions::finish(const std::vector<std::string>& positional) {
  if (!positional.empty()) return invalid(fmt::format("unrecognized arguments: {}", positional[0]));
  for (CheckNode& node : config_.nodes)
    if (!node.port_given) node.port = port_;
  if (config_.host_only && (config_.a3 || config_.npus_per_node.value_or(0) > 0))
    return invalid("--host-only cannot go with --a3 or --npus-per-node");
  return config_;
}

CheckAgentOptions::CheckAgentOptions(FlagList& flags, const Environment& environment) {
  constexpr std::int64_t kLongestLife = 7LL * 24 * 3600 * 1000;
  config_.hccn_tool = environment("HCCN_TOOL_PATH").value_or(config_.hccn_tool);
  flags.group("Agent");
  flags.one("--host", "HOST", "address to listen on", config_.host, text_into(config_.host));
  flags.one("--port", "PORT", "port to listen on; 0: any free one", std::to_string(config_.port),
            integer_into(config_.port, 0, 65535));
  flags.one("--lifetime", "TIME", "then it ends by itself", "3600s",
            milliseconds_up_to(config_.lifetime, kLongestLife));
  flags.one("--timeout", "TIME", "of one connection and one call of hccn_tool", "5s",
            milliseconds_up_to(config_.timeout, 120'000));
  flags.one("--hccn-tool", "PATH", "hccn_tool of this host; also HCCN_TOOL_PATH", config_.hccn_tool,
            text_into(config_.hccn_tool));
  flags.one("--hccn-conf", "PATH", "hccn.conf of this host", config_.hccn_conf, text_into(config_.hccn_conf));
}

Result<CheckAgentConfig> CheckAgentOptions::finish(const std::vector<std::string>& positional) {
  if (!positional.empty()) return invalid(fmt::format("unrecognized arguments: {}", positional[0]));
  return config_;
}

}  // namespace tandem::config
