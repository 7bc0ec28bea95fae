// SPDX-License-Identifier: Apache-2.0
#include "config/version.h"

namespace tandem::config {

std::string_view version() { return TANDEM_VERSION; }

}  // namespace tandem::config
