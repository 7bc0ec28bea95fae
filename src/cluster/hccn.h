// SPDX-License-Identifier: Apache-2.0
// What hccn_tool, npu-smi and /etc/hccn.conf say about the network of the NPUs of this host. The parsers take whatever
// the driver's version prints: by key, split at the first colon, trimmed; an error quotes what was found.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cluster/command_runner.h"

namespace tandem::cluster {

inline constexpr int kMaxDevices = 1024;  ///< of one host, so that a hostile count stays harmless

/// Whether `text` is a dotted IPv4 address.
bool is_ipv4(std::string_view text);

struct Gateway {
  std::string address;
  std::string interface_name;  ///< "" if the tool does not say
};
struct Vnic {
  std::string status;  ///< "UP"
  std::string address;
};
struct PingCount {
  int sent = 0;
  int received = 0;
  double loss_percent = 100;
};
/// An A3 chip's place in its super pod.
struct SuperPod {
  std::string super_device_id;  ///< SDID
  std::string super_pod_id;
};

// One parser for each output of pd_protocol.md 10.4.
Result<std::string> parse_device_ip(std::string_view text);   ///< -ip -g
Result<Vnic> parse_vnic(std::string_view text);               ///< -vnic -g
Result<std::string> parse_link(std::string_view text);        ///< -link -g: "UP", "DOWN"
Result<std::string> parse_net_health(std::string_view text);  ///< -net_health -g: "Success" or another state
Result<std::string> parse_netdetect(std::string_view text);   ///< -netdetect -g; 0.0.0.0: not set
Result<Gateway> parse_gateway(std::string_view text);         ///< -gateway -g
Result<std::string> parse_lldp(std::string_view text);        ///< -lldp -g: the switch port, "400GE1/1/5:1"
Result<int> parse_tls_switch(std::string_view text);          ///< -tls -g: 0 or 1
Result<PingCount> parse_ping(std::string_view text);          ///< -ping and -hccs_ping
Result<SuperPod> parse_super_pod(std::string_view text);      ///< npu-smi info -t spod-info
/// npu-smi info -l: the device ids, card * chips + chip.
Result<std::vector<int>> parse_device_ids(std::string_view text);

/// hccn.conf: the keys of each device without their _<n>: {0: {"address": "10.20.0.1", "gateway": ...}}.
using HccnConf = std::map<int, std::map<std::string, std::string>>;
/// Comments and blank lines are allowed; any other line without `key_<n>=` is an error that names it.
Result<HccnConf> parse_hccn_conf(std::string_view text);
/// kNotFound if there is no such file.
Result<HccnConf> read_hccn_conf(const std::string& path);

/// Asks the tools of this host. Thread-safe if the runner is.
class Hccn {
 public:
  Hccn(CommandRunner& runner, std::string tool, std::chrono::milliseconds timeout)
      : runner_(runner), tool_(std::move(tool)), timeout_(timeout) {}

  const std::string& tool() const { return tool_; }
  /// What `hccn_tool -i <device> <arguments>` prints. An exit code other than 0 is an error with the output.
  Result<std::string> ask(int device, const std::vector<std::string>& arguments) const;
  /// `npu-smi info <arguments>`.
  Result<std::string> ask_npu_smi(std::vector<std::string> arguments) const;

  Result<std::vector<int>> device_ids() const;
  Result<SuperPod> super_pod(int device) const;  ///< two chips a card, as on A3

 private:
  Result<std::string> output_of(const std::vector<std::string>& argv) const;

  CommandRunner& runner_;
  std::string tool_;
  std::chrono::milliseconds timeout_;
};

}  // namespace tandem::cluster
