// SPDX-License-Identifier: Apache-2.0
// Linear layers and the SiLU of an MLP with NEON, and the tables of arm64. Every output element has one accumulator
// (for int8 two, whose sum is exact) that takes K in ascending order, whatever block it is in.
#include "kernels/cpu/neon.h"

namespace tandem::kernels::cpu {
namespace neon {
namespace {

struct F32Type {
  static constexpr int kMaxRows = 4;
  template <int R>
  static void block(const GemmArgs& args, std::int64_t row, std::int64_t panel) {
    const auto* w = reinterpret_cast<const float*>(args.weights) + panel * args.k_groups * kPanel;
    const auto stride = static_cast<std::int64_t>(args.x_stride / sizeof(float));
    const float* x = reinterpret_cast<const float*>(args.x) + row * stride;
    float32x4_t sum[R][4] = {};
    for (std::int64_t k = 0; k < args.k_groups; ++k, w += kPanel) {
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) {
        const float32x4_t columns = vld1q_f32(w + 4 * c);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) sum[r][c] = vfmaq_n_f32(sum[r][c], columns, x[r * stride + k]);
      }
    }
    for (int r = 0; r < R; ++r)
      for (int c = 0; c < 4; ++c) store_columns(args, sum[r][c], row + r, panel, c);
  }
};

struct Bf16Type {
  static constexpr int kMaxRows = 4;
  /// Activations are float32 values that were rounded to BF16. A word of weights has two consecutive k of a column,
  /// the first in its low half.
  template <int R>
  static void block(const GemmArgs& args, std::int64_t row, std::int64_t panel) {
    const auto* w = reinterpret_cast<const std::uint32_t*>(args.weights) + panel * args.k_groups * kPanel;
    const auto stride = static_cast<std::int64_t>(args.x_stride / sizeof(float));
    const float* x = reinterpret_cast<const float*>(args.x) + row * stride;
    float32x4_t sum[R][4] = {};
    for (std::int64_t k = 0; k < 2 * args.k_groups; k += 2, w += kPanel) {
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) {
        const uint32x4_t words = vld1q_u32(w + 4 * c);
        const float32x4_t even = vreinterpretq_f32_u32(vshlq_n_u32(words, 16));
        const float32x4_t odd = vreinterpretq_f32_u32(vandq_u32(words, vdupq_n_u32(0xffff0000U)));
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          const float* pair = x + r * stride + k;
          sum[r][c] = vfmaq_n_f32(vfmaq_n_f32(sum[r][c], even, pair[0]), odd, pair[1]);
        }
      }
    }
    for (int r = 0; r < R; ++r)
      for (int c = 0; c < 4; ++c) store_columns(args, sum[r][c], row + r, panel, c);
  }
};

/// Without the dot product: 16-bit products, each exact, added in pairs.
struct Int8Type {
  static constexpr int kMaxRows = 2;
  template <int R>
  static void block(const GemmArgs& args, std::int64_t row, std::int64_t panel) {
    const auto* w = reinterpret_cast<const std::int8_t*>(args.weights) + panel * args.k_groups * 64;
    const auto stride = static_cast<std::int64_t>(args.x_stride);
    const auto* x = reinterpret_cast<const std::int32_t*>(args.x + row * stride);
    int32x4_t low[R][4] = {};   // columns 0 and 1 of four, two partial sums each
    int32x4_t high[R][4] = {};  // columns 2 and 3
    for (std::int64_t group = 0; group < args.k_groups; ++group, w += 64) {
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) {
        const int8x16_t columns = vld1q_s8(w + 16 * c);
#pragma GCC unroll 2
        for (int r = 0; r < R; ++r) {
          const int8x16_t xv = vreinterpretq_s8_s32(vdupq_n_s32(x[r * (stride / 4) + group]));
          low[r][c] = vpadalq_s16(low[r][c], vmull_s8(vget_low_s8(columns), vget_low_s8(xv)));
          high[r][c] = vpadalq_s16(high[r][c], vmull_high_s8(columns, xv));
        }
      }
    }
    for (int r = 0; r < R; ++r)
      for (int c = 0; c < 4; ++c) store_int8_columns(args, vpaddq_s32(low[r][c], high[r][c]), row + r, panel, c);
  }
};

void silu_mul(const float* gate, const float* up, std::int64_t cols, float* y) {
  for (std::int64_t i = 0; i < cols; i += 4) {
    const float32x4_t g = load_first(gate + i, cols - i);
    const float32x4_t denominator = vaddq_f32(vdupq_n_f32(1.0F), exp_ps(vnegq_f32(g)));
    store_first(y + i, cols - i, vmulq_f32(vdivq_f32(g, denominator), load_first(up + i, cols - i)));
  }
}

KernelTable make_table(void (*gemm_int8)(const GemmArgs& args)) {
  KernelTable table = portable_table();
  table.gemm_f32 = gemm<F32Type>;
  table.gemm_bf16 = gemm<Bf16Type>;
  table.gemm_int8 = gemm_int8;
  table.silu_mul = silu_mul;
  table.attend_tile = attend_tile;
  return table;
}

}  // namespace
}  // namespace neon

const KernelTable& neon_table() {
  static const KernelTable table = neon::make_table(neon::gemm<neon::Int8Type>);
  return table;
}

const KernelTable& dotprod_table() {
  static const KernelTable table = neon::make_table(neon::gemm_int8_dotprod);
  return table;
}

}  // namespace tandem::kernels::cpu
