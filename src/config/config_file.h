// SPDX-License-Identifier: Apache-2.0
// --config FILE: flags in a YAML file, as in `vllm serve` (vllm_api.md 14.1).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace tandem::config {

struct ExpandedArguments {
  /// The arguments with the file's flags in place of --config, before all others, so that those win.
  std::vector<std::string> arguments;
  std::optional<std::string> model;  ///< the file's, which replaces the one on the command line, as in vLLM
};

/// A file is one mapping of flag names without dashes: true is the flag alone, false and null are nothing, a list is
/// several values, a mapping is JSON.
Result<ExpandedArguments> expand_config_file(std::span<const std::string> arguments);

}  // namespace tandem::config
