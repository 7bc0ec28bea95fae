// SPDX-License-Identifier: Apache-2.0
// The command line of the `tandem` binary: arguments in, one checked config out. Spellings as vLLM's
// (argument_forms.h).
#pragma once

#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/status.h"
#include "config/command_options.h"

namespace tandem::config {

/// --help or --version: print it and leave with exit code 0.
struct Text {
  std::string text;
};

struct CommandLine {
  std::variant<Text, ServeConfig, ProxyConfig, UpConfig, QuantizeConfig, RanktableConfig, CheckNetworkConfig,
               CheckAgentConfig, BenchConfig>
      command;
  std::vector<std::string> notes;  ///< one line each, to be logged: flags that were accepted but do nothing
};

/// `arguments` without the program's name. Every error is a usage error: one line that names the flag, what was found
/// and what is allowed.
Result<CommandLine> parse_command_line(std::span<const std::string> arguments, const Environment& environment);

}  // namespace tandem::config
