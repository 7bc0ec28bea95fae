// SPDX-License-Identifier: Apache-2.0
// What a deployment is: the processes of `tandem up` with their command lines, from flags or from a YAML file. No
// process is started here.
//
// The file (docs/deploy.md has an example):
//   model: PATH                       # what every instance serves, unless it says otherwise
//   serve_flags: [--block-size, 16]   # for every instance
//   connector: pull                   # or layerwise
//   network: {address: 192.0.0.254/24}   # each other host below is then a network namespace (node_network.h)
//   proxy: {host: 127.0.0.1, port: 8000, flags: []}
//   instances:
//     - {name: P1, role: prefill, host: 127.0.0.1, port: 8100, kv_port: 21000, flags: [], environment: {}}
//     - {name: D1, role: decode}      # ports that are not given are chosen
//     - {name: D2, role: decode, engine_id: D1, flags: [--headless, ...]}   # a node of D1, not an instance of its own
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "cluster/node_network.h"
#include "config/up_config.h"

namespace tandem::cluster {

enum class Role { kPrefill, kDecode, kProxy };
std::string_view role_name(Role role);  ///< "prefill", "decode", "proxy"

struct ProcessSpec {
  std::string name;  ///< "P1", "D1", "proxy": log prefix
  Role role = Role::kPrefill;
  std::string host;
  std::uint16_t port = 0;
  std::vector<std::string> arguments;  ///< after the program's name
  std::map<std::string, std::string> environment;
  bool tls = false;       ///< its port speaks TLS
  bool keys = false;      ///< clients need a key
  bool headless = false;  ///< a node of another process's instance: has no API, and the proxy does not know it
  std::string node;       ///< the host of Deployment::network whose namespace it runs in; "": this machine's own
};

/// The proxy is the last process.
struct Deployment {
  std::vector<ProcessSpec> processes;
  std::optional<NodeNetworkSpec> network;
};

/// Gives a port that nobody listens on, another one at each call.
using PortFinder = std::function<Result<std::uint16_t>(const std::string& host)>;
/// Asks the kernel. The ports given stay reserved (bound, not listening) until the finder is destroyed.
PortFinder kernel_port_finder();

/// Reads config.deployment_file if there is one. `num_cpus` is shared out between the instances (--threads), unless the
/// flags say otherwise. An error names the flag, or the file and the key.
Result<Deployment> make_deployment(const config::UpConfig& config, const PortFinder& find_port, int num_cpus);

}  // namespace tandem::cluster
