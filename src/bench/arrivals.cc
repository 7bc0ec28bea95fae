// SPDX-License-Identifier: Apache-2.0
#include "bench/arrivals.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace tandem::bench {

double rate_at(const config::BenchConfig& config, std::size_t index, std::size_t num_requests) {
  const double start = config.ramp_up_start_rps;
  const double end = config.ramp_up_end_rps;
  const double progress = static_cast<double>(index) / static_cast<double>(std::max<std::size_t>(num_requests, 2) - 1);
  switch (config.ramp_up) {
    case config::RampUp::kLinear:
      return start + (end - start) * progress;
    case config::RampUp::kExponential:
      return start * std::pow(end / start, progress);
    case config::RampUp::kNone:
      break;
  }
  return config.request_rate.value_or(0.0);
}

std::vector<double> arrival_times(const config::BenchConfig& config, std::size_t num_requests) {
  std::vector<double> times(num_requests, 0.0);
  std::mt19937_64 random(config.seed);
  double now = 0.0;
  for (std::size_t i = 0; i < num_requests; ++i) {
    const double rate = rate_at(config, i, num_requests);
    if (rate > 0.0) {
      std::gamma_distribution<double> gap(config.burstiness, 1.0 / (rate * config.burstiness));
      now += gap(random);
    }
    times[i] = now;
  }
  // Otherwise the luck of the draw would change the mean rate, and so every figure of a short run.
  if (config.ramp_up == config::RampUp::kNone && now > 0.0) {
    const double factor = static_cast<double>(num_requests) / (*config.request_rate * now);
    for (double& time : times) time *= factor;
  }
  return times;
}

}  // namespace tandem::bench
