// SPDX-License-Identifier: Apache-2.0
// Symmetric int8 quantisation, for baseline code (the wide instruction sets have their own of the same results).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

namespace tandem::kernels::cpu {

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

/// x / step rounded half to even, in [-127, 127]; a step that is itself denormal is imprecise, hence the clamp.
inline std::int8_t quantise(float x, float step) {
  float q = x / step;
  q = q > 127.0F ? 127.0F : (q < -127.0F ? -127.0F : q);
  // Adding and taking away 1.5 * 2^23 leaves no bits for a fraction; unlike nearbyint it is no call.
  constexpr float kShift = 12582912.0F;
  return static_cast<std::int8_t>((q + kShift) - kShift);
}

/// A KV vector as `count` int8 values and then their scale (KvType::kInt8). The scale of zeros is 0, that of a vector
/// with a non-finite value NaN. On every instruction set the same bits.
inline void quantise_vector(const float* x, int count, std::byte* out) {
  const std::uint32_t max_bits = max_magnitude_bits(x, count);
  const float scale =
      max_bits >= kInfinityBits ? std::numeric_limits<float>::quiet_NaN() : std::bit_cast<float>(max_bits) / 127.0F;
  std::memcpy(out + count, &scale, sizeof(scale));
  if (!(scale > 0.0F)) {
    std::memset(out, 0, static_cast<std::size_t>(count));
    return;
  }
  auto* values = reinterpret_cast<std::int8_t*>(out);
  for (int i = 0; i < count; ++i) values[i] = quantise(x[i], scale);
}

}  // namespace tandem::kernels::cpu
