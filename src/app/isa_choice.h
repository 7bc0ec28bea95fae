// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/status.h"
#include "config/serve_config.h"
#include "kernels/kernels.h"

namespace tandem::app {

/// What --isa asks for, or the best that this CPU has; an error if the CPU cannot run it.
Result<kernels::Isa> choose_isa(config::Isa asked);

}  // namespace tandem::app
