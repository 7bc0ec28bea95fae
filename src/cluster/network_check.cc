// SPDX-License-Identifier: Apache-2.0
// Judging: what must hold, and what to do where it does not.
#include "cluster/network_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "config/ascend_paths.h"

namespace tandem::cluster {
namespace {

const Reading kNotAsked{false, "was not asked"};

const Reading& reading_of(const DeviceFacts& device, const std::string& name) {
  const auto it = device.readings.find(name);
  return it == device.readings.end() ? kNotAsked : it->second;
}

/// What is known over all nodes before any is judged.
struct Overview {
  std::map<std::string, std::string> owners;            ///< device address: "192.0.0.2 device 7"
  std::map<std::string, std::set<std::string>> shared;  ///< device address: everyone who has it
  std::set<std::string> tls_values;
};

class Assessor {
 public:
  Assessor(std::span<const CheckedNode> nodes, const config::CheckNetworkConfig& config)
      : nodes_(nodes), config_(config) {
    for (const CheckedNode& node : nodes)
      for (const DeviceFacts& device : node.facts.devices) note_device(node, device);
  }

  std::vector<CheckRow> run() {
    for (const CheckedNode& node : nodes_) {
      node_ = &node;
      if (!node.unreachable.empty()) {
        fail("host", "agent", node.unreachable,
             fmt::format("on {}: tandem check agent --port {}; open that TCP port in its firewall", node.name,
                         node.port));
        continue;
      }
      check_interface();
      for (const PathResult& path : node.probes.paths) check_path(path);
      if (!config_.host_only) check_devices();
      if (!node.probe_failure.empty())
        fail("host", "probes", node.probe_failure,
             fmt::format("look at the agent on {} and run the check again", node.name));
    }
    return std::move(rows_);
  }

 private:
  void note_device(const CheckedNode& node, const DeviceFacts& device) {
    const std::string label = fmt::format("{} device {}", node.name, device.id);
    for (const char* name : {"ip", "vnic"})
      if (const Reading& reading = reading_of(device, name); reading.ok) {
        overview_.owners.emplace(reading.value, label);
        overview_.shared[fmt::format("{} {}", name, reading.value)].insert(label);
      }
    if (const Reading& tls = reading_of(device, "tls"); tls.ok) overview_.tls_values.insert(tls.value);
  }

  void add(std::string subject, std::string check, Outcome outcome, std::string found, std::string remedy = "") {
    rows_.push_back({node_->name, std::move(subject), std::move(check), outcome, std::move(found), std::move(remedy)});
  }
  void pass(std::string subject, std::string check, std::string found) {
    add(std::move(subject), std::move(check), Outcome::kOk, std::move(found));
  }
  void fail(std::string subject, std::string check, std::string found, std::string remedy) {
    add(std::move(subject), std::move(check), Outcome::kFailed, std::move(found), std::move(remedy));
  }
  void judge(bool ok, std::string subject, std::string check, std::string found, std::string remedy) {
    if (ok)
      pass(std::move(subject), std::move(check), std::move(found));
    else
      fail(std::move(subject), std::move(check), std::move(found), std::move(remedy));
  }

  // The host.

  void check_interface() {
    const auto& interfaces = node_->facts.interfaces;
    if (const HostInterface* own = interface_with_address(interfaces, node_->host)) {
      judge(own->up, "host", "interface",
            fmt::format("{} {} is {}, MTU {}", own->name, own->address, own->up ? "up" : "down", own->mtu),
            fmt::format("ip link set dev {} up", own->name));
      return;
    }
    if (is_ipv4(node_->host)) {
      fail("host", "interface", fmt::format("no interface has the address {}", node_->host),
           fmt::format("name the node by its own address, or start its container with --network host (look with: ip -4 "
                       "address)"));
      return;
    }
    const auto up = std::find_if(interfaces.begin(), interfaces.end(),
                                 [](const HostInterface& one) { return one.up && !one.loopback; });
    if (up == interfaces.end())
      fail("host", "interface", "no interface with an IPv4 address is up", "ip link set dev <interface> up");
    else
      pass("host", "interface", fmt::format("{} {} is up, MTU {}", up->name, up->address, up->mtu));
  }

  std::string peer_name(const std::string& peer) const {
    for (const CheckedNode& node : nodes_)
      if (fmt::format("{}:{}", node.host, node.port) == peer) return node.name;
    return peer;
  }

  void check_path(const PathResult& path) {
    const std::string peer = peer_name(path.peer);
    const std::string subject = "to " + peer;
    const std::string device = path.interface_name.empty() ? "<interface>" : path.interface_name;
    judge(path.route.ok, subject, "route", path.route.value,
          fmt::format("ip route add {} dev {}", path.peer.substr(0, path.peer.rfind(':')), device));
    if (!path.route.ok) return;
    check_mtu(path, subject, device);
    judge(path.connect.ok, subject, "connect", path.connect.value,
          fmt::format("on {}: tandem check agent --port {}; open that TCP port in its firewall", peer,
                      path.peer.substr(path.peer.rfind(':') + 1)));
    if (!path.connect.ok) return;
    const bool quick = config_.max_latency_us <= 0 || path.latency_us <= config_.max_latency_us;
    judge(path.latency.ok && quick, subject, "latency",
          quick ? path.latency.value
                : fmt::format("{}, more than --max-latency {} us", path.latency.value, config_.max_latency_us),
          fmt::format("look for loss and load on the way: ping -c 100 -i 0.2 {}; ethtool -S {}", peer, device));
    const bool wide = path.gbit_per_s >= config_.min_gbit_per_s;
    judge(path.bandwidth.ok && wide, subject, "bandwidth",
          wide || !path.bandwidth.ok
              ? path.bandwidth.value
              : fmt::format("{}, less than --min-bandwidth {} Gbit/s", path.bandwidth.value, config_.min_gbit_per_s),
          fmt::format("look at the link's speed and errors: ethtool {}; if large packets are lost: ip link set dev {} "
                      "mtu 1500",
                      device, device));
  }

  /// Both directions must agree; where they do not, large packets vanish one way and small ones do not.
  void check_mtu(const PathResult& path, const std::string& subject, const std::string& device) {
    int back = 0;
    for (const CheckedNode& other : nodes_) {
      if (fmt::format("{}:{}", other.host, other.port) != path.peer) continue;
      for (const PathResult& reverse : other.probes.paths)
        if (reverse.peer == fmt::format("{}:{}", node_->host, node_->port)) back = reverse.mtu;
    }
    const bool equal = back == 0 || back == path.mtu;
    judge(equal, subject, "mtu", equal ? std::to_string(path.mtu) : fmt::format("{} there, {} back", path.mtu, back),
          fmt::format("ip link set dev {} mtu {}", device, std::min(back, path.mtu)));
  }

  // The devices.

  void check_devices() {
    const NodeFacts& facts = node_->facts;
    const bool wanted = config_.a3 || config_.npus_per_node.value_or(0) > 0 || facts.npu_present;
    if (!facts.tool_present && !wanted) {
      add("host", "devices", Outcome::kSkipped, "no NPU here");
      return;
    }
    if (config_.npus_per_node == 0) return;
    check_hccn_conf();
    if (!facts.tool_present) {
      fail("host", "hccn_tool", fmt::format("{} does not exist", facts.tool),
           fmt::format("mount it into the container: docker run -v {}:{} ...; elsewhere: export HCCN_TOOL_PATH=PATH",
                       config::kDefaultHccnTool, config::kDefaultHccnTool));
      return;
    }
    for (const DeviceFacts& device : facts.devices) {
      check_links(device);
      check_addresses(device);
      check_tls(device);
      if (facts.hccn_conf.ok) check_agreement(device);
    }
    check_pings();
  }

  void check_hccn_conf() {
    const Reading& conf = node_->facts.hccn_conf;
    judge(conf.ok, "host", "hccn.conf", conf.value,
          fmt::format("mount the host's file into the container: docker run -v {}:{} ...", config::kDefaultHccnConf,
                      config::kDefaultHccnConf));
  }

  std::string tool(int device, std::string_view rest) const { return fmt::format("hccn_tool -i {} {}", device, rest); }

  void check_links(const DeviceFacts& device) {
    const std::string subject = fmt::format("device {}", device.id);
    const Reading& lldp = reading_of(device, "lldp");
    judge(lldp.ok, subject, "lldp", lldp.value,
          fmt::format("switch LLDP on at the switch port and look at the cable: {}", tool(device.id, "-lldp -g")));
    const Reading& link = reading_of(device, "link");
    judge(link.ok && link.value == "UP", subject, "link", link.value,
          fmt::format("look at cable, optical module and switch port{}: {}; {}",
                      lldp.ok ? fmt::format(" {}", lldp.value) : "", tool(device.id, "-optical -g"),
                      tool(device.id, "-link_stat -g")));
    const Reading& health = reading_of(device, "net_health");
    judge(health.ok && health.value == "Success", subject, "net_health", health.value,
          fmt::format(
              "make the address that is probed answer, or set another: {}",
              tool(device.id, fmt::format("-netdetect -s address {}", configured(device, "netdetect", "gateway")))));
    const Reading& detect = reading_of(device, "netdetect");
    judge(detect.ok && detect.value != "0.0.0.0", subject, "netdetect",
          detect.value == "0.0.0.0" ? "0.0.0.0 (not set)" : detect.value,
          tool(device.id, fmt::format("-netdetect -s address {}", configured(device, "netdetect", "gateway"))));
    const Reading& gateway = reading_of(device, "gateway");
    judge(gateway.ok && gateway.value != "0.0.0.0", subject, "gateway",
          gateway.value == "0.0.0.0" ? "0.0.0.0 (not set)" : gateway.value,
          tool(device.id, fmt::format("-gateway -s gateway {}", configured(device, "gateway", "netdetect"))));
  }

  /// What hccn.conf says, for a remedy that can be pasted.
  std::string configured(const DeviceFacts& device, const std::string& key, const std::string& otherwise) const {
    const auto keys = node_->facts.conf.find(device.id);
    if (keys != node_->facts.conf.end())
      for (const std::string& name : {key, otherwise})
        if (const auto value = keys->second.find(name); value != keys->second.end() && is_ipv4(value->second))
          return value->second;
    return fmt::format("<{} of this device's network>", key == "address" ? "a free address" : "gateway");
  }

  void check_address(const DeviceFacts& device, const std::string& name, const std::string& remedy) {
    const Reading& reading = reading_of(device, name);
    const std::string own = fmt::format("{} device {}", node_->name, device.id);
    std::string others;
    if (reading.ok)
      for (const std::string& label : overview_.shared[fmt::format("{} {}", name, reading.value)])
        if (label != own) others += (others.empty() ? "" : ", ") + label;
    const bool unset = reading.value == "0.0.0.0";
    judge(reading.ok && !unset && others.empty(), fmt::format("device {}", device.id), name,
          unset            ? "0.0.0.0 (not set)"
          : others.empty() ? reading.value
                           : fmt::format("{} is also the address of {}", reading.value, others),
          remedy);
  }

  void check_addresses(const DeviceFacts& device) {
    check_address(device, "ip",
                  tool(device.id, fmt::format("-ip -s address {} netmask <mask>", configured(device, "address", ""))));
    if (!config_.a3) return;
    const Reading& status = reading_of(device, "vnic_link");
    const std::string look = fmt::format("{}; npu-smi info -t spod-info -i {} -c {}", tool(device.id, "-vnic -g"),
                                         device.id / 2, device.id % 2);
    if (status.ok && status.value != "UP")
      fail(fmt::format("device {}", device.id), "vnic", fmt::format("link is {}", status.value), look);
    else
      check_address(device, "vnic", look);
  }

  void check_tls(const DeviceFacts& device) {
    const Reading& tls = reading_of(device, "tls");
    const std::string subject = fmt::format("device {}", device.id);
    if (!tls.ok) {
      fail(subject, "tls", tls.value, fmt::format("run as root: {}", tool(device.id, "-tls -g")));
      return;
    }
    // All must be equal; off is what the guides advise, so the ones that are on are to change.
    const bool mixed = overview_.tls_values.size() > 1;
    judge(!mixed || tls.value == "0", subject, "tls",
          mixed ? fmt::format("{}, but not on all devices", tls.value == "0" ? "0 (off)" : "1 (on)")
                : fmt::format("{} on all devices", tls.value == "0" ? "0 (off)" : "1 (on)"),
          tool(device.id, "-tls -s enable 0"));
  }

  void check_agreement(const DeviceFacts& device) {
    const std::string subject = fmt::format("device {}", device.id);
    const auto keys = node_->facts.conf.find(device.id);
    if (keys == node_->facts.conf.end() || !keys->second.contains("address")) {
      fail(subject, "hccn.conf", fmt::format("address_{} is missing", device.id),
           fmt::format("add address_{}={} to the file, or mount the host's", device.id,
                       reading_of(device, "ip").ok ? reading_of(device, "ip").value : "<the device's address>"));
      return;
    }
    std::string differences;
    for (const auto& [key, asked] :
         {std::pair("address", "ip"), std::pair("gateway", "gateway"), std::pair("netdetect", "netdetect")}) {
      const auto value = keys->second.find(key);
      const Reading& reading = reading_of(device, asked);
      if (value == keys->second.end() || !reading.ok || reading.value == value->second) continue;
      differences += fmt::format("{}{}_{} is {} in the file and {} on the device", differences.empty() ? "" : "; ", key,
                                 device.id, value->second, reading.value);
    }
    judge(differences.empty(), subject, "hccn.conf", differences.empty() ? "agrees" : differences,
          fmt::format("{} (the device takes the file's), or mount the host's file if this is an old copy",
                      tool(device.id, "-cfg recovery")));
  }

  void check_pings() {
    std::map<std::pair<int, std::string>, std::pair<int, int>> counts;  // device, option: all, failed
    for (const PingResult& ping : node_->probes.pings) {
      const std::string check = ping.option.substr(ping.option.starts_with('-') ? 1 : 0);
      auto& [all, failed] = counts[{ping.device, check}];
      ++all;
      if (ping.answer.ok) continue;
      ++failed;
      const auto owner = overview_.owners.find(ping.address);
      fail(fmt::format("device {}", ping.device), check,
           fmt::format("{} ({}): {}", ping.address, owner == overview_.owners.end() ? "unknown" : owner->second,
                       ping.answer.value),
           fmt::format("{}; then look at that device's link, gateway and tls rows and the switches between",
                       tool(ping.device, fmt::format("{} -g address {}", ping.option, ping.address))));
    }
    for (const auto& [key, count] : counts)
      if (count.second == 0)
        pass(fmt::format("device {}", key.first), key.second, fmt::format("{} of {} answer", count.first, count.first));
    if (!counts.empty()) return;
    if (nodes_.size() == 1)
      add("host", "ping", Outcome::kSkipped, "no other node was named with --nodes");
    else if (node_->probe_failure.empty())
      fail("host", "ping", "no device of another node has a known address",
           "mend the ip rows and the agents of the other nodes first");
  }

  std::span<const CheckedNode> nodes_;
  const config::CheckNetworkConfig& config_;
  Overview overview_;
  const CheckedNode* node_ = nullptr;
  std::vector<CheckRow> rows_;
};

}  // namespace

std::string_view outcome_name(Outcome outcome) {
  switch (outcome) {
    case Outcome::kOk:
      return "ok";
    case Outcome::kFailed:
      return "FAILED";
    case Outcome::kSkipped:
      return "skipped";
  }
  return "";
}

int expected_devices(const config::CheckNetworkConfig& config) {
  return config.npus_per_node.value_or(config.a3 ? 16 : 8);
}

std::vector<CheckRow> assess_network(std::span<const CheckedNode> nodes, const config::CheckNetworkConfig& config) {
  return Assessor(nodes, config).run();
}

std::size_t num_failed(std::span<const CheckRow> rows) {
  return static_cast<std::size_t>(
      std::count_if(rows.begin(), rows.end(), [](const CheckRow& row) { return row.outcome == Outcome::kFailed; }));
}

}  // namespace tandem::cluster
