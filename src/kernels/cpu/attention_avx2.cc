// SPDX-License-Identifier: Apache-2.0
// One tile of attention with AVX2, in float32 for both types of KV. Scores: lanes over the dims of a head, then one
// fixed tree over the 8 lanes. Values: lanes over dims, positions in ascending order.
#include "kernels/cpu/avx2.h"

namespace tandem::kernels::cpu::avx2 {
namespace {

/// Dims [first, first + 8) of a head vector as float32; zeros past head_dim.
template <bool kBf16>
inline __m256 load_dims(const std::byte* vector, int first, int head_dim) {
  const int left = head_dim - first;
  if constexpr (kBf16) {
    const std::byte* at = vector + 2 * first;
    alignas(16) std::uint16_t last[8] = {};
    if (left < 8) {
      for (int i = 0; i < left; ++i) last[i] = reinterpret_cast<const std::uint16_t*>(at)[i];
      at = reinterpret_cast<const std::byte*>(last);
    }
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  } else {
    return load_first(reinterpret_cast<const float*>(vector) + first, left);
  }
}

/// Lane sums of 8 vectors, in order: lanes (i, i+1), then (i, i+2), then (i, i+4).
inline __m256 sum_each(const __m256 (&v)[8]) {
  const __m256 a = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
  const __m256 b = _mm256_hadd_ps(_mm256_hadd_ps(v[4], v[5]), _mm256_hadd_ps(v[6], v[7]));
  return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}

template <bool kBf16>
inline __m256 scores8(const float* q, const std::byte* const* k, int head_dim) {
  __m256 sum[8];
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) sum[j] = _mm256_setzero_ps();
  for (int i = 0; i < head_dim; i += 8) {
    const __m256 qv = _mm256_loadu_ps(q + i);
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) sum[j] = _mm256_fmadd_ps(qv, load_dims<kBf16>(k[j], i, head_dim), sum[j]);
  }
  return sum_each(sum);
}

/// Softmax step of one query: scores become weights (0 where hidden); updates maximum and sum of its state and returns
/// the correction of what was summed before.
inline float soften(float (&weights)[kTile], int num_positions, float* state) {
  __m256 most = _mm256_set1_ps(kNoScore);
  for (int j = 0; j < kTile; j += 8) most = _mm256_max_ps(most, _mm256_load_ps(weights + j));
  __m128 most4 = _mm_max_ps(_mm256_castps256_ps128(most), _mm256_extractf128_ps(most, 1));
  most4 = _mm_max_ps(most4, _mm_movehl_ps(most4, most4));
  most4 = _mm_max_ss(most4, _mm_movehdup_ps(most4));
  const float before = state[0];
  const float of_tile = _mm_cvtss_f32(most4);
  const float maximum = of_tile > before ? of_tile : before;
  __m256 total = _mm256_setzero_ps();
  for (int j = 0; j < kTile; j += 8) {
    const __m256 p = exp_ps(_mm256_sub_ps(_mm256_load_ps(weights + j), _mm256_set1_ps(maximum)));
    const __m256 visible = _mm256_and_ps(p, _mm256_castsi256_ps(first_lanes(num_positions - j)));
    _mm256_store_ps(weights + j, visible);
    total = _mm256_add_ps(total, visible);
  }
  const float correction = _mm_cvtss_f32(_mm256_castps256_ps128(exp_ps(_mm256_set1_ps(before - maximum))));
  state[0] = maximum;
  state[1] = state[1] * correction + sum_lanes(total);
  return correction;
}

/// Accumulators of dims [first, first + 8 * kChunks) += weights x values.
template <bool kBf16, int kChunks>
inline void add_values(const float* weights, const AttentionTile& tile, int head_dim, int first, float correction,
                       float* sums) {
  __m256 sum[kChunks];
#pragma GCC unroll 8
  for (int c = 0; c < kChunks; ++c) {
    sum[c] = _mm256_mul_ps(_mm256_set1_ps(correction), _mm256_loadu_ps(sums + first + 8 * c));
  }
  for (int j = 0; j < tile.num_positions; ++j) {
    const __m256 p = _mm256_broadcast_ss(weights + j);
#pragma GCC unroll 8
    for (int c = 0; c < kChunks; ++c) {
      sum[c] = _mm256_fmadd_ps(p, load_dims<kBf16>(tile.v[j], first + 8 * c, head_dim), sum[c]);
    }
  }
#pragma GCC unroll 8
  for (int c = 0; c < kChunks; ++c) _mm256_storeu_ps(sums + first + 8 * c, sum[c]);
}

inline void fetch_next(const std::byte* const* vectors, int count, int bytes) {
  for (int i = 0; i < count; ++i) {
    for (int byte = 0; byte < bytes; byte += 64) _mm_prefetch(vectors[i] + byte, _MM_HINT_T1);
  }
}

template <bool kBf16>
void attend(const AttentionQueries& queries, int index, const AttentionTile& tile) {
  const int head_dim = queries.head_dim;
  const auto offset = static_cast<std::size_t>(index);
  const auto* q = reinterpret_cast<const float*>(queries.q + offset * queries.q_stride);
  float* state = queries.state + offset * queries.state_stride;
  const bool fetch = index == 0 && tile.next_k != nullptr;
  const int bytes = head_dim * (kBf16 ? 2 : 4);
  alignas(32) float weights[kTile];
  for (int j = 0; j < kTile; j += 8) {
    if (fetch) fetch_next(tile.next_k + j, 8, bytes);
    __m256 score = _mm256_setzero_ps();
    if (j < tile.num_positions) score = scores8<kBf16>(q, tile.k + j, head_dim);
    const __m256 visible = _mm256_castsi256_ps(first_lanes(tile.num_positions - j));
    const __m256 scaled = _mm256_mul_ps(score, _mm256_set1_ps(queries.scale));
    _mm256_store_ps(weights + j, _mm256_blendv_ps(_mm256_set1_ps(kNoScore), scaled, visible));
  }
  const float correction = soften(weights, tile.num_positions, state);
  if (fetch) fetch_next(tile.next_v, kTile, bytes);
  float* sums = state + kStateHeader;
  int first = 0;
  for (; first + 64 <= head_dim; first += 64) {
    add_values<kBf16, 8>(weights, tile, head_dim, first, correction, sums);
  }
  for (; first + 32 <= head_dim; first += 32) {
    add_values<kBf16, 4>(weights, tile, head_dim, first, correction, sums);
  }
  for (; first < head_dim; first += 8) add_values<kBf16, 1>(weights, tile, head_dim, first, correction, sums);
}

}  // namespace

void expand_int8(const std::byte* vector, int head_dim, std::byte* out) {
  const __m256 scale = _mm256_set1_ps(_mm_cvtss_f32(_mm_castsi128_ps(_mm_loadu_si32(vector + head_dim))));
  auto* expanded = reinterpret_cast<float*>(out);
  for (int i = 0; i < head_dim; i += 8) {
    const std::byte* at = vector + i;
    alignas(8) std::byte last[8] = {};
    if (head_dim - i < 8) {
      for (int j = 0; j < head_dim - i; ++j) last[j] = at[j];
      at = last;
    }
    const __m256i values = _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)));
    store_first(expanded + i, head_dim - i, _mm256_mul_ps(_mm256_cvtepi32_ps(values), scale));
  }
}

void prepare_query(const float* q, int head_dim, bool /*kv_bf16*/, std::byte* out) {
  auto* padded = reinterpret_cast<float*>(out);
  for (int i = 0; i < head_dim; i += 8) _mm256_storeu_ps(padded + i, load_first(q + i, head_dim - i));
}

void attend_tile(const AttentionQueries& queries, const AttentionTile& tile) {
  for (int i = 0; i < queries.count; ++i) {
    if (queries.kv_bf16) {
      attend<true>(queries, i, tile);
    } else {
      attend<false>(queries, i, tile);
    }
  }
}

void merge_state(float* into, const float* part, int head_dim) {
  const float maximum = into[0] > part[0] ? into[0] : part[0];
  const __m256 a = exp_ps(_mm256_set1_ps(into[0] - maximum));
  const __m256 b = exp_ps(_mm256_set1_ps(part[0] - maximum));
  into[0] = maximum;
  into[1] = into[1] * _mm256_cvtss_f32(a) + part[1] * _mm256_cvtss_f32(b);
  for (int i = kStateHeader; i < kStateHeader + head_dim; i += 8) {
    const __m256 later = _mm256_mul_ps(_mm256_loadu_ps(part + i), b);
    _mm256_storeu_ps(into + i, _mm256_fmadd_ps(_mm256_loadu_ps(into + i), a, later));
  }
}

void finish_state(const float* state, int head_dim, bool /*kv_bf16*/, float* out) {
  const __m256 inverse = _mm256_set1_ps(1.0F / state[1]);
  for (int i = 0; i < head_dim; i += 8) {
    store_first(out + i, head_dim - i, _mm256_mul_ps(_mm256_loadu_ps(state + kStateHeader + i), inverse));
  }
}

}  // namespace tandem::kernels::cpu::avx2
