// SPDX-License-Identifier: Apache-2.0
// Rows of a stored tensor as float: plain types, and the blocks of GGUF (spec: model_formats.md 5.3).
#include "model/tensor_view.h"

#include <cstring>
#include <vector>

#include "base/float16.h"
#include "base/status.h"

namespace tandem::model {
namespace {

using Bytes = const std::uint8_t*;

struct TypeRow {
  TensorType type;
  std::string_view name;
  std::int64_t block_values;
  std::size_t block_bytes;
};
constexpr TypeRow kTypes[] = {
    {TensorType::kF32, "F32", 1, 4},       {TensorType::kF16, "F16", 1, 2},       {TensorType::kBf16, "BF16", 1, 2},
    {TensorType::kQ8_0, "Q8_0", 32, 34},   {TensorType::kQ4_0, "Q4_0", 32, 18},   {TensorType::kQ4_1, "Q4_1", 32, 20},
    {TensorType::kQ5_0, "Q5_0", 32, 22},   {TensorType::kQ5_1, "Q5_1", 32, 24},   {TensorType::kQ4_K, "Q4_K", 256, 144},
    {TensorType::kQ5_K, "Q5_K", 256, 176}, {TensorType::kQ6_K, "Q6_K", 256, 210},
};
const TypeRow& row_of(TensorType type) {
  const auto index = static_cast<std::size_t>(type);
  TANDEM_ASSERT(index < std::size(kTypes) && kTypes[index].type == type, "the tensor type table is out of order");
  return kTypes[index];
}

std::uint16_t load_u16(Bytes data) { return static_cast<std::uint16_t>(data[0] | (data[1] << 8)); }
std::uint32_t load_u32(Bytes data) {
  return static_cast<std::uint32_t>(load_u16(data)) | (static_cast<std::uint32_t>(load_u16(data + 2)) << 16);
}
float load_f16(Bytes data) { return to_float(f16_t{load_u16(data)}); }
int low(std::uint8_t byte) { return byte & 15; }
int high(std::uint8_t byte) { return byte >> 4; }

void block_q8_0(Bytes block, float* out) {
  const float d = load_f16(block);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(static_cast<std::int8_t>(block[2 + i]));
}

void block_q4_0(Bytes block, float* out) {
  const float d = load_f16(block);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(low(block[2 + i]) - 8);
    out[i + 16] = d * static_cast<float>(high(block[2 + i]) - 8);
  }
}

void block_q4_1(Bytes block, float* out) {
  const float d = load_f16(block);
  const float m = load_f16(block + 2);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(low(block[4 + i])) + m;
    out[i + 16] = d * static_cast<float>(high(block[4 + i])) + m;
  }
}

// The fifth bits of all 32 values stand in one word; values 16..31 use its upper half.
int fifth_bit(std::uint32_t word, int i) { return static_cast<int>((word >> i) & 1U) << 4; }

void block_q5_0(Bytes block, float* out) {
  const float d = load_f16(block);
  const std::uint32_t word = load_u32(block + 2);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>((low(block[6 + i]) | fifth_bit(word, i)) - 16);
    out[i + 16] = d * static_cast<float>((high(block[6 + i]) | fifth_bit(word, i + 16)) - 16);
  }
}

void block_q5_1(Bytes block, float* out) {
  const float d = load_f16(block);
  const float m = load_f16(block + 2);
  const std::uint32_t word = load_u32(block + 4);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(low(block[8 + i]) | fifth_bit(word, i)) + m;
    out[i + 16] = d * static_cast<float>(high(block[8 + i]) | fifth_bit(word, i + 16)) + m;
  }
}

// Scale and minimum (6 bits each) of sub-block `sub` (0..7) in the 12 packed bytes of Q4_K and Q5_K.
void unpack_scale(Bytes packed, int sub, float& scale, float& minimum) {
  int s = 0;
  int m = 0;
  if (sub < 4) {
    s = packed[sub] & 63;
    m = packed[sub + 4] & 63;
  } else {
    s = (packed[sub + 4] & 15) | ((packed[sub - 4] >> 6) << 4);
    m = (packed[sub + 4] >> 4) | ((packed[sub] >> 6) << 4);
  }
  scale = static_cast<float>(s);
  minimum = static_cast<float>(m);
}

// Q4_K and Q5_K: eight sub-blocks of 32 values; two neighbours share 32 bytes (low and high nibbles). `fifth` holds bit
// `sub` of each value's fifth bit for sub-block `sub`, or is null (Q4_K).
void block_k45(Bytes block, Bytes fifth, Bytes nibbles, float* out) {
  const float d = load_f16(block);
  const float dmin = load_f16(block + 2);
  for (int sub = 0; sub < 8; ++sub) {
    float scale = 0;
    float minimum = 0;
    unpack_scale(block + 4, sub, scale, minimum);
    scale *= d;
    minimum *= dmin;
    const Bytes quants = nibbles + (sub / 2) * 32;
    for (int i = 0; i < 32; ++i) {
      int value = sub % 2 == 0 ? low(quants[i]) : high(quants[i]);
      if (fifth != nullptr) value += ((fifth[i] >> sub) & 1) << 4;
      out[sub * 32 + i] = scale * static_cast<float>(value) - minimum;
    }
  }
}

void block_q6_k(Bytes block, float* out) {
  const Bytes scales = block + 192;
  const float d = load_f16(block + 208);
  for (int half = 0; half < 2; ++half) {
    const Bytes lows = block + half * 64;
    const Bytes highs = block + 128 + half * 32;
    for (int quarter = 0; quarter < 4; ++quarter) {
      for (int i = 0; i < 32; ++i) {
        const std::uint8_t nibbles = lows[(quarter % 2) * 32 + i];
        const int nibble = quarter < 2 ? low(nibbles) : high(nibbles);
        const int value = (nibble | (((highs[i] >> (2 * quarter)) & 3) << 4)) - 32;
        const auto scale = static_cast<std::int8_t>(scales[half * 8 + quarter * 2 + i / 16]);
        out[half * 128 + quarter * 32 + i] = d * static_cast<float>(scale) * static_cast<float>(value);
      }
    }
  }
}

void read_blocks(TensorType type, Bytes data, std::int64_t blocks, float* out) {
  const TypeRow& row = row_of(type);
  for (std::int64_t i = 0; i < blocks; ++i, data += row.block_bytes, out += row.block_values) {
    switch (type) {
      case TensorType::kQ8_0:
        block_q8_0(data, out);
        break;
      case TensorType::kQ4_0:
        block_q4_0(data, out);
        break;
      case TensorType::kQ4_1:
        block_q4_1(data, out);
        break;
      case TensorType::kQ5_0:
        block_q5_0(data, out);
        break;
      case TensorType::kQ5_1:
        block_q5_1(data, out);
        break;
      case TensorType::kQ4_K:
        block_k45(data, nullptr, data + 16, out);
        break;
      case TensorType::kQ5_K:
        block_k45(data, data + 16, data + 48, out);
        break;
      case TensorType::kQ6_K:
        block_q6_k(data, out);
        break;
      case TensorType::kF32:
      case TensorType::kF16:
      case TensorType::kBf16:
        break;  // read_plain
    }
  }
}

// Values need not be aligned: safetensors allows any offset.
void read_plain(TensorType type, Bytes data, std::int64_t count, float* out) {
  switch (type) {
    case TensorType::kF32:
      std::memcpy(out, data, static_cast<std::size_t>(count) * sizeof(float));
      break;
    case TensorType::kF16:
      for (std::int64_t i = 0; i < count; ++i) out[i] = load_f16(data + 2 * i);
      break;
    default:
      for (std::int64_t i = 0; i < count; ++i) out[i] = to_float(bf16_t{load_u16(data + 2 * i)});
      break;
  }
}

// Hugging Face order -> stored order: value s*d/2 + i of a head is stored at 2i + s.
std::int64_t stored_index(std::int64_t index, std::int64_t head_dim) {
  const std::int64_t within = index % head_dim;
  const std::int64_t half = head_dim / 2;
  return index - within + 2 * (within % half) + within / half;
}

}  // namespace

std::string_view tensor_type_name(TensorType type) { return row_of(type).name; }
std::int64_t tensor_block_values(TensorType type) { return row_of(type).block_values; }
std::size_t tensor_block_bytes(TensorType type) { return row_of(type).block_bytes; }

void TensorView::read_row(std::int64_t row, float* out) const {
  TANDEM_ASSERT(row >= 0 && row < rows, "a row outside the tensor was asked for");
  if (source != nullptr) {
    source->read_row(row, cols, out);
    return;
  }
  if (interleaved_head_dim > 0 && rows > 1) row = stored_index(row, interleaved_head_dim);
  const TypeRow& layout = row_of(type);
  const std::int64_t blocks = cols / layout.block_values;
  const auto* start = reinterpret_cast<Bytes>(data) + static_cast<std::size_t>(row * blocks) * layout.block_bytes;
  if (layout.block_values > 1) {
    read_blocks(type, start, blocks, out);
  } else {
    read_plain(type, start, cols, out);
  }
  if (interleaved_head_dim > 0 && rows == 1) {
    const std::vector<float> stored(out, out + cols);
    for (std::int64_t i = 0; i < cols; ++i)
      out[i] = stored[static_cast<std::size_t>(stored_index(i, interleaved_head_dim))];
  }
}

}  // namespace tandem::model
