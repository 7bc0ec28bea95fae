// SPDX-License-Identifier: Apache-2.0
// Loops over lanes, so that the compiler can use vectors and the order of sums is the same on every machine.
#include "worker/row_sums.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

namespace tandem::worker {
namespace {

constexpr std::size_t kLanes = 16;

/// e^x for x <= 0, 0 below -87 (also for minus infinity); relative error under 2e-7, e^0 = 1 exactly. One select and no
/// branch, so that loops over it become vectors; out of range the polynomial gives anything, which the select drops.
inline float exp_nonpositive(float x) {
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const float shifted = x * 1.44269504F + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * 0.693359375F) + n * 2.12194440e-4F;  // ln 2 in two parts
  float p = 1.0F / 720.0F;
  p = p * r + 1.0F / 120.0F;
  p = p * r + 1.0F / 24.0F;
  p = p * r + 1.0F / 6.0F;
  p = p * r + 0.5F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  const std::uint32_t exponent = std::bit_cast<std::uint32_t>(shifted) << 23;
  const std::uint32_t keep = x > -87.0F ? ~0U : 0U;
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(p) + exponent) & keep);
}

}  // namespace

std::optional<float> highest_if_finite(std::span<const float> logits) {
  std::array<float, kLanes> lanes;
  lanes.fill(kMinusInfinity);
  std::array<std::uint32_t, kLanes> bad{};
  std::size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (std::size_t j = 0; j < kLanes; ++j) {
      const float value = logits[i + j];
      lanes[j] = value > lanes[j] ? value : lanes[j];
      bad[j] |= (std::bit_cast<std::uint32_t>(value) & 0x7f800000U) == 0x7f800000U ? 1U : 0U;
    }
  }
  for (; i < logits.size(); ++i) {
    lanes[0] = std::max(lanes[0], logits[i]);
    bad[0] |= std::isfinite(logits[i]) ? 0U : 1U;
  }
  for (const std::uint32_t flag : bad) {
    if (flag != 0) return std::nullopt;
  }
  return *std::max_element(lanes.begin(), lanes.end());
}

float highest_of(std::span<const float> values) {
  std::array<float, kLanes> lanes;
  lanes.fill(kMinusInfinity);
  std::size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    for (std::size_t j = 0; j < kLanes; ++j) {
      const float value = values[i + j];
      lanes[j] = value > lanes[j] ? value : lanes[j];
    }
  }
  for (; i < values.size(); ++i) lanes[0] = std::max(lanes[0], values[i]);
  return *std::max_element(lanes.begin(), lanes.end());
}

void exponentials(std::span<const float> values, float highest, float scale, float* __restrict weights) {
  const float* __restrict in = values.data();
  const std::size_t count = values.size();
  for (std::size_t i = 0; i < count; ++i) weights[i] = exp_nonpositive((in[i] - highest) * scale);
}

double sum_chunk(const float* weights, std::size_t count) {
  std::array<double, 8> lanes{};
  std::size_t i = 0;
  for (; i + lanes.size() <= count; i += lanes.size()) {
    for (std::size_t j = 0; j < lanes.size(); ++j) lanes[j] += weights[i + j];
  }
  for (; i < count; ++i) lanes[0] += weights[i];
  double sum = 0.0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

double sum_all(std::span<const float> weights) {
  double sum = 0.0;
  for (std::size_t i = 0; i < weights.size(); i += kChunk) {
    sum += sum_chunk(weights.data() + i, std::min(kChunk, weights.size() - i));
  }
  return sum;
}

}  // namespace tandem::worker
