// SPDX-License-Identifier: Apache-2.0
// A CommandRunner that answers as hccn_tool and npu-smi of one node; single answers can be replaced.
#pragma once

#include <fmt/format.h>

#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include "cluster/command_runner.h"

namespace tandem::cluster {

/// A recorded output of tests/support/hccn.
inline std::string recorded(const std::string& name) {
  std::ifstream file("tests/support/hccn/" + name);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

class HccnStandIn final : public CommandRunner {
 public:
  explicit HccnStandIn(int node = 0) : node_(node) {}

  /// The answer to what ends in `question` ("-i 3 -link -g"), from now on.
  void replace(const std::string& question, std::string text, int exit_code = 0) {
    replaced_[question] = CommandOutput{exit_code, std::move(text)};
  }
  void forget() { replaced_.clear(); }
  std::vector<std::string> asked() const {
    const std::lock_guard lock(mutex_);
    return asked_;
  }

  Result<CommandOutput> run(const std::vector<std::string>& argv, std::chrono::milliseconds) override {
    const std::string all = command_text(argv);
    {
      const std::lock_guard lock(mutex_);
      asked_.push_back(all);
    }
    for (const auto& [question, output] : replaced_)
      if (all.ends_with(question)) return output;
    if (argv[0] == "npu-smi") return Status(Code::kNotFound, "cannot run npu-smi: No such file or directory");
    return CommandOutput{0, answer(std::stoi(argv.at(2)), argv.at(3))};
  }

 private:
  std::string answer(int device, const std::string& option) const {
    if (option == "-ip") return fmt::format("ipaddr:10.20.{}.{}\nnetmask:255.255.255.0\n", node_, device + 1);
    if (option == "-vnic")
      return fmt::format("vnic link status: UP\nvnic ipaddr: 192.168.{}.{}\nvnic netmask: 255.255.0.0\n", node_,
                         device + 1);
    if (option == "-netdetect") return fmt::format("netdetect address: 10.20.{}.254\n", node_);
    if (option == "-gateway") return fmt::format("default gateway:10.20.{}.254, Iface:eth{}\n", node_, device);
    return recorded(option.substr(1) + ".txt");
  }

  int node_;
  std::map<std::string, CommandOutput> replaced_;
  mutable std::mutex mutex_;
  std::vector<std::string> asked_;
};

}  // namespace tandem::cluster
