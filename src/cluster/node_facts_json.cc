// SPDX-License-Identifier: Apache-2.0
// Facts and probes as JSON, both ways.
#include <fmt/format.h>

#include <boost/json.hpp>

#include "base/json.h"
#include "cluster/node_facts.h"

namespace tandem::cluster {
namespace {

namespace json = boost::json;

constexpr std::size_t kMaxReadings = 64;
constexpr std::size_t kMaxInterfaces = 4096;

Status wrong(std::string_view field, std::string_view expected) {
  return Status(Code::kInvalidArgument, fmt::format("{}: expected {}", field, expected), Scope::kPeer);
}

json::object reading_json(const Reading& reading) { return {{"ok", reading.ok}, {"value", reading.value}}; }

Result<Reading> read_reading(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(key);
  if (value == nullptr || !value->is_object()) return wrong(key, "an object with ok and value");
  Reading reading;
  TANDEM_ASSIGN(const auto ok, json_bool(value->get_object(), "ok"));
  TANDEM_ASSIGN(const auto text, json_string(value->get_object(), "value"));
  reading.ok = ok.value_or(false);
  reading.value = text.value_or("");
  return reading;
}

Result<const json::array*> array_of(const json::object& object, std::string_view key, std::size_t most) {
  const json::value* value = object.if_contains(key);
  if (value == nullptr || !value->is_array() || value->get_array().size() > most)
    return wrong(key, fmt::format("a list of at most {} entries", most));
  return &value->get_array();
}

/// Calls read(entry) for each entry, which must be an object.
template <class Read>
Result<void> each_object(const json::object& object, std::string_view key, std::size_t most, Read read) {
  TANDEM_ASSIGN(const json::array* entries, array_of(object, key, most));
  for (const json::value& entry : *entries) {
    if (!entry.is_object()) return wrong(key, "a list of objects");
    if (Result<void> done = read(entry.get_object()); !done) return done.error().context(key);
  }
  return {};
}

Result<int> int_of(const json::object& object, std::string_view key, std::int64_t low, std::int64_t high) {
  TANDEM_ASSIGN(const auto value, json_int(object, key));
  if (!value || *value < low || *value > high) return wrong(key, fmt::format("a number from {} to {}", low, high));
  return static_cast<int>(*value);
}

Result<std::vector<std::string>> addresses_of(const json::object& object, std::string_view key) {
  TANDEM_ASSIGN(const json::array* entries, array_of(object, key, kMaxPingAddresses));
  std::vector<std::string> addresses;
  for (const json::value& entry : *entries) {
    // They become arguments of a program: addresses and nothing else.
    if (!entry.is_string() || !is_ipv4(entry.get_string())) return wrong(key, "IPv4 addresses");
    addresses.emplace_back(entry.get_string());
  }
  return addresses;
}

json::array strings_json(const std::vector<std::string>& strings) {
  json::array out;
  for (const std::string& text : strings) out.emplace_back(text);
  return out;
}

Result<DeviceFacts> read_device(const json::object& object) {
  DeviceFacts device;
  TANDEM_ASSIGN(device.id, int_of(object, "id", 0, kMaxDevices));
  const json::value* readings = object.if_contains("readings");
  if (readings == nullptr || !readings->is_object() || readings->get_object().size() > kMaxReadings)
    return wrong("readings", "an object");
  for (const auto& entry : readings->get_object()) {
    TANDEM_ASSIGN(Reading reading, read_reading(readings->get_object(), entry.key()));
    device.readings.emplace(entry.key(), std::move(reading));
  }
  return device;
}

Result<HccnConf> read_conf(const json::object& object) {
  const json::value* value = object.if_contains("conf");
  if (value == nullptr || !value->is_object() || value->get_object().size() > kMaxDevices)
    return wrong("conf", "an object");
  HccnConf conf;
  for (const auto& [id, keys] : value->get_object()) {
    const bool number = !id.empty() && id.size() < 6 && id.find_first_not_of("0123456789") == std::string_view::npos;
    if (!number || !keys.is_object()) return wrong("conf", "device numbers with objects");
    auto& of_device = conf[std::stoi(std::string(id))];
    for (const auto& [key, text] : keys.get_object()) {
      if (!text.is_string() || of_device.size() >= kMaxReadings) return wrong("conf", "a few texts for each device");
      of_device[std::string(key)] = std::string(text.get_string());
    }
  }
  return conf;
}

Result<PathResult> read_path(const json::object& entry) {
  PathResult path;
  TANDEM_ASSIGN(const auto peer, json_string(entry, "peer"));
  TANDEM_ASSIGN(const auto through, json_string(entry, "interface"));
  TANDEM_ASSIGN(path.route, read_reading(entry, "route"));
  TANDEM_ASSIGN(path.connect, read_reading(entry, "connect"));
  TANDEM_ASSIGN(path.latency, read_reading(entry, "latency"));
  TANDEM_ASSIGN(path.bandwidth, read_reading(entry, "bandwidth"));
  TANDEM_ASSIGN(path.mtu, int_of(entry, "mtu", 0, 1 << 20));
  TANDEM_ASSIGN(const auto latency_us, json_double(entry, "latency_us"));
  TANDEM_ASSIGN(const auto gbit_per_s, json_double(entry, "gbit_per_s"));
  path.peer = peer.value_or("");
  path.interface_name = through.value_or("");
  path.latency_us = latency_us.value_or(0);
  path.gbit_per_s = gbit_per_s.value_or(0);
  return path;
}

}  // namespace

json::object facts_request_json(const FactsRequest& request) {
  return {{"ask", "facts"}, {"num_devices", request.num_devices}, {"a3", request.a3}, {"host_only", request.host_only}};
}

Result<FactsRequest> read_facts_request(const json::object& object) {
  FactsRequest request;
  TANDEM_ASSIGN(request.num_devices, int_of(object, "num_devices", 0, kMaxDevices));
  TANDEM_ASSIGN(const auto a3, json_bool(object, "a3"));
  TANDEM_ASSIGN(const auto host_only, json_bool(object, "host_only"));
  request.a3 = a3.value_or(false);
  request.host_only = host_only.value_or(false);
  return request;
}

json::object facts_json(const NodeFacts& facts) {
  json::array devices, interfaces;
  for (const DeviceFacts& device : facts.devices) {
    json::object readings;
    for (const auto& [name, reading] : device.readings) readings[name] = reading_json(reading);
    devices.push_back(json::object{{"id", device.id}, {"readings", std::move(readings)}});
  }
  for (const HostInterface& one : facts.interfaces)
    interfaces.push_back(json::object{
        {"name", one.name}, {"address", one.address}, {"mtu", one.mtu}, {"up", one.up}, {"loopback", one.loopback}});
  json::object conf;
  for (const auto& [id, keys] : facts.conf) {
    json::object of_device;
    for (const auto& [key, value] : keys) of_device[key] = value;
    conf[std::to_string(id)] = std::move(of_device);
  }
  return {{"npu_present", facts.npu_present},   {"tool_present", facts.tool_present},         {"tool", facts.tool},
          {"devices", std::move(devices)},      {"hccn_conf", reading_json(facts.hccn_conf)}, {"conf", std::move(conf)},
          {"interfaces", std::move(interfaces)}};
}

Result<NodeFacts> read_facts(const json::object& object) {
  NodeFacts facts;
  TANDEM_ASSIGN(const auto npu_present, json_bool(object, "npu_present"));
  TANDEM_ASSIGN(const auto tool_present, json_bool(object, "tool_present"));
  TANDEM_ASSIGN(const auto tool, json_string(object, "tool"));
  facts.npu_present = npu_present.value_or(false);
  facts.tool_present = tool_present.value_or(false);
  facts.tool = tool.value_or("");
  TANDEM_ASSIGN(facts.hccn_conf, read_reading(object, "hccn_conf"));
  TANDEM_ASSIGN(facts.conf, read_conf(object));
  TANDEM_TRY(each_object(object, "devices", kMaxDevices, [&](const json::object& entry) -> Result<void> {
    TANDEM_ASSIGN(DeviceFacts device, read_device(entry));
    facts.devices.push_back(std::move(device));
    return {};
  }));
  TANDEM_TRY(each_object(object, "interfaces", kMaxInterfaces, [&](const json::object& entry) -> Result<void> {
    HostInterface one;
    TANDEM_ASSIGN(const auto name, json_string(entry, "name"));
    TANDEM_ASSIGN(const auto address, json_string(entry, "address"));
    TANDEM_ASSIGN(one.mtu, int_of(entry, "mtu", 0, 1 << 20));
    TANDEM_ASSIGN(const auto up, json_bool(entry, "up"));
    TANDEM_ASSIGN(const auto loopback, json_bool(entry, "loopback"));
    one.name = name.value_or("");
    one.address = address.value_or("");
    one.up = up.value_or(false);
    one.loopback = loopback.value_or(false);
    facts.interfaces.push_back(std::move(one));
    return {};
  }));
  return facts;
}

json::object probes_request_json(const ProbesRequest& request) {
  json::array devices, peers;
  for (const int device : request.devices) devices.emplace_back(device);
  for (const auto& [host, port] : request.peers)
    peers.push_back(json::object{{"host", host}, {"port", std::int64_t{port}}});
  return {{"ask", "probes"},
          {"devices", std::move(devices)},
          {"ping_addresses", strings_json(request.ping_addresses)},
          {"hccs_addresses", strings_json(request.hccs_addresses)},
          {"peers", std::move(peers)},
          {"measure_ms", request.measure.count()}};
}

Result<ProbesRequest> read_probes_request(const json::object& object) {
  ProbesRequest request;
  TANDEM_ASSIGN(const json::array* devices, array_of(object, "devices", kMaxDevices));
  for (const json::value& device : *devices) {
    if (!device.is_int64() || device.get_int64() < 0 || device.get_int64() >= kMaxDevices)
      return wrong("devices", fmt::format("numbers below {}", kMaxDevices));
    request.devices.push_back(static_cast<int>(device.get_int64()));
  }
  TANDEM_ASSIGN(request.ping_addresses, addresses_of(object, "ping_addresses"));
  TANDEM_ASSIGN(request.hccs_addresses, addresses_of(object, "hccs_addresses"));
  TANDEM_TRY(each_object(object, "peers", kMaxPeers, [&](const json::object& entry) -> Result<void> {
    TANDEM_ASSIGN(const auto host, json_string(entry, "host"));
    TANDEM_ASSIGN(const int port, int_of(entry, "port", 1, 65535));
    if (!host || host->empty() || host->size() > 255) return wrong("host", "a name or an address");
    request.peers.emplace_back(*host, static_cast<std::uint16_t>(port));
    return {};
  }));
  TANDEM_ASSIGN(const int measure_ms, int_of(object, "measure_ms", 1, kMaxMeasure.count()));
  request.measure = std::chrono::milliseconds(measure_ms);
  return request;
}

json::object probes_json(const NodeProbes& probes) {
  json::array pings, paths;
  for (const PingResult& ping : probes.pings)
    pings.push_back(json::object{{"device", ping.device},
                                 {"option", ping.option},
                                 {"address", ping.address},
                                 {"answer", reading_json(ping.answer)}});
  for (const PathResult& path : probes.paths)
    paths.push_back(json::object{{"peer", path.peer},
                                 {"route", reading_json(path.route)},
                                 {"interface", path.interface_name},
                                 {"mtu", path.mtu},
                                 {"connect", reading_json(path.connect)},
                                 {"latency", reading_json(path.latency)},
                                 {"latency_us", path.latency_us},
                                 {"bandwidth", reading_json(path.bandwidth)},
                                 {"gbit_per_s", path.gbit_per_s}});
  return {{"pings", std::move(pings)}, {"paths", std::move(paths)}};
}

Result<NodeProbes> read_probes(const json::object& object) {
  constexpr std::size_t kMaxPings = 1U << 20;
  NodeProbes probes;
  TANDEM_TRY(each_object(object, "pings", kMaxPings, [&](const json::object& entry) -> Result<void> {
    PingResult ping;
    TANDEM_ASSIGN(ping.device, int_of(entry, "device", 0, kMaxDevices));
    TANDEM_ASSIGN(const auto option, json_string(entry, "option"));
    TANDEM_ASSIGN(const auto address, json_string(entry, "address"));
    TANDEM_ASSIGN(ping.answer, read_reading(entry, "answer"));
    ping.option = option.value_or("");
    ping.address = address.value_or("");
    probes.pings.push_back(std::move(ping));
    return {};
  }));
  TANDEM_TRY(each_object(object, "paths", kMaxPeers, [&](const json::object& entry) -> Result<void> {
    TANDEM_ASSIGN(PathResult path, read_path(entry));
    probes.paths.push_back(std::move(path));
    return {};
  }));
  return probes;
}

}  // namespace tandem::cluster
