// SPDX-License-Identifier: Apache-2.0
// The figures of a run from its records. Pure; definitions: stream_record.h and vllm_api.md 17.2.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bench/stream_record.h"
#include "config/bench_config.h"

namespace tandem::bench {

/// Milliseconds.
struct Distribution {
  double mean = 0.0, median = 0.0;
  double std = 0.0;                                    ///< of the population
  std::vector<std::pair<double, double>> percentiles;  ///< percentile, value; as --metric-percentiles asks
};

struct Summary {
  std::int64_t completed = 0, failed = 0;
  double duration = 0.0;  ///< seconds, from the first request that was due to the end of the last answer
  std::int64_t total_input = 0, total_output = 0;  ///< tokens, of requests that succeeded
  double request_throughput = 0.0, request_goodput = 0.0;
  double output_throughput = 0.0, total_token_throughput = 0.0;
  /// Most events with tokens, and most requests under way, in one second counted from the first request.
  double max_output_tokens_per_s = 0.0;
  std::int64_t max_concurrent_requests = 0;
  Distribution ttft, tpot, itl, e2el;
};

/// `records` have output_tokens of what succeeded.
Summary summarise(std::span<const StreamRecord> records, double duration, const config::BenchConfig& config);

/// Linear interpolation between the neighbours, as numpy does. `sorted` is ascending; 0 if it is empty.
double percentile(std::span<const double> sorted, double percent);

/// Consumes `samples` (seconds).
Distribution distribution(std::vector<double> samples, std::span<const double> percents);

}  // namespace tandem::bench
