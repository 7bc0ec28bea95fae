// SPDX-License-Identifier: Apache-2.0
// Environment variables of people's scripts that do nothing here.
#pragma once

#include <span>
#include <string>

#include "config/serve_config.h"

namespace tandem::config {

/// One line for the log that lists those of `names` (the variables that are set) which vLLM, its Ascend plugin or their
/// libraries would read and which mean nothing to an instance with this config; "" if there are none.
std::string idle_variables_note(std::span<const std::string> names, const ServeConfig& config);

}  // namespace tandem::config
