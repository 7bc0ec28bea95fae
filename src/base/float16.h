// SPDX-License-Identifier: Apache-2.0
// 16-bit float storage types. Arithmetic happens in float; these only hold bits (g++ 12 has no __bf16 in C++).
#pragma once

#include <bit>
#include <cstdint>

namespace tandem {

struct bf16_t {
  std::uint16_t bits;
};
struct f16_t {
  std::uint16_t bits;
};

inline float to_float(bf16_t value) { return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16); }

/// Round to nearest even; NaN stays NaN (quiet).
inline bf16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return bf16_t{static_cast<std::uint16_t>((bits >> 16) | 0x40U)};
  return bf16_t{static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16)};
}

float to_float(f16_t value);

}  // namespace tandem
