// SPDX-License-Identifier: Apache-2.0
// Linear layers in int8 with arm64's dot product (SDOT): four exact products of a column added to its one accumulator.
#include "kernels/cpu/neon.h"

namespace tandem::kernels::cpu::neon {
namespace {

struct DotType {
  static constexpr int kMaxRows = 4;
  template <int R>
  static void block(const GemmArgs& args, std::int64_t row, std::int64_t panel) {
    const auto* w = reinterpret_cast<const std::int8_t*>(args.weights) + panel * args.k_groups * 64;
    const auto stride = static_cast<std::int64_t>(args.x_stride);
    const auto* x = reinterpret_cast<const std::int32_t*>(args.x + row * stride);
    int32x4_t sum[R][4] = {};
    for (std::int64_t group = 0; group < args.k_groups; ++group, w += 64) {
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) {
        const int8x16_t columns = vld1q_s8(w + 16 * c);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          const int8x16_t xv = vreinterpretq_s8_s32(vdupq_n_s32(x[r * (stride / 4) + group]));
          sum[r][c] = vdotq_s32(sum[r][c], columns, xv);
        }
      }
    }
    for (int r = 0; r < R; ++r)
      for (int c = 0; c < 4; ++c) store_int8_columns(args, sum[r][c], row + r, panel, c);
  }
};

}  // namespace

void gemm_int8_dotprod(const GemmArgs& args) { gemm<DotType>(args); }

}  // namespace tandem::kernels::cpu::neon
