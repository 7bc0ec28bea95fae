// SPDX-License-Identifier: Apache-2.0
// Row-wise operations with AVX-512, and the table of this instruction set.
#include "kernels/cpu/avx512.h"

namespace tandem::kernels::cpu {
namespace avx512 {
namespace {

void rms_norm(const float* x, const float* weight, const float* bias, float eps, std::int64_t cols, float* y) {
  __m512 even = _mm512_setzero_ps();
  __m512 odd = _mm512_setzero_ps();
  for (std::int64_t i = 0; i < cols; i += 32) {
    const __m512 a = _mm512_maskz_loadu_ps(first_lanes(cols - i), x + i);
    const __m512 b = _mm512_maskz_loadu_ps(first_lanes(cols - i - 16), x + i + 16);
    even = _mm512_fmadd_ps(a, a, even);
    odd = _mm512_fmadd_ps(b, b, odd);
  }
  const float mean = sum_lanes(_mm512_add_ps(even, odd)) / static_cast<float>(cols);
  const __m128 root = _mm_sqrt_ss(_mm_set_ss(mean + eps));
  const __m512 factor = _mm512_set1_ps(1.0F / _mm_cvtss_f32(root));
  for (std::int64_t i = 0; i < cols; i += 16) {
    const __mmask16 lanes = first_lanes(cols - i);
    const __m512 scaled = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, x + i), factor);
    __m512 result = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, weight + i), scaled);
    if (bias != nullptr) result = _mm512_add_ps(result, _mm512_maskz_loadu_ps(lanes, bias + i));
    _mm512_mask_storeu_ps(y + i, lanes, result);
  }
}

void rope(float* x, int head_dim, const float* cos, const float* sin) {
  const int half = head_dim / 2;
  for (int i = 0; i < half; i += 16) {
    const __mmask16 lanes = first_lanes(half - i);
    const __m512 a = _mm512_maskz_loadu_ps(lanes, x + i);
    const __m512 b = _mm512_maskz_loadu_ps(lanes, x + i + half);
    const __m512 c = _mm512_maskz_loadu_ps(lanes, cos + i);
    const __m512 s = _mm512_maskz_loadu_ps(lanes, sin + i);
    _mm512_mask_storeu_ps(x + i, lanes, _mm512_fmsub_ps(a, c, _mm512_mul_ps(b, s)));
    _mm512_mask_storeu_ps(x + i + half, lanes, _mm512_fmadd_ps(b, c, _mm512_mul_ps(a, s)));
  }
}

void silu_mul(const float* gate, const float* up, std::int64_t cols, float* y) {
  const __m512 one = _mm512_set1_ps(1.0F);
  for (std::int64_t i = 0; i < cols; i += 16) {
    const __mmask16 lanes = first_lanes(cols - i);
    const __m512 g = _mm512_maskz_loadu_ps(lanes, gate + i);
    const __m512 u = _mm512_maskz_loadu_ps(lanes, up + i);
    const __m512 denominator = _mm512_add_ps(one, exp_ps(_mm512_sub_ps(_mm512_setzero_ps(), g)));
    _mm512_mask_storeu_ps(y + i, lanes, _mm512_mul_ps(_mm512_div_ps(g, denominator), u));
  }
}

void store_bf16(const float* x, std::int64_t count, std::byte* out) { prepare_bf16(x, count, count, out); }

}  // namespace
}  // namespace avx512

const KernelTable& avx512_table() {
  static constexpr KernelTable kTable{
      .bf16_x_bytes = 2,
      .int8_x_bytes = 1,
      .int8_x_offset = 128,
      .prepare_bf16 = avx512::prepare_bf16,
      .prepare_int8 = avx512::prepare_int8,
      .prepare_static = avx512::prepare_static,
      .gemm_f32 = avx512::gemm_f32,
      .gemm_bf16 = avx512::gemm_bf16,
      .gemm_int8 = avx512::gemm_int8,
      .rms_norm = avx512::rms_norm,
      .rope = avx512::rope,
      .silu_mul = avx512::silu_mul,
      .store_bf16 = avx512::store_bf16,
      .int8_kv_as_bf16 = true,
      .expand_int8 = avx512::expand_int8,
      .prepare_query = avx512::prepare_query,
      .attend_tile = avx512::attend_tile,
      .merge_state = avx512::merge_state,
      .finish_state = avx512::finish_state,
  };
  return kTable;
}

}  // namespace tandem::kernels::cpu
