// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "peak_loops.h"

namespace tandem::bench {
namespace {

constexpr int kChains = 24;  // more than latency times issue width of any core so far

template <class Sum, class Step, class Use>
void busy(std::int64_t rounds, Sum start, const Step& step, const Use& use) {
  Sum sum[kChains];
#pragma GCC unroll 24
  for (int i = 0; i < kChains; ++i) sum[i] = start;
  for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 24
    for (int i = 0; i < kChains; ++i) {
      sum[i] = step(sum[i]);
      asm volatile("" : "+v"(sum[i]));  // keeps the loop from being folded
    }
  }
#pragma GCC unroll 24
  for (int i = 0; i < kChains; ++i) use(sum[i]);
}

}  // namespace

double int8_peak_avx512(std::int64_t rounds) {
  const __m512i a = _mm512_set1_epi8(1);
  busy(
      rounds, _mm512_setzero_si512(), [&](__m512i sum) { return _mm512_dpbusd_epi32(sum, a, a); },
      [](__m512i sum) { asm volatile("" ::"v"(sum)); });
  return static_cast<double>(rounds) * kChains * 128;
}

double bf16_peak_avx512(std::int64_t rounds) {
  const __m512i a = _mm512_set1_epi16(0x3f80);
  busy(
      rounds, _mm512_setzero_ps(), [&](__m512 sum) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)a); },
      [](__m512 sum) { asm volatile("" ::"v"(sum)); });
  return static_cast<double>(rounds) * kChains * 64;
}

double f32_peak_avx512(std::int64_t rounds) {
  const __m512 a = _mm512_set1_ps(0.5F);
  busy(
      rounds, _mm512_setzero_ps(), [&](__m512 sum) { return _mm512_fmadd_ps(a, a, sum); },
      [](__m512 sum) { asm volatile("" ::"v"(sum)); });
  return static_cast<double>(rounds) * kChains * 32;
}

}  // namespace tandem::bench
