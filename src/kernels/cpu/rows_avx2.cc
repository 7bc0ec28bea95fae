// SPDX-License-Identifier: Apache-2.0
// Row-wise operations with AVX2, and the table of this instruction set.
#include "kernels/cpu/avx2.h"

namespace tandem::kernels::cpu {
namespace avx2 {
namespace {

void rms_norm(const float* x, const float* weight, const float* bias, float eps, std::int64_t cols, float* y) {
  __m256 even = _mm256_setzero_ps();
  __m256 odd = _mm256_setzero_ps();
  for (std::int64_t i = 0; i < cols; i += 16) {
    const __m256 a = load_first(x + i, cols - i);
    const __m256 b = cols - i > 8 ? load_first(x + i + 8, cols - i - 8) : _mm256_setzero_ps();
    even = _mm256_fmadd_ps(a, a, even);
    odd = _mm256_fmadd_ps(b, b, odd);
  }
  const float mean = sum_lanes(_mm256_add_ps(even, odd)) / static_cast<float>(cols);
  const __m128 root = _mm_sqrt_ss(_mm_set_ss(mean + eps));
  const __m256 factor = _mm256_set1_ps(1.0F / _mm_cvtss_f32(root));
  for (std::int64_t i = 0; i < cols; i += 8) {
    const __m256 scaled = _mm256_mul_ps(load_first(x + i, cols - i), factor);
    __m256 result = _mm256_mul_ps(load_first(weight + i, cols - i), scaled);
    if (bias != nullptr) result = _mm256_add_ps(result, load_first(bias + i, cols - i));
    store_first(y + i, cols - i, result);
  }
}

void rope(float* x, int head_dim, const float* cos, const float* sin) {
  const int half = head_dim / 2;
  for (int i = 0; i < half; i += 8) {
    const __m256 a = load_first(x + i, half - i);
    const __m256 b = load_first(x + i + half, half - i);
    const __m256 c = load_first(cos + i, half - i);
    const __m256 s = load_first(sin + i, half - i);
    store_first(x + i, half - i, _mm256_fmsub_ps(a, c, _mm256_mul_ps(b, s)));
    store_first(x + i + half, half - i, _mm256_fmadd_ps(b, c, _mm256_mul_ps(a, s)));
  }
}

void silu_mul(const float* gate, const float* up, std::int64_t cols, float* y) {
  for (std::int64_t i = 0; i < cols; i += 8) {
    const __m256 g = load_first(gate + i, cols - i);
    const __m256 u = load_first(up + i, cols - i);
    const __m256 denominator = _mm256_add_ps(_mm256_set1_ps(1.0F), exp_ps(_mm256_sub_ps(_mm256_setzero_ps(), g)));
    store_first(y + i, cols - i, _mm256_mul_ps(_mm256_div_ps(g, denominator), u));
  }
}

void store_bf16(const float* x, std::int64_t count, std::byte* out) {
  auto* bits = reinterpret_cast<std::uint16_t*>(out);
  for (std::int64_t i = 0; i < count; i += 8) {
    const __m256i rounded = _mm256_srli_epi32(round_to_bf16(load_first(x + i, count - i)), 16);
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
    if (count - i >= 8) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(bits + i), words);
    } else {
      alignas(16) std::uint16_t last[8];
      _mm_store_si128(reinterpret_cast<__m128i*>(last), words);
      for (std::int64_t j = i; j < count; ++j) bits[j] = last[j - i];
    }
  }
}

}  // namespace
}  // namespace avx2

const KernelTable& avx2_table() {
  static constexpr KernelTable kTable{
      .bf16_x_bytes = 4,
      .int8_x_bytes = 2,
      .int8_x_offset = 0,
      .prepare_bf16 = avx2::prepare_bf16,
      .prepare_int8 = avx2::prepare_int8,
      .prepare_static = avx2::prepare_static,
      .gemm_f32 = avx2::gemm_f32,
      .gemm_bf16 = avx2::gemm_bf16,
      .gemm_int8 = avx2::gemm_int8,
      .rms_norm = avx2::rms_norm,
      .rope = avx2::rope,
      .silu_mul = avx2::silu_mul,
      .store_bf16 = avx2::store_bf16,
      .int8_kv_as_bf16 = false,
      .expand_int8 = avx2::expand_int8,
      .prepare_query = avx2::prepare_query,
      .attend_tile = avx2::attend_tile,
      .merge_state = avx2::merge_state,
      .finish_state = avx2::finish_state,
  };
  return kTable;
}

}  // namespace tandem::kernels::cpu
