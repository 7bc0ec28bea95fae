// SPDX-License-Identifier: Apache-2.0
// Flags of `tandem ranktable`: gen_ranktable.sh's and gen_ranktable.py's (pd_protocol.md 10.1, 10.2), and our own.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "config/command_options.h"

namespace tandem::config {
namespace {

Status invalid(std::string message) { return Status(Code::kInvalidArgument, std::move(message)); }

constexpr int kMaxDevices = 1024;  // of one node
constexpr int kMaxDeviceCount = 1 << 20;

Result<std::string> checked_address(const std::string& text) {
  int labels = 0;
  bool good = !text.empty();
  for (std::size_t start = 0; start <= text.size();) {
    const std::size_t dot = std::min(text.find('.', start), text.size());
    good = good && static_cast<bool>(parse_integer(text.substr(start, dot - start), 0, 255));
    ++labels;
    start = dot + 1;
  }
  if (good && labels == 4) return text;
  return invalid(fmt::format("'{}' is not an IPv4 address", text));
}

std::function<Result<void>(const std::vector<std::string>&)> ips_into(std::vector<std::string>& target) {
  return [&target](const std::vector<std::string>& values) -> Result<void> {
    target.clear();
    for (const std::string& value : values) {
      TANDEM_ASSIGN(std::string address, checked_address(value));
      if (std::find(target.begin(), target.end(), address) != target.end())
        return invalid(fmt::format("{} is given twice", address));
      target.push_back(std::move(address));
    }
    return {};
  };
}

std::function<Result<void>(const std::vector<std::string>&)> texts_into(std::vector<std::string>& target) {
  return [&target](const std::vector<std::string>& values) -> Result<void> {
    target = values;
    return {};
  };
}

/// "0,1,2"; also with blanks between.
Result<void> read_device_ids(const std::vector<std::string>& values, std::vector<int>& ids) {
  ids.clear();
  std::set<std::int64_t> seen;
  for (const std::string& value : values)
    for (std::size_t start = 0; start <= value.size();) {
      const std::size_t comma = std::min(value.find(',', start), value.size());
      TANDEM_ASSIGN(const std::int64_t id, parse_integer(value.substr(start, comma - start), 0, kMaxDevices - 1));
      if (!seen.insert(id).second) return invalid(fmt::format("device {} is given twice", id));
      ids.push_back(static_cast<int>(id));
      start = comma + 1;
    }
  return {};
}

Setter address_into(std::string& target) {
  return [&target](const std::string& value) -> Result<void> {
    TANDEM_ASSIGN(target, checked_address(value));
    return {};
  };
}

}  // namespace

RanktableOptions::RanktableOptions(FlagList& flags, const Environment& environment) {
  config_.hccn_tool = environment("HCCN_TOOL_PATH").value_or(config_.hccn_tool);
  flags.group("Deployment");
  flags.many("--ips", "IP", "addresses of all nodes, prefill nodes first; the same on every node", "",
             ips_into(config_.ips));
  flags.one("--npus-per-node", "N", "devices of a node, where npu-smi does not tell", "8",
            integer_into(config_.npus_per_node, 1, kMaxDevices));
  flags.one("--network-card-name", "IF", "interface whose address devices have on a host without hccn_tool", "",
            text_into(config_.network_card_name));
  flags.one("--prefill-device-cnt", "N", "prefill devices over all nodes", "",
            integer_into(config_.prefill_device_cnt, 1, kMaxDeviceCount));
  flags.one("--decode-device-cnt", "N", "decode devices over all nodes", "",
            integer_into(config_.decode_device_cnt, 1, kMaxDeviceCount));
  flags.many("--local-device-ids", "ID,ID", "devices to use on this node", "all",
             [this](const auto& values) { return read_device_ids(values, config_.local_device_ids); });
  flags.one("--local-host", "IP", "which of --ips this node is", "the one that an interface has",
            address_into(config_.local_host));
  flags.group("Device addresses, instead of hccn_tool");
  flags.many("--device-ips", "IP",
             "of the devices of all nodes in order, or NODE=IP,IP,... for each node, or of this node", "",
             texts_into(config_.device_ips));
  flags.one("--addresses", "FILE", "lines: NODE_IP DEVICE_ID DEVICE_IP [SUPER_POD_ID SUPER_DEVICE_ID]", "",
            text_into(config_.addresses_file));
  flags.toggle("--plain-hosts", "nodes without NPUs: every device has its node's address", config_.plain_hosts, false);
  flags.many("--merge", "FILE", "shares that this command wrote on each node", "", texts_into(config_.merge_files));
  flags.group("Tool and files");
  flags.one("--soc", "KIND", "auto, a2, a3: the form of the table", "auto",
            choice_into<AscendSoc>(config_.soc,
                                   {{"auto", AscendSoc::kAuto}, {"a2", AscendSoc::kA2}, {"a3", AscendSoc::kA3}}));
  flags.one("--hccn-tool", "PATH", "hccn_tool; also HCCN_TOOL_PATH", config_.hccn_tool, text_into(config_.hccn_tool));
  flags.one("--tool-timeout", "TIME", "of one call of a tool", "10s", milliseconds_into(config_.tool_timeout));
  flags.one("--output", "FILE", "file to write", "ranktable.json; a node's share: ranktable.IP.json",
            text_into(config_.output));
  flags.one("--ranktable-path", "FILE", "the same as --output", "", text_into(config_.output));
  flags.one("--check", "FILE", "only check this table: one line for each problem", "", text_into(config_.check_file));
}

Result<RanktableConfig> RanktableOptions::finish(const std::vector<std::string>& positional) {
  if (!positional.empty()) return invalid(fmt::format("unrecognized arguments: {}", positional[0]));
  if (!config_.check_file.empty()) return config_;
  if (config_.ips.empty() && config_.merge_files.empty())
    return invalid("argument --ips is missing: the addresses of all nodes, prefill nodes first");
  if (config_.prefill_device_cnt == 0) return invalid("argument --prefill-device-cnt is missing");
  if (config_.decode_device_cnt == 0) return invalid("argument --decode-device-cnt is missing");
  const int sources = static_cast<int>(!config_.device_ips.empty()) +
                      static_cast<int>(!config_.addresses_file.empty()) + static_cast<int>(config_.plain_hosts) +
                      static_cast<int>(!config_.merge_files.empty());
  if (sources > 1) return invalid("only one of --device-ips, --addresses, --plain-hosts and --merge can be given");
  return config_;
}

}  // namespace tandem::config
