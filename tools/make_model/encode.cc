// SPDX-License-Identifier: Apache-2.0
#include "make_model/encode.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>

namespace tandem::tools {
namespace {

using model::TensorType;

constexpr int kBlock = 32;

struct TypeRow {
  std::string_view name;
  TensorType type;
};
constexpr TypeRow kWritable[] = {{"bf16", TensorType::kBf16}, {"f16", TensorType::kF16},   {"f32", TensorType::kF32},
                                 {"q8_0", TensorType::kQ8_0}, {"q4_0", TensorType::kQ4_0}, {"q4_1", TensorType::kQ4_1},
                                 {"q5_0", TensorType::kQ5_0}, {"q5_1", TensorType::kQ5_1}};

void put_f16(std::byte* out, float value) {
  const f16_t half = to_f16(value);
  std::memcpy(out, &half.bits, 2);
}

void put_q8_0(const float* x, std::byte* out) {
  float largest = 0;
  for (int i = 0; i < kBlock; ++i) largest = std::max(largest, std::abs(x[i]));
  const float step = largest / 127.0F;
  put_f16(out, step);
  for (int i = 0; i < kBlock; ++i) {
    const float q = step > 0 ? std::nearbyint(x[i] / step) : 0.0F;
    out[2 + i] = static_cast<std::byte>(static_cast<std::int8_t>(q));
  }
}

/// Unsigned codes of `bits` bits: value = step * code + minimum. Symmetric types fix the minimum at -2^(bits-1) steps.
struct Codes {
  float step = 0;
  float minimum = 0;
  std::uint8_t code[kBlock] = {};
};

Codes code_block(const float* x, int bits, bool symmetric) {
  Codes codes;
  const float top = static_cast<float>((1 << bits) - 1);
  const float middle = static_cast<float>(1 << (bits - 1));
  if (symmetric) {
    // The value of the largest magnitude gets the code 0, which reaches one step further than the other end.
    float extreme = 0;
    for (int i = 0; i < kBlock; ++i)
      if (std::abs(x[i]) > std::abs(extreme)) extreme = x[i];
    codes.step = extreme / -middle;
    codes.minimum = -middle * codes.step;
  } else {
    const auto [low, high] = std::minmax_element(x, x + kBlock);
    codes.step = (*high - *low) / top;
    codes.minimum = *low;
  }
  for (int i = 0; i < kBlock; ++i) {
    const float q = codes.step != 0 ? std::nearbyint((x[i] - codes.minimum) / codes.step) : 0.0F;
    codes.code[i] = static_cast<std::uint8_t>(std::clamp(q, 0.0F, top));
  }
  if (symmetric && codes.step == 0)
    std::fill(std::begin(codes.code), std::end(codes.code), static_cast<std::uint8_t>(middle));
  return codes;
}

void put_nibbles(const Codes& codes, std::byte* out) {
  for (int i = 0; i < kBlock / 2; ++i)
    out[i] = static_cast<std::byte>((codes.code[i] & 15) | ((codes.code[i + kBlock / 2] & 15) << 4));
}

// Q4_0, Q4_1, Q5_0, Q5_1: step, [minimum], [the fifth bits], nibbles.
void put_codes(const float* x, int bits, bool symmetric, std::byte* out) {
  const Codes codes = code_block(x, bits, symmetric);
  put_f16(out, codes.step);
  out += 2;
  if (!symmetric) {
    put_f16(out, codes.minimum);
    out += 2;
  }
  if (bits == 5) {
    std::uint32_t fifth = 0;
    for (int i = 0; i < kBlock; ++i) fifth |= static_cast<std::uint32_t>(codes.code[i] >> 4) << i;
    std::memcpy(out, &fifth, 4);
    out += 4;
  }
  put_nibbles(codes, out);
}

void put_block(TensorType type, const float* x, std::byte* out) {
  switch (type) {
    case TensorType::kQ8_0:
      return put_q8_0(x, out);
    case TensorType::kQ4_0:
      return put_codes(x, 4, true, out);
    case TensorType::kQ4_1:
      return put_codes(x, 4, false, out);
    case TensorType::kQ5_0:
      return put_codes(x, 5, true, out);
    case TensorType::kQ5_1:
      return put_codes(x, 5, false, out);
    default:
      TANDEM_ASSERT(false, "this type cannot be written");
  }
}

}  // namespace

f16_t to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return f16_t{static_cast<std::uint16_t>(sign | 0x7e00U)};
  if (magnitude >= 0x477ff000U) return f16_t{static_cast<std::uint16_t>(sign | 0x7c00U)};  // rounds past 65504
  if (magnitude < 0x38800000U) {
    // Subnormal or zero: a multiple of 2^-24; the addition rounds to nearest even.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return f16_t{static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) & 0x7ffU))};
  }
  const std::uint32_t rounded = magnitude + 0xfffU + ((magnitude >> 13) & 1U);
  return f16_t{static_cast<std::uint16_t>(sign | ((rounded - 0x38000000U) >> 13))};
}

Result<TensorType> writable_type(std::string_view name) {
  std::string lower(name);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c); });
  std::string names;
  for (const TypeRow& row : kWritable) {
    if (row.name == lower) return row.type;
    names += (names.empty() ? "" : ", ") + std::string(row.name);
  }
  return Status(Code::kInvalidArgument, fmt::format("weights cannot be written as '{}'; possible: {}", name, names));
}

std::size_t row_bytes(TensorType type, std::int64_t cols) {
  return static_cast<std::size_t>(cols / model::tensor_block_values(type)) * model::tensor_block_bytes(type);
}

void encode_row(TensorType type, const float* values, std::int64_t cols, std::byte* out) {
  if (type == TensorType::kF32) {
    std::memcpy(out, values, static_cast<std::size_t>(cols) * sizeof(float));
    return;
  }
  if (type == TensorType::kF16 || type == TensorType::kBf16) {
    for (std::int64_t i = 0; i < cols; ++i) {
      const std::uint16_t bits = type == TensorType::kF16 ? to_f16(values[i]).bits : to_bf16(values[i]).bits;
      std::memcpy(out + 2 * i, &bits, 2);
    }
    return;
  }
  for (std::int64_t i = 0; i < cols; i += kBlock, out += model::tensor_block_bytes(type))
    put_block(type, values + i, out);
}

}  // namespace tandem::tools
