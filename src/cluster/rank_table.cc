// SPDX-License-Identifier: Apache-2.0
#include "cluster/rank_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <map>
#include <set>
#include <system_error>

#include "base/json.h"
#include "cluster/hccn.h"

namespace tandem::cluster {
namespace {

namespace json = boost::json;

constexpr JsonLimits kLimits{.max_depth = 16, .max_bytes = 16U << 20};
constexpr std::size_t kMaxProblems = 200;
constexpr std::size_t kShownLength = 60;

/// A value for a message: short, whatever the file has there.
std::string shown(const json::value& value) {
  std::string text(json::serialize(value));
  if (text.size() > kShownLength) text = text.substr(0, kShownLength) + "...";
  return text;
}

std::optional<std::uint64_t> number_of(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size() || (text.size() > 1 && text[0] == '0'))
    return std::nullopt;
  return number;
}

/// Reads fields and collects what is wrong.
class TableReader {
 public:
  explicit TableReader(std::vector<std::string>& problems) : problems_(problems) {}

  void problem(std::string text) {
    if (problems_.size() < kMaxProblems) problems_.push_back(std::move(text));
  }

  std::optional<std::string> optional_text(const json::object& object, std::string_view where, std::string_view key) {
    const json::value* value = object.if_contains(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_string()) {
      problem(fmt::format("{}{}: must be text, found {}", where, key, shown(*value)));
      return std::nullopt;
    }
    return std::string(value->get_string());
  }

  std::string text(const json::object& object, std::string_view where, std::string_view key) {
    if (!object.contains(key)) problem(fmt::format("{}{}: is missing", where, key));
    const auto found = optional_text(object, where, key);
    if (found && found->empty()) problem(fmt::format("{}{}: is empty", where, key));
    return found.value_or("");
  }

  std::vector<RankTableDevice> devices(const json::object& object, std::string_view key) {
    std::vector<RankTableDevice> devices;
    const json::value* value = object.if_contains(key);
    if (value == nullptr || !value->is_array()) {
      problem(value == nullptr ? fmt::format("{}: is missing", key)
                               : fmt::format("{}: must be a list of devices, found {}", key, shown(*value)));
      return devices;
    }
    for (const json::value& row : value->get_array()) {
      const std::string where = fmt::format("{}[{}]", key, devices.size());
      RankTableDevice& device = devices.emplace_back();
      if (row.is_object())
        read_device(row.get_object(), where + ".", device);
      else
        problem(fmt::format("{}: must be an object, found {}", where, shown(row)));
    }
    return devices;
  }

  void read_device(const json::object& row, std::string_view where, RankTableDevice& device) {
    device.server_id = text(row, where, "server_id");
    device.device_id = text(row, where, "device_id");
    device.device_ip = text(row, where, "device_ip");
    device.super_pod_id = optional_text(row, where, "super_pod_id");
    device.super_device_id = optional_text(row, where, "super_device_id");
    device.cluster_id = optional_text(row, where, "cluster_id").value_or("");
  }

 private:
  std::vector<std::string>& problems_;
};

/// The rules over the rows of both lists.
class RowChecker {
 public:
  RowChecker(const RankTable& table, TableReader& out) : table_(table), out_(out) {
    for (std::size_t i = 0; i < table.prefill_device_list.size(); ++i)
      rows_.push_back({fmt::format("prefill_device_list[{}].", i), &table.prefill_device_list[i]});
    for (std::size_t i = 0; i < table.decode_device_list.size(); ++i)
      rows_.push_back({fmt::format("decode_device_list[{}].", i), &table.decode_device_list[i]});
  }

  void run() {
    for (std::size_t i = 0; i < rows_.size(); ++i) check_fields(i);
    check_addresses();
    check_servers();
  }

 private:
  struct Row {
    std::string where;
    const RankTableDevice* device;
  };

  /// A field that is missing or no text was reported when it was read; it is empty now.
  void check_fields(std::size_t index) {
    const auto& [where, device] = rows_[index];
    if (!device->server_id.empty() && !is_ipv4(device->server_id))
      out_.problem(fmt::format("{}server_id: must be the node's IPv4 address, found '{}'", where, device->server_id));
    if (!device->device_id.empty() && !number_of(device->device_id))
      out_.problem(fmt::format("{}device_id: must be a number as text, found '{}'", where, device->device_id));
    if (!device->device_ip.empty() && !is_ipv4(device->device_ip))
      out_.problem(fmt::format("{}device_ip: must be the device's IPv4 address, found '{}'", where, device->device_ip));
    if (device->device_ip == "0.0.0.0")
      out_.problem(fmt::format("{}device_ip: is 0.0.0.0, so the device has no address (hccn_tool -i {} -ip -g)", where,
                               device->device_id));
    if (const std::string expected = std::to_string(index + 1); device->cluster_id != expected)
      out_.problem(fmt::format("{}cluster_id: must be \"{}\" (counted over prefill, then decode devices), found '{}'",
                               where, expected, device->cluster_id));
    check_super_pod(where, *device);
    const auto [known, fresh] =
        devices_.try_emplace(device->server_id + " device " + device->device_id, where.substr(0, where.size() - 1));
    if (!fresh && !device->device_id.empty())
      out_.problem(fmt::format("{}device_id: {} of {} is in {} already", where, device->device_id, device->server_id,
                               known->second));
  }

  void check_super_pod(std::string_view where, const RankTableDevice& device) {
    const bool a3 = rows_[0].device->super_device_id.has_value() || rows_[0].device->super_pod_id.has_value();
    for (const auto& [key, value] :
         {std::pair("super_pod_id", &device.super_pod_id), std::pair("super_device_id", &device.super_device_id)}) {
      if (a3 && !*value)
        out_.problem(fmt::format("{}{}: is missing, but {}has the A3 form", where, key, rows_[0].where));
      else if (!a3 && *value)
        out_.problem(fmt::format("{}{}: only A3 tables have it, but {}has the A2 form", where, key, rows_[0].where));
      else if (*value && !number_of(**value))
        out_.problem(fmt::format("{}{}: must be a number as text, found '{}'", where, key, **value));
    }
    if (!device.super_device_id || !device.super_pod_id) return;
    const auto [known, fresh] = super_devices_.try_emplace(*device.super_pod_id + "/" + *device.super_device_id, where);
    if (!fresh)
      out_.problem(fmt::format("{}super_device_id: {} of super pod {} is in {} already", where, *device.super_device_id,
                               *device.super_pod_id, known->second.substr(0, known->second.size() - 1)));
  }

  /// An address belongs to one device. Only where a host has no device network do all its rows share the host's.
  void check_addresses() {
    std::map<std::string, const Row*> owners;
    std::map<std::string, std::set<std::string>> addresses_of;
    for (const Row& row : rows_) addresses_of[row.device->server_id].insert(row.device->device_ip);
    for (const Row& row : rows_) {
      if (row.device->device_ip.empty()) continue;
      const auto [known, fresh] = owners.try_emplace(row.device->device_ip, &row);
      const bool same_server = known->second->device->server_id == row.device->server_id;
      if (fresh || (same_server && addresses_of[row.device->server_id].size() == 1)) continue;
      const std::string& first = known->second->where;
      out_.problem(fmt::format("{}device_ip: {} is the address of {} already", row.where, row.device->device_ip,
                               first.substr(0, first.size() - 1)));
    }
  }

  /// Nodes whose devices were all dropped are counted too, so there may be more than the rows show.
  void check_servers() {
    std::set<std::string> servers;
    for (const Row& row : rows_) servers.insert(row.device->server_id);
    const auto count = number_of(table_.server_count);
    if (!table_.server_count.empty() && (!count || *count == 0))
      out_.problem(fmt::format("server_count: must be a positive number as text, found '{}'", table_.server_count));
    else if (count && *count < servers.size())
      out_.problem(fmt::format("server_count: is {}, but the lists name {} nodes: {}", *count, servers.size(),
                               fmt::join(servers, ", ")));
  }

  const RankTable& table_;
  TableReader& out_;
  std::vector<Row> rows_;
  std::map<std::string, std::string> devices_;
  std::map<std::string, std::string> super_devices_;
};

void check_table(const RankTable& table, TableReader& out) {
  if (!table.version.empty() && table.version != "1.2")
    out.problem(fmt::format("version: must be \"1.2\", found '{}'", table.version));
  if (!table.status.empty() && table.status != "completed")
    out.problem(fmt::format("status: must be \"completed\", found '{}'{}", table.status,
                            table.status == "partial" ? " (a node's share; put them together with --merge)" : ""));
  if (table.prefill_device_list.empty()) out.problem("prefill_device_list: has no device");
  if (table.decode_device_list.empty()) out.problem("decode_device_list: has no device");
  if (table.prefill_device_list.empty() && table.decode_device_list.empty()) return;
  RowChecker(table, out).run();
}

std::string quoted(std::string_view text) { return std::string(json::serialize(json::value(json::string(text)))); }

void append_field(std::string& out, std::string_view key, std::string_view value, bool last = false) {
  out += fmt::format("            \"{}\": {}{}\n", key, quoted(value), last ? "" : ",");
}

void append_devices(std::string& out, std::string_view key, const std::vector<RankTableDevice>& devices,
                    bool with_cluster_id) {
  if (devices.empty()) {
    out += fmt::format("    \"{}\": [],\n", key);
    return;
  }
  out += fmt::format("    \"{}\": [\n", key);
  for (const RankTableDevice& device : devices) {
    out += "        {\n";
    append_field(out, "server_id", device.server_id);
    append_field(out, "device_id", device.device_id);
    const bool a3 = device.super_device_id.has_value();
    append_field(out, "device_ip", device.device_ip, !with_cluster_id && !a3);
    if (a3) {
      append_field(out, "super_pod_id", device.super_pod_id.value_or(""));
      append_field(out, "super_device_id", *device.super_device_id, !with_cluster_id);
    }
    if (with_cluster_id) append_field(out, "cluster_id", device.cluster_id, true);
    out += &device == &devices.back() ? "        }\n" : "        },\n";
  }
  out += "    ],\n";
}

Status first_problem(const std::vector<std::string>& problems) {
  const std::string more = problems.size() > 1 ? fmt::format(" (and {} more)", problems.size() - 1) : "";
  return Status(Code::kInvalidArgument, problems[0] + more);
}

}  // namespace

Result<RankTableReading> read_rank_table(std::string_view text) {
  TANDEM_ASSIGN(const json::value root, parse_json(text, kLimits));
  if (!root.is_object())
    return Status(Code::kInvalidArgument, fmt::format("a rank table is a JSON object, found {}", shown(root)));
  const json::object& object = root.get_object();
  RankTableReading reading;
  TableReader reader(reading.problems);
  reading.table.version = reader.text(object, "", "version");
  reading.table.server_count = reader.text(object, "", "server_count");
  reading.table.prefill_device_list = reader.devices(object, "prefill_device_list");
  reading.table.decode_device_list = reader.devices(object, "decode_device_list");
  reading.table.status = reader.text(object, "", "status");
  check_table(reading.table, reader);
  return reading;
}

Result<RankTable> parse_rank_table(std::string_view text) {
  TANDEM_ASSIGN(RankTableReading reading, read_rank_table(text));
  if (!reading.problems.empty()) return first_problem(reading.problems);
  return std::move(reading.table);
}

Result<RankTable> load_rank_table(const std::string& path) {
  TANDEM_ASSIGN(const std::string text, read_text_file(path, kLimits.max_bytes));
  auto table = parse_rank_table(text);
  if (!table) return table.error().context(path);
  return table;
}

Result<std::string> read_text_file(const std::string& path, std::size_t max_bytes) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return Status(Code::kNotFound, fmt::format("{}: cannot be opened for reading", path));
  std::string text;
  std::string piece(1U << 16, '\0');
  while (file.read(piece.data(), static_cast<std::streamsize>(piece.size())) || file.gcount() > 0) {
    text.append(piece, 0, static_cast<std::size_t>(file.gcount()));
    if (text.size() > max_bytes)
      return Status(Code::kInvalidArgument, fmt::format("{}: longer than {} bytes", path, max_bytes));
  }
  return text;
}

std::string rank_table_json(const RankTable& table) {
  std::string out = "{\n";
  out += fmt::format("    \"version\": {},\n", quoted(table.version));
  out += fmt::format("    \"server_count\": {},\n", quoted(table.server_count));
  append_devices(out, "prefill_device_list", table.prefill_device_list, true);
  append_devices(out, "decode_device_list", table.decode_device_list, true);
  out += fmt::format("    \"status\": {}\n}}", quoted(table.status));
  return out;
}

Result<void> write_text_file(const std::string& path, std::string_view text) {
  const std::string part = path + ".part";
  std::ofstream file(part, std::ios::binary | std::ios::trunc);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  file.close();
  if (!file) {
    std::remove(part.c_str());
    return Status(Code::kUnavailable, fmt::format("{}: cannot be written; does its folder exist, is it writable, is "
                                                  "there room?",
                                                  path));
  }
  if (std::rename(part.c_str(), path.c_str()) != 0) {
    const std::string reason = std::generic_category().message(errno);
    std::remove(part.c_str());
    return Status(Code::kUnavailable, fmt::format("{}: cannot be replaced: {}", path, reason));
  }
  return {};
}

Result<RankTable> make_rank_table(std::span<const NodeDevices> nodes, int prefill_count, int decode_count) {
  std::vector<RankTableDevice> all;
  for (const NodeDevices& node : nodes) all.insert(all.end(), node.devices.begin(), node.devices.end());
  const auto wanted = static_cast<std::size_t>(prefill_count) + static_cast<std::size_t>(decode_count);
  if (wanted > all.size()) {
    std::vector<std::string> counts;
    for (const NodeDevices& node : nodes)
      counts.push_back(fmt::format("{} has {}", node.server_id, node.devices.size()));
    return Status(
        Code::kInvalidArgument,
        fmt::format("--prefill-device-cnt {} + --decode-device-cnt {} = {} devices, but the nodes have {} ({})",
                    prefill_count, decode_count, wanted, all.size(), fmt::join(counts, ", ")));
  }
  for (std::size_t i = 0; i < all.size(); ++i) all[i].cluster_id = std::to_string(i + 1);
  RankTable table;
  table.server_count = std::to_string(nodes.size());
  const auto middle = all.begin() + prefill_count;
  table.prefill_device_list.assign(all.begin(), middle);
  table.decode_device_list.assign(middle, middle + decode_count);
  std::vector<std::string> problems;
  TableReader reader(problems);
  check_table(table, reader);
  if (!problems.empty()) return first_problem(problems);
  return table;
}

std::string partial_table_json(const NodeDevices& node) {
  std::string out = "{\n    \"version\": \"1.2\",\n";
  out += fmt::format("    \"server_id\": {},\n", quoted(node.server_id));
  append_devices(out, "device_list", node.devices, false);
  out += "    \"status\": \"partial\"\n}";
  return out;
}

Result<NodeDevices> parse_partial_table(std::string_view text) {
  TANDEM_ASSIGN(const json::value root, parse_json(text, kLimits));
  if (!root.is_object()) return Status(Code::kInvalidArgument, "a node's share is a JSON object");
  const json::object& object = root.get_object();
  std::vector<std::string> problems;
  TableReader reader(problems);
  NodeDevices node;
  const std::string status = reader.text(object, "", "status");
  if (status != "partial")
    return Status(Code::kInvalidArgument,
                  fmt::format("status: a node's share has \"partial\", found '{}'{}", status,
                              status == "completed" ? "; this is a whole table and needs no merging" : ""));
  node.server_id = reader.text(object, "", "server_id");
  if (!is_ipv4(node.server_id))
    reader.problem(fmt::format("server_id: must be an IPv4 address, found '{}'", node.server_id));
  node.devices = reader.devices(object, "device_list");
  if (node.devices.empty()) reader.problem("device_list: has no device");
  for (std::size_t i = 0; i < node.devices.size(); ++i)
    if (node.devices[i].server_id != node.server_id)
      reader.problem(fmt::format("device_list[{}].server_id: must be {}, found '{}'", i, node.server_id,
                                 node.devices[i].server_id));
  if (!problems.empty()) return first_problem(problems);
  return node;
}

Result<RankTableDevice> device_of_rank(const RankTable& table, TableRole role, std::string_view server_id,
                                       std::span<const std::string> visible_devices, int tp_rank) {
  const bool prefill = role == TableRole::kPrefill;
  const std::string_view list = prefill ? "prefill_device_list" : "decode_device_list";
  std::vector<const RankTableDevice*> rows;
  std::set<std::string> servers;
  bool on_server = false;
  for (const RankTableDevice& device : prefill ? table.prefill_device_list : table.decode_device_list) {
    servers.insert(device.server_id);
    if (device.server_id != server_id) continue;
    on_server = true;
    if (visible_devices.empty() ||
        std::find(visible_devices.begin(), visible_devices.end(), device.device_id) != visible_devices.end())
      rows.push_back(&device);
  }
  if (!on_server)
    return Status(Code::kFailedPrecondition,
                  fmt::format("{}: server_id {} is not in it; it has {}", list, server_id, fmt::join(servers, ", ")));
  if (tp_rank < 0 || static_cast<std::size_t>(tp_rank) >= rows.size())
    return Status(
        Code::kFailedPrecondition,
        fmt::format("{}: tensor-parallel rank {} needs {} rows with server_id {} and a device_id among [{}], "
                    "found {}",
                    list, tp_rank, tp_rank + 1, server_id,
                    visible_devices.empty() ? "all" : fmt::format("{}", fmt::join(visible_devices, ",")), rows.size()));
  return *rows[static_cast<std::size_t>(tp_rank)];
}

}  // namespace tandem::cluster
