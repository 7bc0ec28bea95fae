// SPDX-License-Identifier: Apache-2.0
// Symmetric int8 quantisation of a row: what kernels do to activations and weights, and what an int8 KV cache holds.
// For baseline code; the wide instruction sets have their own of the same results.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

namespace tandem {

inline constexpr std::uint32_t kInfinityBits = 0x7f800000U;

/// Bits of the largest |x|: magnitudes order like their bits, with infinity and then NaN above all numbers.
inline std::uint32_t max_magnitude_bits(const float* x, std::int64_t count) {
  std::uint32_t most = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x[i]) & 0x7fffffffU;
    most = bits > most ? bits : most;
  }
  return most;
}

/// The step of a row of weights whose largest magnitude has these (finite) bits. Spec: model_formats.md 5.4.
inline float weight_step(std::uint32_t max_bits) {
  constexpr float kSmallest = 1.2e-7F;
  const float step = std::bit_cast<float>(max_bits) / 127.0F;
  return step < kSmallest ? kSmallest : step;
}

/// x / step rounded half to even, in [-127, 127]; a step that is itself denormal is imprecise, hence the clamp.
inline std::int8_t quantise(float x, float step) {
  float q = x / step;
  q = q > 127.0F ? 127.0F : (q < -127.0F ? -127.0F : q);
  // Adding and taking away 1.5 * 2^23 leaves no bits for a fraction; unlike nearbyint it is no call.
  constexpr float kShift = 12582912.0F;
  return static_cast<std::int8_t>((q + kShift) - kShift);
}

/// clamp(rne(x / step + offset) + zero_point, -128, 127) of a finite x. Far outside the result is -128 or 127 for any
/// int8 zero point, so the clamp before rounding changes nothing.
inline std::int8_t quantise_static(float x, float step, float offset, std::int32_t zero_point) {
  constexpr float kBound = 512.0F;
  constexpr float kShift = 12582912.0F;  // see quantise()
  float q = x / step + offset;
  q = q > kBound ? kBound : (q < -kBound ? -kBound : q);
  const std::int32_t rounded = static_cast<std::int32_t>((q + kShift) - kShift) + zero_point;
  return static_cast<std::int8_t>(rounded > 127 ? 127 : (rounded < -128 ? -128 : rounded));
}

/// Writes `count` values and gives their step, max|x| / 127. A row with an infinity or NaN gives zeros and a NaN step,
/// which poisons whatever is computed from it; a row of zeros gives zeros and step 0.
inline float quantise_row(const float* x, std::int64_t count, std::int8_t* out) {
  const std::uint32_t max_bits = max_magnitude_bits(x, count);
  const bool finite = max_bits < kInfinityBits;
  const float step = finite ? std::bit_cast<float>(max_bits) / 127.0F : std::numeric_limits<float>::quiet_NaN();
  const bool any = finite && step != 0.0F;
  for (std::int64_t i = 0; i < count; ++i) out[i] = any ? quantise(x[i], step) : std::int8_t{0};
  return step;
}

/// A KV vector as `count` int8 values and then their scale (KvType::kInt8), by quantise_row(). On every instruction set
/// the same bits.
inline void quantise_vector(const float* x, int count, std::byte* out) {
  const float scale = quantise_row(x, count, reinterpret_cast<std::int8_t*>(out));
  std::memcpy(out + count, &scale, sizeof(scale));
}

}  // namespace tandem
