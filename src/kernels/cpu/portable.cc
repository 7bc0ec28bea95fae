// SPDX-License-Identifier: Apache-2.0
// The portable kernels: plain loops that say what each kernel means. They serve CPUs without AVX2 and are the oracle
// of the tests, so clarity goes before speed; lanes are output columns, which compilers vectorise.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/float16.h"
#include "base/quantise.h"
#include "kernels/cpu/kernel_table.h"

namespace tandem::kernels::cpu {
namespace {

void prepare_bf16(const float* x, std::int64_t k, std::int64_t k_padded, std::byte* out) {
  auto* rounded = reinterpret_cast<float*>(out);
  for (std::int64_t i = 0; i < k; ++i) rounded[i] = to_float(to_bf16(x[i]));
  for (std::int64_t i = k; i < k_padded; ++i) rounded[i] = 0.0F;
}

void prepare_int8(const float* x, std::int64_t k, std::int64_t k_padded, std::byte* out, float* scale) {
  std::memset(out + k, 0, static_cast<std::size_t>(k_padded - k));
  *scale = quantise_row(x, k, reinterpret_cast<std::int8_t*>(out));
}

void prepare_static(const float* x, std::int64_t k, std::int64_t k_padded, const StaticQuantiser& how, std::byte* out,
                    float* scale) {
  auto* quantised = reinterpret_cast<std::int8_t*>(out);
  std::memset(out + k, 0, static_cast<std::size_t>(k_padded - k));
  const bool finite = max_magnitude_bits(x, k) < kInfinityBits;
  *scale = finite ? 1.0F : std::numeric_limits<float>::quiet_NaN();
  for (std::int64_t i = 0; i < k; ++i)
    quantised[i] = finite ? quantise_static(x[i], how.scale, how.offset, how.zero_point) : std::int8_t{0};
}

/// Writes the first min(16, n - column) of `sum` to y.
void store_columns(const GemmArgs& args, std::int64_t row, std::int64_t panel, const float* sum) {
  const std::int64_t first = panel * kPanel;
  const std::int64_t count = args.n - first < kPanel ? args.n - first : kPanel;
  float* y = args.y + row * args.ldy + first;
  for (std::int64_t c = 0; c < count; ++c) y[c] = args.add ? y[c] + sum[c] : sum[c];
}

void gemm_f32(const GemmArgs& args) {
  for (std::int64_t panel = args.panel_begin; panel < args.panel_end; ++panel) {
    const auto* w = reinterpret_cast<const float*>(args.weights) + panel * args.k_groups * kPanel;
    for (std::int64_t row = 0; row < args.rows; ++row) {
      const auto* x = reinterpret_cast<const float*>(args.x + static_cast<std::size_t>(row) * args.x_stride);
      float sum[kPanel] = {};
      for (std::int64_t k = 0; k < args.k_groups; ++k) {
        for (int c = 0; c < kPanel; ++c) sum[c] += x[k] * w[k * kPanel + c];
      }
      for (int c = 0; c < kPanel; ++c) sum[c] += args.bias[panel * kPanel + c];
      store_columns(args, row, panel, sum);
    }
  }
}

void gemm_bf16(const GemmArgs& args) {
  for (std::int64_t panel = args.panel_begin; panel < args.panel_end; ++panel) {
    // A 32-bit word holds the weights of two consecutive k: the first in the low half.
    const auto* w = reinterpret_cast<const std::uint32_t*>(args.weights) + panel * args.k_groups * kPanel;
    for (std::int64_t row = 0; row < args.rows; ++row) {
      const auto* x = reinterpret_cast<const float*>(args.x + static_cast<std::size_t>(row) * args.x_stride);
      float sum[kPanel] = {};
      for (std::int64_t pair = 0; pair < args.k_groups; ++pair) {
        const float x0 = x[2 * pair];
        const float x1 = x[2 * pair + 1];
        for (int c = 0; c < kPanel; ++c) {
          const std::uint32_t word = w[pair * kPanel + c];
          sum[c] += x0 * std::bit_cast<float>(word << 16);
          sum[c] += x1 * std::bit_cast<float>(word & 0xffff0000U);
        }
      }
      for (int c = 0; c < kPanel; ++c) sum[c] += args.bias[panel * kPanel + c];
      store_columns(args, row, panel, sum);
    }
  }
}

void gemm_int8(const GemmArgs& args) {
  for (std::int64_t panel = args.panel_begin; panel < args.panel_end; ++panel) {
    const auto* w = reinterpret_cast<const std::int8_t*>(args.weights) + panel * args.k_groups * kPanel * 4;
    for (std::int64_t row = 0; row < args.rows; ++row) {
      const auto* x = reinterpret_cast<const std::int8_t*>(args.x + static_cast<std::size_t>(row) * args.x_stride);
      std::int32_t total[kPanel] = {};
      for (std::int64_t group = 0; group < args.k_groups; ++group) {
        for (int c = 0; c < kPanel; ++c) {
          for (int i = 0; i < 4; ++i) total[c] += x[4 * group + i] * w[(group * kPanel + c) * 4 + i];
        }
      }
      float sum[kPanel];
      for (int c = 0; c < kPanel; ++c) {
        const std::int64_t column = panel * kPanel + c;
        // In unsigned: a wild start from a file wraps, as it does in vector code.
        const auto from_start = static_cast<std::int32_t>(static_cast<std::uint32_t>(total[c]) +
                                                          static_cast<std::uint32_t>(args.w_start[column]));
        sum[c] = static_cast<float>(from_start) * (args.x_scale[row] * args.w_scale[column]) + args.bias[column];
      }
      store_columns(args, row, panel, sum);
    }
  }
}

void rms_norm(const float* x, const float* weight, const float* bias, float eps, std::int64_t cols, float* y) {
  double squares = 0.0;
  for (std::int64_t i = 0; i < cols; ++i) squares += static_cast<double>(x[i]) * x[i];
  const auto mean = static_cast<float>(squares / static_cast<double>(cols));
  const float factor = 1.0F / std::sqrt(mean + eps);
  for (std::int64_t i = 0; i < cols; ++i) y[i] = weight[i] * (x[i] * factor);
  if (bias == nullptr) return;
  for (std::int64_t i = 0; i < cols; ++i) y[i] += bias[i];
}

void rope(float* x, int head_dim, const float* cos, const float* sin) {
  const int half = head_dim / 2;
  for (int i = 0; i < half; ++i) {
    const float a = x[i];
    const float b = x[i + half];
    x[i] = a * cos[i] - b * sin[i];
    x[i + half] = b * cos[i] + a * sin[i];
  }
}

void silu_mul(const float* gate, const float* up, std::int64_t cols, float* y) {
  for (std::int64_t i = 0; i < cols; ++i) y[i] = gate[i] / (1.0F + std::exp(-gate[i])) * up[i];
}

void store_bf16(const float* x, std::int64_t count, std::byte* out) {
  auto* bits = reinterpret_cast<std::uint16_t*>(out);
  for (std::int64_t i = 0; i < count; ++i) bits[i] = to_bf16(x[i]).bits;
}

void expand_int8(const std::byte* vector, int head_dim, std::byte* out) {
  const auto* values = reinterpret_cast<const std::int8_t*>(vector);
  float scale = 0.0F;
  std::memcpy(&scale, vector + head_dim, sizeof(scale));
  auto* expanded = reinterpret_cast<float*>(out);
  for (int i = 0; i < head_dim; ++i) expanded[i] = static_cast<float>(values[i]) * scale;
}

void prepare_query(const float* q, int head_dim, bool /*kv_bf16*/, std::byte* out) {
  std::memcpy(out, q, static_cast<std::size_t>(head_dim) * sizeof(float));
}

float kv_element(const std::byte* vector, int i, bool bf16) {
  return bf16 ? to_float(reinterpret_cast<const bf16_t*>(vector)[i]) : reinterpret_cast<const float*>(vector)[i];
}

void attend_one(const float* q, float* state, const AttentionQueries& queries, const AttentionTile& tile) {
  float score[kTile];
  float maximum = state[0];
  for (int j = 0; j < tile.num_positions; ++j) {
    float dot = 0.0F;
    for (int i = 0; i < queries.head_dim; ++i) dot += q[i] * kv_element(tile.k[j], i, queries.kv_bf16);
    score[j] = dot * queries.scale;
    maximum = score[j] > maximum ? score[j] : maximum;
  }
  const float correction = std::exp(state[0] - maximum);
  float* sum = state + kStateHeader;
  for (int i = 0; i < queries.head_dim; ++i) sum[i] *= correction;
  float total = 0.0F;
  for (int j = 0; j < tile.num_positions; ++j) {
    const float p = std::exp(score[j] - maximum);
    total += p;
    for (int i = 0; i < queries.head_dim; ++i) sum[i] += p * kv_element(tile.v[j], i, queries.kv_bf16);
  }
  state[0] = maximum;
  state[1] = state[1] * correction + total;
}

void attend_tile(const AttentionQueries& queries, const AttentionTile& tile) {
  for (int i = 0; i < queries.count; ++i) {
    const auto index = static_cast<std::size_t>(i);
    attend_one(reinterpret_cast<const float*>(queries.q + index * queries.q_stride),
               queries.state + index * queries.state_stride, queries, tile);
  }
}

void merge_state(float* into, const float* part, int head_dim) {
  const float maximum = into[0] > part[0] ? into[0] : part[0];
  const float a = std::exp(into[0] - maximum);
  const float b = std::exp(part[0] - maximum);
  into[0] = maximum;
  into[1] = into[1] * a + part[1] * b;
  for (int i = kStateHeader; i < kStateHeader + head_dim; ++i) into[i] = into[i] * a + part[i] * b;
}

void finish_state(const float* state, int head_dim, bool /*kv_bf16*/, float* out) {
  const float inverse = 1.0F / state[1];
  for (int i = 0; i < head_dim; ++i) out[i] = state[kStateHeader + i] * inverse;
}

}  // namespace

const KernelTable& portable_table() {
  static constexpr KernelTable kTable{
      .bf16_x_bytes = 4,
      .int8_x_bytes = 1,
      .int8_x_offset = 0,
      .prepare_bf16 = prepare_bf16,
      .prepare_int8 = prepare_int8,
      .prepare_static = prepare_static,
      .gemm_f32 = gemm_f32,
      .gemm_bf16 = gemm_bf16,
      .gemm_int8 = gemm_int8,
      .rms_norm = rms_norm,
      .rope = rope,
      .silu_mul = silu_mul,
      .store_bf16 = store_bf16,
      .int8_kv_as_bf16 = false,
      .expand_int8 = expand_int8,
      .prepare_query = prepare_query,
      .attend_tile = attend_tile,
      .merge_state = merge_state,
      .finish_state = finish_state,
  };
  return kTable;
}

}  // namespace tandem::kernels::cpu
