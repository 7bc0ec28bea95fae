// SPDX-License-Identifier: Apache-2.0
// What the NEON files share: partial vectors, exp, and the walk over the blocks of a linear layer. For *_neon.cc and
// *_dotprod.cc only. NEON and its fused multiply-add are in every arm64 CPU; the dot product of int8 is not.
//
// Prepared activations, KV and softmax states look as in portable.cc, so what is not here is taken from its table.
#pragma once

#include <arm_neon.h>

#include "kernels/cpu/kernel_table.h"

namespace tandem::kernels::cpu::neon {

/// The first `count` of 4 floats, zeros after them.
[[maybe_unused]] static inline float32x4_t load_first(const float* from, std::int64_t count) {
  if (count >= 4) return vld1q_f32(from);
  float last[4] = {};
  for (std::int64_t i = 0; i < count; ++i) last[i] = from[i];
  return vld1q_f32(last);
}
[[maybe_unused]] static inline void store_first(float* to, std::int64_t count, float32x4_t value) {
  if (count >= 4) {
    vst1q_f32(to, value);
    return;
  }
  float last[4];
  vst1q_f32(last, value);
  for (std::int64_t i = 0; i < count; ++i) to[i] = last[i];
}

/// exp(x): relative error below 2e-7, exact at 0, underflow to 0, overflow to infinity, NaN to NaN. See avx2.h.
[[maybe_unused]] static inline float32x4_t exp_ps(float32x4_t x) {
  x = vminq_f32(vdupq_n_f32(100.0F), vmaxq_f32(vdupq_n_f32(-110.0F), x));
  const float32x4_t n = vrndnq_f32(vmulq_n_f32(x, 1.442695041F));
  float32x4_t r = vfmsq_f32(x, n, vdupq_n_f32(0.693145751953125F));
  r = vfmsq_f32(r, n, vdupq_n_f32(1.428606820e-06F));
  float32x4_t q = vdupq_n_f32(1.392621347e-03F);
  q = vfmaq_f32(vdupq_n_f32(8.363202972e-03F), q, r);
  q = vfmaq_f32(vdupq_n_f32(4.166655444e-02F), q, r);
  q = vfmaq_f32(vdupq_n_f32(1.666657685e-01F), q, r);
  q = vfmaq_f32(vdupq_n_f32(0.5F), q, r);
  const float32x4_t fraction = vfmaq_f32(vaddq_f32(r, vdupq_n_f32(1.0F)), vmulq_f32(r, r), q);
  const int32x4_t whole = vcvtq_s32_f32(n);
  const int32x4_t half = vshrq_n_s32(whole, 1);
  const int32x4_t bias = vdupq_n_s32(127);
  const float32x4_t first = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(half, bias), 23));
  const float32x4_t second = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vsubq_s32(whole, half), bias), 23));
  return vmulq_f32(vmulq_f32(fraction, first), second);
}

/// Four of the 16 columns of a panel, from `quarter` on, bias included, to their place in y.
[[maybe_unused]] static inline void store_columns(const GemmArgs& args, float32x4_t value, std::int64_t row,
                                                  std::int64_t panel, int quarter) {
  const std::int64_t column = panel * kPanel + 4 * quarter;
  const std::int64_t count = args.n - column;
  float* y = args.y + row * args.ldy + column;
  value = vaddq_f32(value, vld1q_f32(args.bias + column));
  if (args.add) value = vaddq_f32(load_first(y, count), value);
  store_first(y, count, value);
}

/// The same for sums of int8 products.
[[maybe_unused]] static inline void store_int8_columns(const GemmArgs& args, int32x4_t sum, std::int64_t row,
                                                       std::int64_t panel, int quarter) {
  const std::int64_t column = panel * kPanel + 4 * quarter;
  const float32x4_t total = vcvtq_f32_s32(vaddq_s32(sum, vld1q_s32(args.w_start + column)));
  const float32x4_t factor = vmulq_n_f32(vld1q_f32(args.w_scale + column), args.x_scale[row]);
  store_columns(args, vmulq_f32(total, factor), row, panel, quarter);
}

/// Calls block<R> for a number of rows known at run time only.
template <class Type, int R = Type::kMaxRows>
[[maybe_unused]] static inline void block_of(int rows, const GemmArgs& args, std::int64_t row, std::int64_t panel) {
  if constexpr (R > 0) {
    if (rows == R) {
      Type::template block<R>(args, row, panel);
    } else {
      block_of<Type, R - 1>(rows, args, row, panel);
    }
  }
}

/// Rows in blocks of about the same size, panel by panel. Type has kMaxRows and block<R>.
template <class Type>
[[maybe_unused]] static inline void gemm(const GemmArgs& args) {
  const std::int64_t blocks = (args.rows + Type::kMaxRows - 1) / Type::kMaxRows;
  for (std::int64_t panel = args.panel_begin; panel < args.panel_end; ++panel) {
    std::int64_t row = 0;
    for (std::int64_t i = 0; i < blocks; ++i) {
      const int rows = static_cast<int>(args.rows / blocks + (i < args.rows % blocks ? 1 : 0));
      block_of<Type>(rows, args, row, panel);
      row += rows;
    }
  }
}

void attend_tile(const AttentionQueries& queries, const AttentionTile& tile);
void gemm_int8_dotprod(const GemmArgs& args);

}  // namespace tandem::kernels::cpu::neon
