// SPDX-License-Identifier: Apache-2.0
#include "cluster/hccn.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <functional>
#include <optional>
#include <system_error>

namespace tandem::cluster {
namespace {

std::string_view trim(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n\v\f";
  const std::size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

/// Calls `line` for each line until it returns false.
void each_line(std::string_view text, const std::function<bool(std::string_view)>& line) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    if (!line(text.substr(0, end))) return;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](char x, char y) { return lower(x) == lower(y); });
}

/// What stands behind the first colon of the first line whose key is `key`.
std::optional<std::string> value_of(std::string_view text, std::string_view key) {
  std::optional<std::string> found;
  each_line(text, [&](std::string_view line) {
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos) return true;
    const std::string_view name = trim(line.substr(0, colon));
    if (!equal_ignoring_case(name, key)) return true;
    found = std::string(trim(line.substr(colon + 1)));
    return false;
  });
  return found;
}

/// The beginning of an output, printable, for a message.
std::string quoted(std::string_view text) {
  constexpr std::size_t kLongest = 160;
  const std::string_view all = trim(text);
  if (all.empty()) return "an empty output";
  std::string shown;
  for (const char c : all.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n')
      shown += " | ";
    else if (byte >= 32 && byte != 127)
      shown += c;
    else
      shown += '.';
  }
  return fmt::format("'{}{}'", shown, all.size() > kLongest ? "..." : "");
}

Status unexpected(std::string_view wanted, std::string_view text) {
  return Status(Code::kFailedPrecondition, fmt::format("expected {}, found {}", wanted, quoted(text)));
}

template <class Number>
std::optional<Number> number_of(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

Result<std::string> address_of(std::string_view text, std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys)
    if (auto value = value_of(text, key)) {
      if (is_ipv4(*value)) return std::move(*value);
      return unexpected(fmt::format("an IPv4 address behind '{}:'", key), *value);
    }
  return unexpected(fmt::format("a line '{}:ADDRESS'", *keys.begin()), text);
}

/// The number before `unit` ("3 packets transmitted").
std::optional<int> count_before(std::string_view text, std::string_view unit) {
  const std::size_t at = text.find(unit);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view before = trim(text.substr(0, at));
  const std::size_t start = before.find_last_not_of("0123456789");
  return number_of<int>(start == std::string_view::npos ? before : before.substr(start + 1));
}

}  // namespace

bool is_ipv4(std::string_view text) {
  int labels = 0;
  for (std::size_t start = 0; start <= text.size();) {
    const std::size_t dot = std::min(text.find('.', start), text.size());
    const std::string_view label = text.substr(start, dot - start);
    const auto number = number_of<unsigned>(label);
    if (!number || *number > 255 || label.size() > 3 || (label.size() > 1 && label[0] == '0')) return false;
    ++labels;
    start = dot + 1;
  }
  return labels == 4;
}

Result<std::string> parse_device_ip(std::string_view text) { return address_of(text, {"ipaddr"}); }

Result<Vnic> parse_vnic(std::string_view text) {
  Vnic vnic;
  TANDEM_ASSIGN(vnic.address, address_of(text, {"vnic ipaddr", "ipaddr"}));
  vnic.status = value_of(text, "vnic link status").value_or("");
  if (vnic.status.empty()) return unexpected("a line 'vnic link status: UP'", text);
  return vnic;
}

Result<std::string> parse_link(std::string_view text) {
  auto status = value_of(text, "link status");
  if (!status || status->empty()) return unexpected("a line 'link status: UP'", text);
  return std::move(*status);
}

Result<std::string> parse_net_health(std::string_view text) {
  auto status = value_of(text, "net health status");
  if (!status || status->empty()) return unexpected("a line 'net health status: Success'", text);
  return std::move(*status);
}

Result<std::string> parse_netdetect(std::string_view text) { return address_of(text, {"netdetect address"}); }

Result<Gateway> parse_gateway(std::string_view text) {
  const auto value = value_of(text, "default gateway");
  if (!value) return unexpected("a line 'default gateway:ADDRESS, Iface:NAME'", text);
  Gateway gateway;
  const std::size_t comma = std::min(value->find(','), value->size());
  gateway.address = std::string(trim(std::string_view(*value).substr(0, comma)));
  if (comma < value->size())
    gateway.interface_name = value_of(std::string_view(*value).substr(comma + 1), "Iface").value_or("");
  if (!is_ipv4(gateway.address)) return unexpected("an IPv4 address behind 'default gateway:'", *value);
  return gateway;
}

Result<std::string> parse_lldp(std::string_view text) {
  auto port = value_of(text, "Ifname");
  if (!port || port->empty()) return unexpected("a line 'Ifname: PORT' (the switch's port)", text);
  return std::move(*port);
}

Result<int> parse_tls_switch(std::string_view text) {
  constexpr std::string_view kKey = "tls switch[";
  const std::size_t at = text.find(kKey);
  if (at == std::string_view::npos) return unexpected("'tls switch[0]' or 'tls switch[1]'", text);
  const std::string_view rest = text.substr(at + kKey.size());
  if (rest.starts_with("0]")) return 0;
  if (rest.starts_with("1]")) return 1;
  return unexpected("'tls switch[0]' or 'tls switch[1]'", text.substr(at));
}

Result<PingCount> parse_ping(std::string_view text) {
  // "3 packets transmitted, 3 received, 0.00% packet loss"; hccs_ping ends in "% packets loss".
  std::size_t at = text.find("% packet loss");
  if (at == std::string_view::npos) at = text.find("% packets loss");
  if (at == std::string_view::npos) return unexpected("'...% packet loss'", text);
  const std::string_view before = text.substr(0, at);
  const std::size_t start = before.find_last_not_of("0123456789.");
  const auto loss = number_of<double>(start == std::string_view::npos ? before : before.substr(start + 1));
  if (!loss || !(*loss >= 0) || *loss > 100) return unexpected("a loss of 0 to 100 %", text.substr(start + 1));
  PingCount count;
  count.loss_percent = *loss;
  count.sent = count_before(text, " packets transmitted").value_or(0);
  count.received = count_before(text, " received").value_or(0);
  return count;
}

Result<SuperPod> parse_super_pod(std::string_view text) {
  SuperPod pod;
  pod.super_device_id = value_of(text, "SDID").value_or("");
  pod.super_pod_id = value_of(text, "Super Pod ID").value_or("");
  if (!number_of<std::uint64_t>(pod.super_device_id)) return unexpected("a line 'SDID : NUMBER'", text);
  if (!number_of<std::uint64_t>(pod.super_pod_id)) return unexpected("a line 'Super Pod ID : NUMBER'", text);
  return pod;
}

Result<std::vector<int>> parse_device_ids(std::string_view text) {
  const auto cards = number_of<int>(value_of(text, "Total Count").value_or(""));
  if (!cards || *cards < 1 || *cards > kMaxDevices)
    return unexpected(fmt::format("a line 'Total Count : 1..{}'", kMaxDevices), text);
  const auto chips = number_of<int>(value_of(text, "Chip Count").value_or(""));
  if (!chips || *chips < 1 || *chips > kMaxDevices / *cards)
    return unexpected(fmt::format("a line 'Chip Count : 1..{}'", kMaxDevices / *cards), text);
  std::vector<int> ids;
  for (int id = 0; id < *cards * *chips; ++id) ids.push_back(id);
  return ids;
}

Result<HccnConf> parse_hccn_conf(std::string_view text) {
  HccnConf conf;
  int number = 0;
  std::optional<Status> problem;
  each_line(text, [&](std::string_view raw) {
    ++number;
    const std::string_view line = trim(raw);
    if (line.empty() || line[0] == '#') return true;
    const std::size_t equals = line.find('=');
    const std::string_view name = trim(line.substr(0, equals));
    const std::size_t bar = name.rfind('_');
    const auto device = bar == std::string_view::npos ? std::nullopt : number_of<int>(name.substr(bar + 1));
    if (equals == std::string_view::npos || !device || *device < 0 || *device >= kMaxDevices || bar == 0) {
      problem = unexpected(fmt::format("'key_<device>=value' on line {}", number), line);
      return false;
    }
    const std::string value(trim(line.substr(equals + 1)));
    const std::string key(name.substr(0, bar));
    if (key == "address" && !is_ipv4(value)) {
      problem = unexpected(fmt::format("an IPv4 address for {} on line {}", name, number), value);
      return false;
    }
    conf[*device][key] = value;
    return true;
  });
  if (problem) return *problem;
  return conf;
}

Result<HccnConf> read_hccn_conf(const std::string& path) {
  constexpr std::size_t kMaxBytes = 1U << 20;
  std::ifstream file(path, std::ios::binary);
  if (!file) return Status(Code::kNotFound, fmt::format("{}: there is no such file, or it cannot be read", path));
  std::string text(kMaxBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > kMaxBytes) return Status(Code::kInvalidArgument, fmt::format("{}: longer than 1 MiB", path));
  auto conf = parse_hccn_conf(text);
  if (!conf) return conf.error().context(path);
  return conf;
}

Result<std::string> Hccn::output_of(const std::vector<std::string>& argv) const {
  TANDEM_ASSIGN(CommandOutput output, runner_.run(argv, timeout_));
  if (output.exit_code != 0)
    return Status(Code::kUnavailable, fmt::format("'{}' ended with exit code {} and printed {}", command_text(argv),
                                                  output.exit_code, quoted(output.text)));
  return std::move(output.text);
}

Result<std::string> Hccn::ask(int device, const std::vector<std::string>& arguments) const {
  std::vector<std::string> argv{tool_, "-i", std::to_string(device)};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return output_of(argv);
}

Result<std::string> Hccn::ask_npu_smi(std::vector<std::string> arguments) const {
  arguments.insert(arguments.begin(), {"npu-smi", "info"});
  return output_of(arguments);
}

Result<std::vector<int>> Hccn::device_ids() const {
  TANDEM_ASSIGN(const std::string text, ask_npu_smi({"-l"}));
  auto ids = parse_device_ids(text);
  if (!ids) return ids.error().context("npu-smi info -l");
  return ids;
}

Result<SuperPod> Hccn::super_pod(int device) const {
  constexpr int kChipsPerCard = 2;
  const std::string card = std::to_string(device / kChipsPerCard), chip = std::to_string(device % kChipsPerCard);
  TANDEM_ASSIGN(const std::string text, ask_npu_smi({"-t", "spod-info", "-i", card, "-c", chip}));
  auto pod = parse_super_pod(text);
  if (!pod) return pod.error().context(fmt::format("npu-smi info -t spod-info -i {} -c {}", card, chip));
  return pod;
}

}  // namespace tandem::cluster
