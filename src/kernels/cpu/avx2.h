// SPDX-License-Identifier: Apache-2.0
// What the AVX2 files share: their entry points, partial vectors, and exp. For *_avx2.cc only.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/kernel_table.h"

namespace tandem::kernels::cpu::avx2 {

void prepare_bf16(const float* x, std::int64_t k, std::int64_t k_padded, std::byte* out);
void prepare_int8(const float* x, std::int64_t k, std::int64_t k_padded, std::byte* out, float* scale);
void prepare_static(const float* x, std::int64_t k, std::int64_t k_padded, const StaticQuantiser& how, std::byte* out,
                    float* scale);
void gemm_f32(const GemmArgs& args);
void gemm_bf16(const GemmArgs& args);
void gemm_int8(const GemmArgs& args);
void expand_int8(const std::byte* vector, int head_dim, std::byte* out);
void prepare_query(const float* q, int head_dim, bool kv_bf16, std::byte* out);
void attend_tile(const AttentionQueries& queries, const AttentionTile& tile);
void merge_state(float* into, const float* part, int head_dim);
void finish_state(const float* state, int head_dim, bool kv_bf16, float* out);

/// Mask of the first `count` of 8 lanes; all for count >= 8, none for count <= 0.
[[maybe_unused]] static inline __m256i first_lanes(std::int64_t count) {
  const int bounded = count > 8 ? 8 : (count < 0 ? 0 : static_cast<int>(count));
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(bounded), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
/// The first `count` of 8 floats, zeros after them.
[[maybe_unused]] static inline __m256 load_first(const float* from, std::int64_t count) {
  return count >= 8 ? _mm256_loadu_ps(from) : _mm256_maskload_ps(from, first_lanes(count));
}
[[maybe_unused]] static inline void store_first(float* to, std::int64_t count, __m256 value) {
  if (count >= 8) {
    _mm256_storeu_ps(to, value);
  } else {
    _mm256_maskstore_ps(to, first_lanes(count), value);
  }
}

/// The bits of 8 floats rounded to BF16 (to nearest even, NaN kept), in the upper half of each lane.
[[maybe_unused]] static inline __m256i round_to_bf16(__m256 value) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
  return _mm256_and_si256(_mm256_blendv_epi8(rounded, quiet, is_nan), _mm256_set1_epi32(static_cast<int>(0xffff0000U)));
}

/// exp(x): relative error below 2e-7, exact at 0, underflow to 0, overflow to infinity, NaN to NaN.
[[maybe_unused]] static inline __m256 exp_ps(__m256 x) {
  // Beyond these the result is 0 or infinity anyway. The operand order keeps a NaN.
  x = _mm256_min_ps(_mm256_set1_ps(100.0F), _mm256_max_ps(_mm256_set1_ps(-110.0F), x));
  const __m256 n =
      _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.442695041F)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  // ln 2 in two parts, the first with so few bits that n times it is exact.
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693145751953125F), x);
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(1.428606820e-06F), r);
  // 1 + r + r^2 q(r), q interpolated at Chebyshev points of [-ln2/2, ln2/2].
  __m256 q = _mm256_set1_ps(1.392621347e-03F);
  q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(8.363202972e-03F));
  q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(4.166655444e-02F));
  q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(1.666657685e-01F));
  q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(0.5F));
  const __m256 fraction = _mm256_fmadd_ps(_mm256_mul_ps(r, r), q, _mm256_add_ps(r, _mm256_set1_ps(1.0F)));
  // 2^n as two factors, since n may lie beyond what one exponent can hold.
  const __m256i whole = _mm256_cvtps_epi32(n);
  const __m256i half = _mm256_srai_epi32(whole, 1);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256 first = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
  const __m256i rest = _mm256_sub_epi32(whole, half);
  const __m256 second = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
  return _mm256_mul_ps(_mm256_mul_ps(fraction, first), second);
}

/// Sum of 8 lanes in the order (i, i+4), (i, i+2), (i, i+1).
[[maybe_unused]] static inline float sum_lanes(__m256 v) {
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  half = _mm_add_ss(half, _mm_movehdup_ps(half));
  return _mm_cvtss_f32(half);
}

}  // namespace tandem::kernels::cpu::avx2
