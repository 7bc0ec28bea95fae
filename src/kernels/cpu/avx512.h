// SPDX-License-Identifier: Apache-2.0
// What the AVX-512 files share: their entry points, and exp. For *_avx512.cc only.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/kernel_table.h"

namespace tandem::kernels::cpu::avx512 {

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

/// The first `count` of 16 lanes; all for count >= 16, none for count <= 0.
[[maybe_unused]] static inline __mmask16 first_lanes(std::int64_t count) {
  return count >= 16 ? __mmask16{0xffff} : (count <= 0 ? __mmask16{0} : static_cast<__mmask16>((1U << count) - 1U));
}

/// exp(x): relative error below 2e-7, exact at 0, underflow to 0, overflow to infinity, NaN to NaN.
[[maybe_unused]] static inline __m512 exp_ps(__m512 x) {
  // Beyond these the result is 0 or infinity anyway. The operand order keeps a NaN.
  x = _mm512_min_ps(_mm512_set1_ps(100.0F), _mm512_max_ps(_mm512_set1_ps(-110.0F), x));
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.442695041F)),
                                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  // ln 2 in two parts, the first with so few bits that n times it is exact.
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693145751953125F), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(1.428606820e-06F), r);
  // 1 + r + r^2 q(r), q interpolated at Chebyshev points of [-ln2/2, ln2/2].
  __m512 q = _mm512_set1_ps(1.392621347e-03F);
  q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(8.363202972e-03F));
  q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(4.166655444e-02F));
  q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(1.666657685e-01F));
  q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(0.5F));
  const __m512 one_plus_r = _mm512_add_ps(r, _mm512_set1_ps(1.0F));
  return _mm512_scalef_ps(_mm512_fmadd_ps(_mm512_mul_ps(r, r), q, one_plus_r), n);
}

/// Sum of 16 lanes in the order (i, i+8), (i, i+4), (i, i+2), (i, i+1).
[[maybe_unused]] static inline float sum_lanes(__m512 v) {
  v = _mm512_add_ps(v, _mm512_shuffle_f32x4(v, v, 0x4E));
  v = _mm512_add_ps(v, _mm512_shuffle_f32x4(v, v, 0xB1));
  v = _mm512_add_ps(v, _mm512_shuffle_ps(v, v, 0x4E));
  v = _mm512_add_ps(v, _mm512_shuffle_ps(v, v, 0xB1));
  return _mm512_cvtss_f32(v);
}

}  // namespace tandem::kernels::cpu::avx512
