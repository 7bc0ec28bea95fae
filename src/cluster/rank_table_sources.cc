// SPDX-License-Identifier: Apache-2.0
#include "cluster/rank_table_sources.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <sstream>

namespace tandem::cluster {
namespace {

using config::AscendSoc;
using config::RanktableConfig;

Status invalid(std::string message) { return Status(Code::kInvalidArgument, std::move(message)); }

constexpr std::size_t kMaxListBytes = 4U << 20;
constexpr std::size_t kMaxShareBytes = 16U << 20;

RankTableDevice make_device(const std::string& server_id, int device_id, const std::string& device_ip) {
  RankTableDevice device;
  device.server_id = server_id;
  device.device_id = std::to_string(device_id);
  device.device_ip = device_ip;
  return device;
}

/// Gathers the devices of the nodes that this invocation knows.
class Builder {
 public:
  Builder(const RanktableConfig& config, const RankTableHost& host) : config_(config), host_(host) {}

  Result<std::vector<NodeDevices>> nodes() const {
    if (!config_.merge_files.empty()) return merged();
    if (!config_.addresses_file.empty()) return from_file();
    if (!config_.device_ips.empty()) return from_list();
    if (config_.plain_hosts) {
      std::vector<NodeDevices> all;
      for (const std::string& ip : config_.ips) all.push_back(sharing_one_address(ip, ip));
      return all;
    }
    TANDEM_ASSIGN(const std::string local, local_node());
    TANDEM_ASSIGN(NodeDevices devices, host_.hccn != nullptr ? from_hccn(local) : from_interface(local));
    std::vector<NodeDevices> one;
    one.push_back(std::move(devices));
    return one;
  }

  /// The entry of --ips that this host is.
  Result<std::string> local_node() const {
    if (!config_.local_host.empty()) {
      if (std::find(config_.ips.begin(), config_.ips.end(), config_.local_host) == config_.ips.end())
        return invalid(
            fmt::format("--local-host {} is not among --ips {}", config_.local_host, fmt::join(config_.ips, " ")));
      return config_.local_host;
    }
    for (const std::string& ip : config_.ips)
      if (interface_with_address(host_.interfaces, ip) != nullptr) return ip;
    std::vector<std::string> own;
    for (const HostInterface& one : host_.interfaces)
      if (!one.loopback) own.push_back(one.address);
    return invalid(
        fmt::format("none of --ips {} is an address of this host ({}); run it on one of the nodes, or name "
                    "the node with --local-host",
                    fmt::join(config_.ips, " "), fmt::join(own, ", ")));
  }

 private:
  std::vector<int> device_ids() const {
    if (!config_.local_device_ids.empty()) return config_.local_device_ids;
    std::vector<int> ids(static_cast<std::size_t>(config_.npus_per_node));
    std::iota(ids.begin(), ids.end(), 0);
    return ids;
  }

  NodeDevices sharing_one_address(const std::string& server_id, const std::string& address) const {
    NodeDevices node{server_id, {}};
    for (const int id : device_ids()) node.devices.push_back(make_device(server_id, id, address));
    return node;
  }

  Result<NodeDevices> from_interface(const std::string& local) const {
    if (config_.network_card_name.empty()) return sharing_one_address(local, local);
    std::vector<std::string> names;
    for (const HostInterface& one : host_.interfaces) {
      if (one.name == config_.network_card_name) return sharing_one_address(local, one.address);
      names.push_back(one.name);
    }
    return invalid(
        fmt::format("--network-card-name {}: this host has no such interface with an IPv4 address; it has {}",
                    config_.network_card_name, fmt::join(names, ", ")));
  }

  Result<NodeDevices> from_hccn(const std::string& local) const {
    std::vector<int> ids = config_.local_device_ids;
    if (ids.empty()) {
      auto listed = host_.hccn->device_ids();
      // Containers often have hccn_tool without npu-smi; the flag says how many devices there are.
      if (listed)
        ids = std::move(*listed);
      else if (listed.error().code() == Code::kNotFound)
        ids = device_ids();
      else
        return listed.error();
    }
    TANDEM_ASSIGN(const bool a3, is_a3(ids.front()));
    NodeDevices node{local, {}};
    for (const int id : ids) {
      TANDEM_ASSIGN(RankTableDevice device, ask_device(local, id, a3));
      node.devices.push_back(std::move(device));
    }
    return node;
  }

  Result<bool> is_a3(int device) const {
    if (config_.soc != AscendSoc::kAuto) return config_.soc == AscendSoc::kA3;
    return host_.hccn->super_pod(device).has_value();
  }

  Result<RankTableDevice> ask_device(const std::string& local, int id, bool a3) const {
    const std::string option = a3 ? "-vnic" : "-ip";
    TANDEM_ASSIGN(const std::string text, host_.hccn->ask(id, {option, "-g"}));
    Result<std::string> address = [&]() -> Result<std::string> {
      if (!a3) return parse_device_ip(text);
      TANDEM_ASSIGN(Vnic vnic, parse_vnic(text));
      return std::move(vnic.address);
    }();
    if (!address) return address.error().context(fmt::format("{} -i {} {} -g", host_.hccn->tool(), id, option));
    RankTableDevice device = make_device(local, id, *address);
    if (!a3) return device;
    TANDEM_ASSIGN(SuperPod pod, host_.hccn->super_pod(id));
    device.super_pod_id = std::move(pod.super_pod_id);
    device.super_device_id = std::move(pod.super_device_id);
    return device;
  }

  Result<std::vector<NodeDevices>> from_file() const {
    TANDEM_ASSIGN(const std::string text, read_text_file(config_.addresses_file, kMaxListBytes));
    auto nodes = parse_address_list(text);
    if (!nodes) return nodes.error().context(config_.addresses_file);
    return in_order(std::move(*nodes), config_.addresses_file);
  }

  /// --device-ips: "NODE=a,b,c" for each node, or the devices of all nodes one after the other, or only this node's.
  Result<std::vector<NodeDevices>> from_list() const {
    std::vector<NodeDevices> nodes;
    std::vector<std::string> flat;
    for (const std::string& item : config_.device_ips) {
      const std::size_t equals = item.find('=');
      std::istringstream list(equals == std::string::npos ? item : item.substr(equals + 1));
      std::vector<std::string> addresses;
      for (std::string address; std::getline(list, address, ',');) {
        if (!is_ipv4(address)) return invalid(fmt::format("--device-ips: '{}' is not an IPv4 address", address));
        addresses.push_back(address);
      }
      if (equals == std::string::npos) {
        flat.insert(flat.end(), addresses.begin(), addresses.end());
        continue;
      }
      TANDEM_ASSIGN(NodeDevices node, numbered(item.substr(0, equals), addresses));
      nodes.push_back(std::move(node));
    }
    if (!flat.empty() && !nodes.empty()) return invalid("--device-ips: either every item is NODE=ADDRESS,... or none");
    if (flat.empty()) return in_order(std::move(nodes), "--device-ips");
    return split_flat(flat);
  }

  Result<std::vector<NodeDevices>> split_flat(const std::vector<std::string>& flat) const {
    const std::size_t each = device_ids().size();
    std::vector<NodeDevices> nodes;
    if (flat.size() == each) {
      TANDEM_ASSIGN(const std::string local, local_node());
      TANDEM_ASSIGN(NodeDevices node, numbered(local, flat));
      nodes.push_back(std::move(node));
      return nodes;
    }
    if (flat.size() != each * config_.ips.size())
      return invalid(
          fmt::format("--device-ips: found {} addresses; expected {} for {} nodes of {} devices, or {} for "
                      "this node alone",
                      flat.size(), each * config_.ips.size(), config_.ips.size(), each, each));
    for (std::size_t i = 0; i < config_.ips.size(); ++i) {
      const auto first = flat.begin() + static_cast<std::ptrdiff_t>(i * each);
      TANDEM_ASSIGN(NodeDevices node, numbered(config_.ips[i], {first, first + static_cast<std::ptrdiff_t>(each)}));
      nodes.push_back(std::move(node));
    }
    return nodes;
  }

  Result<NodeDevices> numbered(const std::string& server_id, const std::vector<std::string>& addresses) const {
    const std::vector<int> ids = device_ids();
    if (addresses.size() != ids.size())
      return invalid(
          fmt::format("--device-ips: {} has {} addresses for {} devices (--npus-per-node, "
                      "--local-device-ids)",
                      server_id, addresses.size(), ids.size()));
    NodeDevices node{server_id, {}};
    for (std::size_t i = 0; i < ids.size(); ++i) node.devices.push_back(make_device(server_id, ids[i], addresses[i]));
    return node;
  }

  Result<std::vector<NodeDevices>> merged() const {
    std::vector<NodeDevices> nodes;
    for (const std::string& path : config_.merge_files) {
      TANDEM_ASSIGN(const std::string text, read_text_file(path, kMaxShareBytes));
      auto node = parse_partial_table(text);
      if (!node) return node.error().context(path);
      for (const NodeDevices& known : nodes)
        if (known.server_id == node->server_id)
          return invalid(fmt::format("--merge: {} has the share of {} again", path, node->server_id));
      nodes.push_back(std::move(*node));
    }
    if (config_.ips.empty()) return nodes;
    TANDEM_ASSIGN(std::vector<NodeDevices> ordered, in_order(std::move(nodes), "--merge"));
    for (const std::string& ip : config_.ips)
      if (std::none_of(ordered.begin(), ordered.end(), [&](const NodeDevices& node) { return node.server_id == ip; }))
        return invalid(fmt::format("--merge: the share of {} (from --ips) is missing; run tandem ranktable on it", ip));
    return ordered;
  }

  /// In the order of --ips.
  Result<std::vector<NodeDevices>> in_order(std::vector<NodeDevices> nodes, std::string_view source) const {
    const auto& ips = config_.ips;
    for (const NodeDevices& node : nodes)
      if (std::find(ips.begin(), ips.end(), node.server_id) == ips.end())
        return invalid(fmt::format("{}: node {} is not among --ips {}", source, node.server_id, fmt::join(ips, " ")));
    std::stable_sort(nodes.begin(), nodes.end(), [&](const NodeDevices& a, const NodeDevices& b) {
      return std::find(ips.begin(), ips.end(), a.server_id) < std::find(ips.begin(), ips.end(), b.server_id);
    });
    return nodes;
  }

  const RanktableConfig& config_;
  const RankTableHost& host_;
};

}  // namespace

Result<std::vector<NodeDevices>> parse_address_list(std::string_view text) {
  std::vector<NodeDevices> nodes;
  std::istringstream lines{std::string(text)};
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    std::istringstream words(line.substr(0, line.find('#')));
    const std::vector<std::string> fields{std::istream_iterator<std::string>(words), {}};
    if (fields.empty()) continue;
    const bool digits =
        fields.size() > 1 && fields[1].size() < 8 && fields[1].find_first_not_of("0123456789") == std::string::npos;
    if ((fields.size() != 3 && fields.size() != 5) || !is_ipv4(fields[0]) || !digits || !is_ipv4(fields[2]))
      return invalid(
          fmt::format("line {}: expected NODE_IP DEVICE_ID DEVICE_IP [SUPER_POD_ID SUPER_DEVICE_ID], found "
                      "'{}'",
                      number, line.substr(0, 120)));
    RankTableDevice device;
    device.server_id = fields[0];
    device.device_id = fields[1];
    device.device_ip = fields[2];
    if (fields.size() == 5) {
      device.super_pod_id = fields[3];
      device.super_device_id = fields[4];
    }
    auto node = std::find_if(nodes.begin(), nodes.end(), [&](const auto& one) { return one.server_id == fields[0]; });
    if (node == nodes.end()) node = nodes.insert(nodes.end(), NodeDevices{fields[0], {}});
    node->devices.push_back(std::move(device));
  }
  if (nodes.empty()) return invalid("no device is listed");
  return nodes;
}

Result<RankTableFile> build_rank_table(const RanktableConfig& config, const RankTableHost& host) {
  const Builder builder(config, host);
  TANDEM_ASSIGN(const std::vector<NodeDevices> nodes, builder.nodes());
  RankTableFile file;
  file.num_nodes = static_cast<int>(config.ips.empty() ? nodes.size() : config.ips.size());
  if (static_cast<int>(nodes.size()) < file.num_nodes) {
    if (nodes.size() != 1)
      return invalid(fmt::format("addresses of {} nodes were given, --ips has {}; give all, or only one node's",
                                 nodes.size(), file.num_nodes));
    file.partial = true;
    file.node = nodes[0].server_id;
    file.text = partial_table_json(nodes[0]);
    file.path = config.output.empty() ? fmt::format("ranktable.{}.json", file.node) : config.output;
    return file;
  }
  TANDEM_ASSIGN(const RankTable table, make_rank_table(nodes, config.prefill_device_cnt, config.decode_device_cnt));
  file.text = rank_table_json(table);
  file.path = config.output.empty() ? "ranktable.json" : config.output;
  return file;
}

}  // namespace tandem::cluster
