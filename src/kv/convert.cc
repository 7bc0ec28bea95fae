// SPDX-License-Identifier: Apache-2.0
#include "kv/convert.h"

#include <cstring>
#include <vector>

#include "base/float16.h"
#include "base/quantise.h"

namespace tandem::kv {
namespace {

void load(ElementType type, const std::byte* from, float* values, std::size_t dim) {
  switch (type) {
    case ElementType::kBf16:
      for (std::size_t i = 0; i < dim; ++i) {
        bf16_t value;
        std::memcpy(&value, from + i * sizeof value, sizeof value);
        values[i] = to_float(value);
      }
      return;
    case ElementType::kF32:
      std::memcpy(values, from, dim * sizeof(float));
      return;
    case ElementType::kInt8: {
      float scale = 0.0F;
      std::memcpy(&scale, from + dim, sizeof scale);
      for (std::size_t i = 0; i < dim; ++i) values[i] = static_cast<float>(static_cast<std::int8_t>(from[i])) * scale;
      return;
    }
  }
}

void store(ElementType type, const float* values, std::byte* to, std::size_t dim) {
  switch (type) {
    case ElementType::kBf16:
      for (std::size_t i = 0; i < dim; ++i) {
        const bf16_t value = to_bf16(values[i]);
        std::memcpy(to + i * sizeof value, &value, sizeof value);
      }
      return;
    case ElementType::kF32:
      std::memcpy(to, values, dim * sizeof(float));
      return;
    case ElementType::kInt8: {
      const float scale = quantise_row(values, static_cast<std::int64_t>(dim), reinterpret_cast<std::int8_t*>(to));
      std::memcpy(to + dim, &scale, sizeof scale);
      return;
    }
  }
}

}  // namespace

void convert_vectors(ElementType from, const std::byte* source, ElementType to, std::byte* destination,
                     std::size_t count, std::int32_t head_dim) {
  const std::size_t from_bytes = vector_bytes(from, head_dim);
  const std::size_t to_bytes = vector_bytes(to, head_dim);
  if (from == to) {
    std::memcpy(destination, source, count * from_bytes);
    return;
  }
  std::vector<float> values(static_cast<std::size_t>(head_dim));
  for (std::size_t i = 0; i < count; ++i, source += from_bytes, destination += to_bytes) {
    load(from, source, values.data(), values.size());
    store(to, values.data(), destination, values.size());
  }
}

}  // namespace tandem::kv
