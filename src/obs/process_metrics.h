// SPDX-License-Identifier: Apache-2.0
// The process_* series that client libraries of Prometheus give every process.
#pragma once

#include "obs/metrics.h"

namespace tandem::obs {

/// Adds them, without common labels, read anew for each exposition. Takes the registry's before_expose().
void add_process_metrics(Registry& registry);

}  // namespace tandem::obs
