// SPDX-License-Identifier: Apache-2.0
// Passes over one row of logits or weights: a fixed sequence of float and double operations without fused multiply-add,
// so that equal rows give equal results on every machine.
#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <span>

namespace tandem::worker {

inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
inline constexpr std::size_t kChunk = 256;  ///< sum_all() adds up sums of so many weights

/// The highest value, or nullopt if one is NaN or infinite.
std::optional<float> highest_if_finite(std::span<const float> logits);
/// The highest value; others may be minus infinity.
float highest_of(std::span<const float> values);
/// weights[i] = e^((values[i] - highest) * scale), 0 where that is below e^-87.
void exponentials(std::span<const float> values, float highest, float scale, float* __restrict weights);
double sum_chunk(const float* weights, std::size_t count);
double sum_all(std::span<const float> weights);

}  // namespace tandem::worker
