// SPDX-License-Identifier: Apache-2.0
// Several hosts on one machine: a network namespace for each, joined by veth pairs to a bridge whose address this
// machine has. Made and removed with the `ip` program (iproute2); needs root. Names are made from the network's
// address, so that what a killed run left behind is found and removed by the next one, and two runs do not meet.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "cluster/command_runner.h"

namespace tandem::cluster {

struct NodeNetworkSpec {
  std::uint32_t address = 0;       ///< of the bridge, that is of this machine, in host byte order
  int prefix = 24;                 ///< length of the network's part, 16 to 30
  std::vector<std::string> hosts;  ///< dotted IPv4 addresses in that network; one namespace each
};

/// `address` is ADDRESS/PREFIX. An error names what is wrong with it or with a host.
Result<NodeNetworkSpec> parse_node_network(const std::string& address, std::vector<std::string> hosts);

/// What all names of a network begin with, and the bridge's own: "td" and the network's address, "tdc0000000".
std::string node_network_name(const NodeNetworkSpec& spec);

class NodeNetwork {
 public:
  /// kFailedPrecondition: not root, no `ip`, another run has the network, or an interface of this machine has an
  /// address in it. Nothing stays behind after an error.
  static Result<std::unique_ptr<NodeNetwork>> create(NodeNetworkSpec spec, std::unique_ptr<CommandRunner> runner);
  /// Removes all. Processes in the namespaces should have ended.
  ~NodeNetwork();
  NodeNetwork(const NodeNetwork&) = delete;
  NodeNetwork& operator=(const NodeNetwork&) = delete;

  /// A descriptor for setns(); the caller closes it.
  Result<int> open_namespace(const std::string& host) const;
  std::string description() const;

 private:
  NodeNetwork(NodeNetworkSpec spec, std::unique_ptr<CommandRunner> runner)
      : spec_(std::move(spec)), runner_(std::move(runner)) {}
  Result<void> lock();
  Result<void> check_no_other_route() const;
  Result<void> remove_all();
  Result<void> make_bridge();
  Result<void> make_node(const std::string& host);
  Result<std::string> ip(std::vector<std::string> arguments);
  std::string node_name(const std::string& host) const;

  NodeNetworkSpec spec_;
  std::unique_ptr<CommandRunner> runner_;
  int lock_ = -1;
};

}  // namespace tandem::cluster
