// SPDX-License-Identifier: Apache-2.0
// What one node knows about its own network (facts) and finds out about the way to the others (probes). Collected by
// `tandem check network` on its own node and by `tandem check agent` on the others, and sent as JSON. No judgement
// here.
#pragma once

#include <atomic>
#include <boost/json/fwd.hpp>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "cluster/hccn.h"
#include "cluster/host_network.h"

namespace tandem::cluster {

/// The answer to one question: its value, or why there is none.
struct Reading {
  bool ok = false;
  std::string value;
};

struct DeviceFacts {
  int id = 0;
  std::map<std::string, Reading>
      readings;  ///< lldp, link, net_health, netdetect, gateway, ip, tls; on A3 vnic, vnic_link
};

struct NodeFacts {
  bool npu_present = false;   ///< /dev/davinci0 is there
  bool tool_present = false;  ///< hccn_tool is
  std::string tool;           ///< its path
  std::vector<DeviceFacts> devices;
  Reading hccn_conf;  ///< not ok: missing or unreadable
  HccnConf conf;
  std::vector<HostInterface> interfaces;
};

struct FactsRequest {
  int num_devices = 8;
  bool a3 = false;
  bool host_only = false;
};

struct PingResult {
  int device = 0;
  std::string option;  ///< "-ping" or "-hccs_ping"
  std::string address;
  Reading answer;  ///< the loss, or what went wrong
};

/// The way to one other node.
struct PathResult {
  std::string peer;  ///< HOST:PORT of its agent
  Reading route;     ///< "eth0 192.0.0.1"
  std::string interface_name;
  int mtu = 0;
  Reading connect;  ///< "312 us"
  Reading latency;
  double latency_us = 0;
  Reading bandwidth;
  double gbit_per_s = 0;
};

struct NodeProbes {
  std::vector<PingResult> pings;
  std::vector<PathResult> paths;
};

struct ProbesRequest {
  std::vector<int> devices;                                  ///< that ping
  std::vector<std::string> ping_addresses;                   ///< of the devices of other nodes
  std::vector<std::string> hccs_addresses;                   ///< A3: their vnic addresses
  std::vector<std::pair<std::string, std::uint16_t>> peers;  ///< agents
  std::chrono::milliseconds measure{500};
};

inline constexpr std::size_t kMaxPeers = 256;
inline constexpr std::size_t kMaxPingAddresses = 16384;
inline constexpr std::chrono::milliseconds kMaxMeasure{10'000};

/// Where the answers come from.
struct NodeTools {
  CommandRunner& runner;
  std::string hccn_tool;
  std::string hccn_conf;
  std::chrono::milliseconds timeout;
  /// Whether a file exists; a test answers for /dev/davinci0 and hccn_tool.
  bool (*exists)(const std::string& path);
  const std::atomic<bool>* stop = nullptr;  ///< ends a collection early
};
bool file_exists(const std::string& path);

/// All devices at once, a thread each.
NodeFacts collect_facts(const FactsRequest& request, const NodeTools& tools);
/// Pings from all devices at once; then one peer after the other.
NodeProbes collect_probes(const ProbesRequest& request, const NodeTools& tools);

// JSON. Readers take what a peer sent: bounded, an error names the field.
boost::json::object facts_request_json(const FactsRequest& request);
boost::json::object facts_json(const NodeFacts& facts);
boost::json::object probes_request_json(const ProbesRequest& request);
boost::json::object probes_json(const NodeProbes& probes);
Result<FactsRequest> read_facts_request(const boost::json::object& object);
Result<NodeFacts> read_facts(const boost::json::object& object);
Result<ProbesRequest> read_probes_request(const boost::json::object& object);
Result<NodeProbes> read_probes(const boost::json::object& object);

}  // namespace tandem::cluster
