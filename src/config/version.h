// SPDX-License-Identifier: Apache-2.0
// The version of this build, from CMake's project().
#pragma once

#include <string_view>

namespace tandem::config {

std::string_view version();  ///< "0.1.0"

}  // namespace tandem::config
