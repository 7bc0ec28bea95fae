// SPDX-License-Identifier: Apache-2.0
// Asking: this node directly, the others through their agents. Facts and device pings of all nodes at once, the
// measurements between hosts one node after the other, so that they do not disturb each other.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <thread>

#include "base/log.h"
#include "cluster/check_agent.h"
#include "cluster/network_check.h"
#include "config/ascend_paths.h"

namespace tandem::cluster {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kMargin{10'000};

class Inspection {
 public:
  Inspection(const config::CheckNetworkConfig& config, const NodeTools& tools) : config_(config), tools_(tools) {}

  std::vector<CheckedNode> run() {
    find_nodes();
    start_own_agent();
    log::info("check: asking {} node(s) for their interfaces and devices", nodes_.size());
    at_all([this](CheckedNode& node) { fetch_facts(node); });
    ping_devices();
    for (CheckedNode& node : nodes_) measure_paths(node);
    return std::move(nodes_);
  }

 private:
  bool is_local(const CheckedNode& node) const { return local_ < nodes_.size() && &node == &nodes_[local_]; }

  void find_nodes() {
    const auto interfaces = host_interfaces();
    local_ = config_.nodes.size();
    for (const config::CheckNode& given : config_.nodes) {
      CheckedNode node;
      node.host = given.host;
      node.port = given.port;
      node.name = given.port_given ? fmt::format("{}:{}", given.host, given.port) : given.host;
      if (!given.port_given && local_ == config_.nodes.size() && interface_with_address(interfaces, given.host))
        local_ = nodes_.size();
      nodes_.push_back(std::move(node));
    }
    if (local_ < nodes_.size()) return;
    CheckedNode own;
    own.name = "this host";
    own.port = config::kDefaultAgentPort;
    const auto up = std::find_if(interfaces.begin(), interfaces.end(),
                                 [](const HostInterface& one) { return one.up && !one.loopback; });
    own.host = up == interfaces.end() ? "127.0.0.1" : up->address;
    if (!nodes_.empty()) {
      own.port = nodes_[0].port;
      if (const auto route = route_to(nodes_[0].host)) own.host = route->source;
    }
    nodes_.push_back(std::move(own));
    local_ = nodes_.size() - 1;
  }

  /// The others measure the way to this node too. If its port is taken, an agent runs here already.
  void start_own_agent() {
    if (nodes_.size() < 2) return;
    auto listener = Listener::open("0.0.0.0", nodes_[local_].port);
    if (!listener) return;
    agent_ = std::make_unique<CheckAgent>(std::move(*listener), tools_);
  }

  template <class Task>
  void at_all(Task task) {
    std::vector<std::jthread> threads;
    for (CheckedNode& node : nodes_) threads.emplace_back([&task, &node] { task(node); });
  }

  void fetch_facts(CheckedNode& node) const {
    const FactsRequest request{expected_devices(config_), config_.a3, config_.host_only};
    if (is_local(node)) {
      node.facts = collect_facts(request, tools_);
      return;
    }
    constexpr int kQuestions = 8;  // of one device, each with the tool's own time limit
    const auto rounds = 1 + request.num_devices / 32;
    auto facts =
        ask_facts(node.host, node.port, request, config_.timeout, config_.timeout * kQuestions * rounds + kMargin);
    if (facts)
      node.facts = std::move(*facts);
    else
      node.unreachable = facts.error().message();
  }

  NodeProbes probe(CheckedNode& node, const ProbesRequest& request, milliseconds longest) const {
    if (is_local(node)) return collect_probes(request, tools_);
    auto probes = ask_probes(node.host, node.port, request, config_.timeout, longest);
    if (probes) return std::move(*probes);
    node.probe_failure = probes.error().message();
    return {};
  }

  void ping_devices() {
    if (config_.host_only || nodes_.size() < 2) return;
    std::vector<ProbesRequest> requests(nodes_.size());
    std::size_t pings = 0;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      for (const DeviceFacts& device : nodes_[i].facts.devices) requests[i].devices.push_back(device.id);
      for (const CheckedNode& other : nodes_)
        if (&other != &nodes_[i]) add_addresses(other, requests[i]);
      pings += requests[i].devices.size() * (requests[i].ping_addresses.size() + requests[i].hccs_addresses.size());
    }
    if (pings == 0) return;
    log::info("check: {} pings between devices of different nodes; a few seconds each, all devices at once", pings);
    at_all([&](CheckedNode& node) {
      const ProbesRequest& request = requests[static_cast<std::size_t>(&node - nodes_.data())];
      const auto addresses = static_cast<int>(request.ping_addresses.size() + request.hccs_addresses.size());
      if (request.devices.empty() || addresses == 0) return;
      const int rounds = 1 + static_cast<int>(request.devices.size()) / 32;
      node.probes.pings = probe(node, request, config_.timeout * addresses * rounds + kMargin).pings;
    });
  }

  void add_addresses(const CheckedNode& node, ProbesRequest& request) const {
    for (const DeviceFacts& device : node.facts.devices)
      for (const auto& [name, list] :
           {std::pair("ip", &request.ping_addresses), std::pair("vnic", &request.hccs_addresses)}) {
        const auto reading = device.readings.find(name);
        const bool usable = reading != device.readings.end() && reading->second.ok && is_ipv4(reading->second.value);
        if (usable && reading->second.value != "0.0.0.0" && list->size() < kMaxPingAddresses)
          list->push_back(reading->second.value);
      }
  }

  void measure_paths(CheckedNode& node) {
    if (!node.unreachable.empty() || nodes_.size() < 2) return;
    ProbesRequest request;
    request.measure = config_.measure;
    for (const CheckedNode& other : nodes_)
      if (&other != &node) request.peers.emplace_back(other.host, other.port);
    log::info("check: measuring from {} to {} node(s)", node.name, request.peers.size());
    const auto count = static_cast<int>(request.peers.size());
    node.probes.paths = probe(node, request, (config_.timeout * 4 + config_.measure) * count + kMargin).paths;
  }

  const config::CheckNetworkConfig& config_;
  const NodeTools& tools_;
  std::vector<CheckedNode> nodes_;
  std::size_t local_ = 0;
  std::unique_ptr<CheckAgent> agent_;
};

}  // namespace

std::vector<CheckedNode> inspect_network(const config::CheckNetworkConfig& config, const NodeTools& tools) {
  return Inspection(config, tools).run();
}

}  // namespace tandem::cluster
