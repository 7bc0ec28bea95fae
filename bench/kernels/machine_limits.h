// SPDX-License-Identifier: Apache-2.0
// What this machine can do at most, measured now: the numbers that the other benchmarks are compared with.
#pragma once

#include <string>

namespace tandem::bench {

/// Rates of the best of several short runs; 0 where the CPU has no such instruction.
struct Limits {
  int threads = 1;
  double int8_gops = 0;  ///< multiply and add counted as two
  double bf16_gflops = 0;
  double f32_gflops = 0;
  double read_gbps = 0;  ///< memory read, 1e9 bytes/s, from a buffer far larger than the caches
};

/// Takes about a second. Each thread gets a CPU of the affinity mask.
Limits measure_limits(int threads);

/// {"isa": ..., "limits": [{"threads": 1, ...}, ...]} for 1 thread and for `threads` (once if that is 1).
std::string limits_json(int threads);

}  // namespace tandem::bench
