// SPDX-License-Identifier: Apache-2.0
// The network of a plain host: its interfaces, and which of them leads to a peer.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tandem::cluster {

/// One IPv4 address of one interface.
struct HostInterface {
  std::string name;
  std::string address;
  int mtu = 0;
  bool up = false;  ///< and running
  bool loopback = false;
};

std::vector<HostInterface> host_interfaces();

/// The interface with this address; nullptr if none has it.
const HostInterface* interface_with_address(const std::vector<HostInterface>& interfaces, std::string_view address);

/// How the kernel would send to a peer. Nothing is sent.
struct Route {
  std::string source;          ///< own address
  std::string interface_name;  ///< "" if no interface has it
  int mtu = 0;                 ///< of the path, as far as the kernel knows
};
Result<Route> route_to(const std::string& host);

}  // namespace tandem::cluster
