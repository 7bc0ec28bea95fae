// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "peak_loops.h"

namespace tandem::bench {
namespace {

constexpr int kChains = 12;

}  // namespace

double int8_peak_avx2(std::int64_t rounds) {
  // Exact int8 without VNNI is a 16-bit multiply-add plus an addition.
  const __m256i a = _mm256_set1_epi16(1);
  __m256i sum[kChains];
#pragma GCC unroll 12
  for (int i = 0; i < kChains; ++i) sum[i] = _mm256_setzero_si256();
  for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) {
      __m256i x = a;
      asm volatile("" : "+x"(x));
      sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(x, a));
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < kChains; ++i) asm volatile("" ::"x"(sum[i]));
  return static_cast<double>(rounds) * kChains * 32;
}

double f32_peak_avx2(std::int64_t rounds) {
  const __m256 a = _mm256_set1_ps(0.5F);
  __m256 sum[kChains];
#pragma GCC unroll 12
  for (int i = 0; i < kChains; ++i) sum[i] = _mm256_setzero_ps();
  for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) {
      sum[i] = _mm256_fmadd_ps(a, a, sum[i]);
      asm volatile("" : "+x"(sum[i]));
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < kChains; ++i) asm volatile("" ::"x"(sum[i]));
  return static_cast<double>(rounds) * kChains * 16;
}

}  // namespace tandem::bench
