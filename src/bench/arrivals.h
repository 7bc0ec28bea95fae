// SPDX-License-Identifier: Apache-2.0
// When requests are due. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "config/bench_config.h"

namespace tandem::bench {

/// Seconds from the start of the run, ascending, one for each request; all 0 without a rate. Gaps are drawn from a
/// gamma distribution with shape `burstiness` and mean 1/rate. At a constant rate r the times are rescaled so that the
/// last of n requests is due at exactly n/r; on a ramp each gap has the rate that is due then.
std::vector<double> arrival_times(const config::BenchConfig& config, std::size_t num_requests);

/// Requests a second at which request `index` of `num_requests` is due; 0: at once.
double rate_at(const config::BenchConfig& config, std::size_t index, std::size_t num_requests);

}  // namespace tandem::bench
