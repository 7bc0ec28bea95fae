// SPDX-License-Identifier: Apache-2.0
// Where the tools of an Ascend host lie, and the port at which nodes ask each other about their networks.
#pragma once

#include <cstdint>
#include <string_view>

namespace tandem::config {

inline constexpr std::string_view kDefaultHccnTool = "/usr/local/Ascend/driver/tools/hccn_tool";
inline constexpr std::string_view kDefaultHccnConf = "/etc/hccn.conf";
inline constexpr std::uint16_t kDefaultAgentPort = 18650;

}  // namespace tandem::config
