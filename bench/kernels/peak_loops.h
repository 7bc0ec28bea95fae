// SPDX-License-Identifier: Apache-2.0
// Loops that keep the multipliers busy with registers only. Only for CPUs that have the instructions.
#pragma once

#include <cstdint>

namespace tandem::bench {

/// Each runs `rounds` rounds and returns the number of operations (multiply and add counted as two).
double int8_peak_avx512(std::int64_t rounds);
double bf16_peak_avx512(std::int64_t rounds);
double f32_peak_avx512(std::int64_t rounds);
double int8_peak_avx2(std::int64_t rounds);
double f32_peak_avx2(std::int64_t rounds);

}  // namespace tandem::bench
