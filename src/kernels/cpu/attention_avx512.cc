// SPDX-License-Identifier: Apache-2.0
// One tile of attention with AVX-512. Scores: lanes over the dims of a head, then one fixed tree over the 16 lanes.
// Values: lanes over dims, positions in ascending order; with BF16 two positions in one instruction, (0,1), (2,3), ...
// Each query's operations are the same however many queries are taken together.
#include "kernels/cpu/avx512.h"

namespace tandem::kernels::cpu::avx512 {
namespace {

/// A head vector in pieces of 64 bytes: 32 dims of BF16 or 16 of float32. Only where head_dim is not made of whole
/// pieces do loads need a mask.
template <bool kBf16, bool kWhole>
struct Vector {
  static constexpr int kDims = kBf16 ? 32 : 16;
  static int chunks(int head_dim) { return (head_dim + kDims - 1) / kDims; }
  static __m512i load(const std::byte* at, int chunk, int head_dim) {
    const int left = head_dim - chunk * kDims;
    if (kWhole || left >= kDims) return _mm512_loadu_si512(at + chunk * 64);
    if constexpr (kBf16) {
      return _mm512_maskz_loadu_epi16((1U << left) - 1U, at + chunk * 64);
    } else {
      return _mm512_maskz_loadu_epi32(first_lanes(left), at + chunk * 64);
    }
  }
  static __m512 multiply_add(__m512 sum, __m512i a, __m512i b) {
    if constexpr (kBf16) {
      return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
    } else {
      return _mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), sum);
    }
  }
};

// The tree that turns 16 vectors into the vector of their 16 lane sums: lanes (i, i+8), (i, i+4), (i, i+2), (i, i+1).
inline __m512 halves(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
}
inline __m512 quarters(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xDD));
}
inline __m512 eighths(__m512 a, __m512 b) {
  const __m512d x = _mm512_castps_pd(a);
  const __m512d y = _mm512_castps_pd(b);
  return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
}
inline __m512 lanes(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xDD));
}

/// Products of one position with Q queries, summed over chunks only. kChunks is for heads of whole pieces, 0 for any.
template <bool kBf16, int Q, int kChunks>
inline void products(const std::byte* const q[Q], const std::byte* k, int head_dim, __m512 (&sum)[Q]) {
  using V = Vector<kBf16, (kChunks > 0)>;
#pragma GCC unroll 4
  for (int i = 0; i < Q; ++i) sum[i] = _mm512_setzero_ps();
  if constexpr (kChunks > 0) {
#pragma GCC unroll 8
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const __m512i kv = V::load(k, chunk, head_dim);
#pragma GCC unroll 4
      for (int i = 0; i < Q; ++i) sum[i] = V::multiply_add(sum[i], _mm512_loadu_si512(q[i] + chunk * 64), kv);
    }
  } else {
    for (int chunk = 0; chunk < V::chunks(head_dim); ++chunk) {
      const __m512i kv = V::load(k, chunk, head_dim);
#pragma GCC unroll 4
      for (int i = 0; i < Q; ++i) sum[i] = V::multiply_add(sum[i], _mm512_loadu_si512(q[i] + chunk * 64), kv);
    }
  }
}

/// Scores of 16 positions.
template <bool kBf16, int Q, int kChunks>
inline void scores16(const std::byte* const q[Q], const std::byte* const* k, int head_dim, __m512 (&score)[Q]) {
  // The tree's inputs come in the order that leaves position j in lane j; it is walked depth first, so that few
  // vectors are alive at a time.
  __m512 third[Q][2];
#pragma GCC unroll 2
  for (int c = 0; c < 2; ++c) {
    __m512 second[Q][2];
#pragma GCC unroll 2
    for (int b = 0; b < 2; ++b) {
      __m512 first[Q][2];
#pragma GCC unroll 2
      for (int a = 0; a < 2; ++a) {
        __m512 even[Q];
        __m512 odd[Q];
        const int position = 8 * a + 2 * c + b;
        products<kBf16, Q, kChunks>(q, k[position], head_dim, even);
        products<kBf16, Q, kChunks>(q, k[position + 4], head_dim, odd);
#pragma GCC unroll 4
        for (int i = 0; i < Q; ++i) first[i][a] = halves(even[i], odd[i]);
      }
#pragma GCC unroll 4
      for (int i = 0; i < Q; ++i) second[i][b] = quarters(first[i][0], first[i][1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < Q; ++i) third[i][c] = eighths(second[i][0], second[i][1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < Q; ++i) score[i] = lanes(third[i][0], third[i][1]);
}

constexpr int kGroups = kTile / 16;

/// Fetches `count` vectors of the next tile.
inline void fetch_next(const std::byte* const* vectors, int count, int bytes) {
  for (int i = 0; i < count; ++i) {
    for (int byte = 0; byte < bytes; byte += 64) _mm_prefetch(vectors[i] + byte, _MM_HINT_T1);
  }
}

/// Weights of the tile's positions, as the value product wants them.
struct Weights {
  float correction;                       ///< of the state before
  alignas(64) float f32[kTile];           ///< float32 KV
  alignas(64) std::uint16_t bf16[kTile];  ///< BF16 KV: pairs of positions
};

/// Softmax step of one query: updates maximum and sum of its state.
template <bool kBf16>
inline void soften(const __m512 (&score)[kGroups], int num_positions, float scale, float* state, Weights& weights) {
  __m512 scaled[kGroups];
  __m512 most = _mm512_set1_ps(kNoScore);
#pragma GCC unroll 4
  for (int g = 0; g < kGroups; ++g) {
    const __mmask16 visible = first_lanes(num_positions - 16 * g);
    scaled[g] = _mm512_mask_mul_ps(_mm512_set1_ps(kNoScore), visible, score[g], _mm512_set1_ps(scale));
    most = _mm512_max_ps(most, scaled[g]);
  }
  const float before = state[0];
  const float of_tile = _mm512_reduce_max_ps(most);
  const float maximum = of_tile > before ? of_tile : before;
  __m512 p[kGroups];
#pragma GCC unroll 4
  for (int g = 0; g < kGroups; ++g) {
    const __m512 value = exp_ps(_mm512_sub_ps(scaled[g], _mm512_set1_ps(maximum)));
    p[g] = _mm512_maskz_mov_ps(first_lanes(num_positions - 16 * g), value);
    if constexpr (kBf16) {
      // The sum takes the rounded weights too, so that they still add up to one.
      const __m256i rounded = (__m256i)_mm512_cvtneps_pbh(p[g]);
      _mm256_store_si256(reinterpret_cast<__m256i*>(weights.bf16 + 16 * g), rounded);
      p[g] = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded), 16));
    } else {
      _mm512_store_ps(weights.f32 + 16 * g, p[g]);
    }
  }
  const float total = sum_lanes(_mm512_add_ps(_mm512_add_ps(p[0], p[1]), _mm512_add_ps(p[2], p[3])));
  weights.correction = _mm512_cvtss_f32(exp_ps(_mm512_set1_ps(before - maximum)));
  state[0] = maximum;
  state[1] = state[1] * weights.correction + total;
}

/// Accumulators += weights x values for chunks [first, first + kChunks) of BF16 values. The lanes of a chunk's two
/// accumulators follow the interleave of the two positions: dims 8L + 0..3 in the first, 8L + 4..7 in the second.
template <int Q, int kChunks, bool kWhole>
inline void add_values_bf16(const Weights* weights, const AttentionTile& tile, int head_dim, int first,
                            const std::byte* const* next, float* const sums[Q]) {
  __m512 sum[Q][2 * kChunks];
#pragma GCC unroll 4
  for (int i = 0; i < Q; ++i) {
    const __m512 correction = _mm512_set1_ps(weights[i].correction);
#pragma GCC unroll 8
    for (int c = 0; c < 2 * kChunks; ++c) {
      sum[i][c] = _mm512_mul_ps(correction, _mm512_loadu_ps(sums[i] + 32 * first + 16 * c));
    }
  }
  for (int j = 0; j < tile.num_positions; j += 2) {
    const bool pair = j + 1 < tile.num_positions;
    if (next != nullptr) fetch_next(next + j, 2, 2 * head_dim);
    __m512i p[Q];
#pragma GCC unroll 4
    for (int i = 0; i < Q; ++i) p[i] = _mm512_set1_epi32(*reinterpret_cast<const int*>(weights[i].bf16 + j));
#pragma GCC unroll 4
    for (int c = 0; c < kChunks; ++c) {
      const __m512i a = Vector<true, kWhole>::load(tile.v[j], first + c, head_dim);
      const __m512i b = pair ? Vector<true, kWhole>::load(tile.v[j + 1], first + c, head_dim) : _mm512_setzero_si512();
      const __m512i low = _mm512_unpacklo_epi16(a, b);
      const __m512i high = _mm512_unpackhi_epi16(a, b);
#pragma GCC unroll 4
      for (int i = 0; i < Q; ++i) {
        sum[i][2 * c] = _mm512_dpbf16_ps(sum[i][2 * c], (__m512bh)low, (__m512bh)p[i]);
        sum[i][2 * c + 1] = _mm512_dpbf16_ps(sum[i][2 * c + 1], (__m512bh)high, (__m512bh)p[i]);
      }
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < Q; ++i) {
#pragma GCC unroll 8
    for (int c = 0; c < 2 * kChunks; ++c) _mm512_storeu_ps(sums[i] + 32 * first + 16 * c, sum[i][c]);
  }
}

/// The same for float32 values, lanes in the order of dims.
template <int Q, int kChunks, bool kWhole>
inline void add_values_f32(const Weights* weights, const AttentionTile& tile, int head_dim, int first,
                           const std::byte* const* next, float* const sums[Q]) {
  __m512 sum[Q][kChunks];
#pragma GCC unroll 4
  for (int i = 0; i < Q; ++i) {
#pragma GCC unroll 4
    for (int c = 0; c < kChunks; ++c) {
      sum[i][c] = _mm512_mul_ps(_mm512_set1_ps(weights[i].correction), _mm512_loadu_ps(sums[i] + 16 * (first + c)));
    }
  }
  for (int j = 0; j < tile.num_positions; ++j) {
    if (next != nullptr) fetch_next(next + j, 1, 4 * head_dim);
#pragma GCC unroll 4
    for (int c = 0; c < kChunks; ++c) {
      const __m512 v = _mm512_castsi512_ps(Vector<false, kWhole>::load(tile.v[j], first + c, head_dim));
#pragma GCC unroll 4
      for (int i = 0; i < Q; ++i) sum[i][c] = _mm512_fmadd_ps(_mm512_set1_ps(weights[i].f32[j]), v, sum[i][c]);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < Q; ++i) {
#pragma GCC unroll 4
    for (int c = 0; c < kChunks; ++c) _mm512_storeu_ps(sums[i] + 16 * (first + c), sum[i][c]);
  }
}

template <bool kBf16, int Q, int kChunks, bool kWhole>
inline void add_values(const Weights* weights, const AttentionTile& tile, int head_dim, int first,
                       const std::byte* const* next, float* const sums[Q]) {
  if constexpr (kBf16) {
    add_values_bf16<Q, kChunks, kWhole>(weights, tile, head_dim, first, next, sums);
  } else {
    add_values_f32<Q, kChunks, kWhole>(weights, tile, head_dim, first, next, sums);
  }
}

template <bool kBf16, int Q, bool kWhole>
void all_values(const Weights* weights, const AttentionTile& tile, int head_dim, bool fetch, float* const sums[Q]) {
  const int chunks = Vector<kBf16, kWhole>::chunks(head_dim);
  // Long heads pass several times over the tile; the next one is fetched in the first pass.
  const std::byte* const* next = fetch ? tile.next_v : nullptr;
  int first = 0;
  for (; first + 4 <= chunks; first += 4) add_values<kBf16, Q, 4, kWhole>(weights, tile, head_dim, first, next, sums);
  if (chunks - first == 3) add_values<kBf16, Q, 3, kWhole>(weights, tile, head_dim, first, next, sums);
  if (chunks - first == 2) add_values<kBf16, Q, 2, kWhole>(weights, tile, head_dim, first, next, sums);
  if (chunks - first == 1) add_values<kBf16, Q, 1, kWhole>(weights, tile, head_dim, first, next, sums);
}

template <bool kBf16, int Q, int kChunks>
void attend(const AttentionQueries& queries, int first_query, const AttentionTile& tile) {
  const bool fetch = first_query == 0 && tile.next_k != nullptr;
  const std::byte* q[Q];
  float* state[Q];
  float* sums[Q];
  for (int i = 0; i < Q; ++i) {
    const auto index = static_cast<std::size_t>(first_query + i);
    q[i] = queries.q + index * queries.q_stride;
    state[i] = queries.state + index * queries.state_stride;
    sums[i] = state[i] + kStateHeader;
  }
  __m512 score[Q][kGroups];
  const int vector_bytes = queries.head_dim * (kBf16 ? 2 : 4);
  for (int g = 0; g < kGroups; ++g) {
    if (fetch) fetch_next(tile.next_k + 16 * g, 16, vector_bytes);
    __m512 of_group[Q] = {};
    // Hidden positions of the group are computed too: their addresses can be read, and their scores are masked later.
    if (tile.num_positions > 16 * g) scores16<kBf16, Q, kChunks>(q, tile.k + 16 * g, queries.head_dim, of_group);
    for (int i = 0; i < Q; ++i) score[i][g] = of_group[i];
  }
  Weights weights[Q];
  for (int i = 0; i < Q; ++i) soften<kBf16>(score[i], tile.num_positions, queries.scale, state[i], weights[i]);
  all_values<kBf16, Q, (kChunks > 0)>(weights, tile, queries.head_dim, fetch, sums);
}

template <bool kBf16, int kChunks>
void attend_all(const AttentionQueries& queries, const AttentionTile& tile) {
  // Three at a time: each vector of the tile is loaded once for them, and 24 accumulators of values still fit.
  int i = 0;
  for (; i + 3 <= queries.count; i += 3) attend<kBf16, 3, kChunks>(queries, i, tile);
  if (queries.count - i == 2) attend<kBf16, 2, kChunks>(queries, i, tile);
  if (queries.count - i == 1) attend<kBf16, 1, kChunks>(queries, i, tile);
}

template <bool kBf16>
void attend_type(const AttentionQueries& queries, const AttentionTile& tile) {
  using V = Vector<kBf16, true>;
  switch (queries.head_dim) {
    case V::kDims:
      return attend_all<kBf16, 1>(queries, tile);
    case 2 * V::kDims:
      return attend_all<kBf16, 2>(queries, tile);
    case 4 * V::kDims:
      return attend_all<kBf16, 4>(queries, tile);
    case 8 * V::kDims:
      return attend_all<kBf16, 8>(queries, tile);
    default:
      return attend_all<kBf16, 0>(queries, tile);
  }
}

}  // namespace

void expand_int8(const std::byte* vector, int head_dim, std::byte* out) {
  const __m512 scale = _mm512_set1_ps(_mm_cvtss_f32(_mm_castsi128_ps(_mm_loadu_si32(vector + head_dim))));
  for (int i = 0; i < head_dim; i += 32) {
    const int left = head_dim - i;
    const __mmask32 mask = left >= 32 ? ~__mmask32{0} : (1U << left) - 1U;
    const __m256i values = _mm256_maskz_loadu_epi8(mask, vector + i);
    const __m512i low = _mm512_cvtepi8_epi32(_mm256_castsi256_si128(values));
    const __m512i high = _mm512_cvtepi8_epi32(_mm256_extracti128_si256(values, 1));
    const __m512bh rounded = _mm512_cvtne2ps_pbh(_mm512_mul_ps(_mm512_cvtepi32_ps(high), scale),
                                                 _mm512_mul_ps(_mm512_cvtepi32_ps(low), scale));
    _mm512_mask_storeu_epi16(out + 2 * i, mask, (__m512i)rounded);
  }
}

void prepare_query(const float* q, int head_dim, bool kv_bf16, std::byte* out) {
  if (kv_bf16) {
    prepare_bf16(q, head_dim, padded_dim(head_dim), out);
    return;
  }
  for (int i = 0; i < padded_dim(head_dim); i += 16) {
    _mm512_storeu_ps(out + 4 * i, _mm512_maskz_loadu_ps(first_lanes(head_dim - i), q + i));
  }
}

void attend_tile(const AttentionQueries& queries, const AttentionTile& tile) {
  if (queries.kv_bf16) {
    attend_type<true>(queries, tile);
  } else {
    attend_type<false>(queries, tile);
  }
}

void merge_state(float* into, const float* part, int head_dim) {
  const float maximum = into[0] > part[0] ? into[0] : part[0];
  const __m512 a = exp_ps(_mm512_set1_ps(into[0] - maximum));
  const __m512 b = exp_ps(_mm512_set1_ps(part[0] - maximum));
  into[0] = maximum;
  into[1] = into[1] * _mm512_cvtss_f32(a) + part[1] * _mm512_cvtss_f32(b);
  for (int i = kStateHeader; i < kStateHeader + padded_dim(head_dim); i += 16) {
    const __m512 later = _mm512_mul_ps(_mm512_loadu_ps(part + i), b);
    _mm512_storeu_ps(into + i, _mm512_fmadd_ps(_mm512_loadu_ps(into + i), a, later));
  }
}

void finish_state(const float* state, int head_dim, bool kv_bf16, float* out) {
  const __m512 inverse = _mm512_set1_ps(1.0F / state[1]);
  const float* sums = state + kStateHeader;
  // Undoes the interleave of add_values_bf16 in units of 4 lanes: first, second, first, second, ...
  const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i high = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  for (int i = 0; i < head_dim; i += 32) {
    __m512 a = _mm512_loadu_ps(sums + i);
    __m512 b = _mm512_loadu_ps(sums + i + 16);
    if (kv_bf16) {
      const __m512 first = _mm512_permutex2var_ps(a, low, b);
      b = _mm512_permutex2var_ps(a, high, b);
      a = first;
    }
    _mm512_mask_storeu_ps(out + i, first_lanes(head_dim - i), _mm512_mul_ps(a, inverse));
    _mm512_mask_storeu_ps(out + i + 16, first_lanes(head_dim - i - 16), _mm512_mul_ps(b, inverse));
  }
}

}  // namespace tandem::kernels::cpu::avx512
