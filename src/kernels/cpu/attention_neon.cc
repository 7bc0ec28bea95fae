// SPDX-License-Identifier: Apache-2.0
// One tile of attention with NEON, in float32 for both types of KV. Scores: lanes over the dims of a head, then one
// fixed tree over the 4 lanes. Values: lanes over dims, positions in ascending order.
#include "kernels/cpu/neon.h"

namespace tandem::kernels::cpu::neon {
namespace {

/// Dims [first, first + 4) of a head vector as float32; zeros past head_dim.
template <bool kBf16>
inline float32x4_t load_dims(const std::byte* vector, int first, int head_dim) {
  if constexpr (kBf16) {
    const auto* at = reinterpret_cast<const std::uint16_t*>(vector) + first;
    std::uint16_t last[4] = {};
    if (head_dim - first < 4) {
      for (int i = 0; i < head_dim - first; ++i) last[i] = at[i];
      at = last;
    }
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(at), 16));
  } else {
    return load_first(reinterpret_cast<const float*>(vector) + first, head_dim - first);
  }
}

/// q times the vectors of 4 positions.
template <bool kBf16>
inline float32x4_t scores4(const float* q, const std::byte* const* k, int head_dim) {
  float32x4_t sum[4] = {};
  for (int i = 0; i < head_dim; i += 4) {
    const float32x4_t qv = load_first(q + i, head_dim - i);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) sum[j] = vfmaq_f32(sum[j], qv, load_dims<kBf16>(k[j], i, head_dim));
  }
  return vpaddq_f32(vpaddq_f32(sum[0], sum[1]), vpaddq_f32(sum[2], sum[3]));
}

/// Lanes first..first+3 that are below `count`.
inline uint32x4_t visible(int first, int count) {
  const std::int32_t lanes[4] = {first, first + 1, first + 2, first + 3};
  return vcltq_s32(vld1q_s32(lanes), vdupq_n_s32(count));
}

/// Softmax step of one query: scores become weights (0 where hidden); updates maximum and sum of its state and returns
/// the correction of what was summed before.
inline float soften(float (&weights)[kTile], int num_positions, float* state) {
  float32x4_t most = vdupq_n_f32(state[0]);
  for (int j = 0; j < kTile; j += 4) most = vmaxnmq_f32(most, vld1q_f32(weights + j));
  const float before = state[0];
  const float maximum = vmaxnmvq_f32(most);
  float32x4_t total = vdupq_n_f32(0.0F);
  for (int j = 0; j < kTile; j += 4) {
    const float32x4_t p = exp_ps(vsubq_f32(vld1q_f32(weights + j), vdupq_n_f32(maximum)));
    const float32x4_t shown = vbslq_f32(visible(j, num_positions), p, vdupq_n_f32(0.0F));
    vst1q_f32(weights + j, shown);
    total = vaddq_f32(total, shown);
  }
  const float correction = vgetq_lane_f32(exp_ps(vdupq_n_f32(before - maximum)), 0);
  state[0] = maximum;
  state[1] = state[1] * correction + vaddvq_f32(total);
  return correction;
}

/// Accumulators of dims [first, first + 4 * kChunks) += weights x values.
template <bool kBf16, int kChunks>
inline void add_values(const float* weights, const AttentionTile& tile, int head_dim, int first, float correction,
                       float* sums) {
  float32x4_t sum[kChunks];
#pragma GCC unroll 8
  for (int c = 0; c < kChunks; ++c) sum[c] = vmulq_n_f32(vld1q_f32(sums + first + 4 * c), correction);
  for (int j = 0; j < tile.num_positions; ++j) {
#pragma GCC unroll 8
    for (int c = 0; c < kChunks; ++c)
      sum[c] = vfmaq_n_f32(sum[c], load_dims<kBf16>(tile.v[j], first + 4 * c, head_dim), weights[j]);
  }
#pragma GCC unroll 8
  for (int c = 0; c < kChunks; ++c) vst1q_f32(sums + first + 4 * c, sum[c]);
}

template <bool kBf16>
void attend(const AttentionQueries& queries, int index, const AttentionTile& tile) {
  const auto offset = static_cast<std::size_t>(index);
  const auto* q = reinterpret_cast<const float*>(queries.q + offset * queries.q_stride);
  float* state = queries.state + offset * queries.state_stride;
  const int head_dim = queries.head_dim;
  float weights[kTile];
  for (int j = 0; j < kTile; j += 4) {
    float32x4_t score = vdupq_n_f32(kNoScore);
    if (j < tile.num_positions) {
      const float32x4_t scaled = vmulq_n_f32(scores4<kBf16>(q, tile.k + j, head_dim), queries.scale);
      score = vbslq_f32(visible(j, tile.num_positions), scaled, score);
    }
    vst1q_f32(weights + j, score);
  }
  const float correction = soften(weights, tile.num_positions, state);
  float* sums = state + kStateHeader;
  int first = 0;
  for (; first + 32 <= head_dim; first += 32) {
    add_values<kBf16, 8>(weights, tile, head_dim, first, correction, sums);
  }
  for (; first < head_dim; first += 4) add_values<kBf16, 1>(weights, tile, head_dim, first, correction, sums);
}

}  // namespace

void attend_tile(const AttentionQueries& queries, const AttentionTile& tile) {
  for (int i = 0; i < queries.count; ++i) {
    if (queries.kv_bf16) {
      attend<true>(queries, i, tile);
    } else {
      attend<false>(queries, i, tile);
    }
  }
}

}  // namespace tandem::kernels::cpu::neon
