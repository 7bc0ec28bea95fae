// SPDX-License-Identifier: Apache-2.0
// Linear layers with AVX2 and FMA. BF16 weights become float32 on the way; int8 goes through exact 16-bit products
// (the 8-bit multiply-add of AVX2 saturates). As everywhere, every output element has one accumulator (for int8 two,
// whose sum is exact) that takes K in ascending order, whatever block it is in.
#include "kernels/cpu/avx2.h"

namespace tandem::kernels::cpu::avx2 {
namespace {

/// How far ahead of the loads the weights are fetched; they are one ascending stream over all panels.
constexpr std::int64_t kStreamAhead = 2048;

/// 16 columns of one row.
struct Columns {
  __m256 low;
  __m256 high;
};

inline void store_columns(const GemmArgs& args, Columns value, std::int64_t row, std::int64_t panel) {
  const std::int64_t column = panel * kPanel;
  const std::int64_t count = args.n - column;
  float* y = args.y + row * args.ldy + column;
  if (args.add) {
    value.low = _mm256_add_ps(load_first(y, count), value.low);
    if (count > 8) value.high = _mm256_add_ps(load_first(y + 8, count - 8), value.high);
  }
  store_first(y, count, value.low);
  if (count > 8) store_first(y + 8, count - 8, value.high);
}

inline Columns add_bias(const GemmArgs& args, Columns value, std::int64_t panel) {
  const float* bias = args.bias + panel * kPanel;
  return {_mm256_add_ps(value.low, _mm256_loadu_ps(bias)), _mm256_add_ps(value.high, _mm256_loadu_ps(bias + 8))};
}

struct F32Type {
  static constexpr int kMaxRows = 6;
  template <int R>
  static void block(const GemmArgs& args, std::int64_t row, std::int64_t panel) {
    const auto* w = reinterpret_cast<const float*>(args.weights) + panel * args.k_groups * kPanel;
    const auto stride = static_cast<std::int64_t>(args.x_stride / sizeof(float));
    const float* x = reinterpret_cast<const float*>(args.x) + row * stride;
    Columns sum[R];
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) sum[r] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (std::int64_t k = 0; k < args.k_groups; ++k, w += kPanel) {
      const __m256 low = _mm256_loadu_ps(w);
      const __m256 high = _mm256_loadu_ps(w + 8);
      _mm_prefetch(reinterpret_cast<const std::byte*>(w) + kStreamAhead, _MM_HINT_T0);
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        const __m256 xv = _mm256_broadcast_ss(x + r * stride + k);
        sum[r].low = _mm256_fmadd_ps(xv, low, sum[r].low);
        sum[r].high = _mm256_fmadd_ps(xv, high, sum[r].high);
      }
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) store_columns(args, add_bias(args, sum[r], panel), row + r, panel);
  }
};

struct Bf16Type {
  static constexpr int kMaxRows = 4;
  /// Activations are float32 values that were rounded to BF16.
  template <int R>
  static void block(const GemmArgs& args, std::int64_t row, std::int64_t panel) {
    const std::byte* w = args.weights + panel * args.k_groups * 64;
    const auto stride = static_cast<std::int64_t>(args.x_stride / sizeof(float));
    const float* x = reinterpret_cast<const float*>(args.x) + row * stride;
    const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000U));
    Columns sum[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) sum[r] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (std::int64_t k = 0; k < 2 * args.k_groups; k += 2, w += 64) {
      const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w));
      const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + 32));
      _mm_prefetch(w + kStreamAhead, _MM_HINT_T0);
      const __m256 even_low = _mm256_castsi256_ps(_mm256_slli_epi32(low, 16));
      const __m256 even_high = _mm256_castsi256_ps(_mm256_slli_epi32(high, 16));
      const __m256 odd_low = _mm256_castsi256_ps(_mm256_and_si256(low, upper));
      const __m256 odd_high = _mm256_castsi256_ps(_mm256_and_si256(high, upper));
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const __m256 x0 = _mm256_broadcast_ss(x + r * stride + k);
        const __m256 x1 = _mm256_broadcast_ss(x + r * stride + k + 1);
        sum[r].low = _mm256_fmadd_ps(x1, odd_low, _mm256_fmadd_ps(x0, even_low, sum[r].low));
        sum[r].high = _mm256_fmadd_ps(x1, odd_high, _mm256_fmadd_ps(x0, even_high, sum[r].high));
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) store_columns(args, add_bias(args, sum[r], panel), row + r, panel);
  }
};

struct Int8Type {
  static constexpr int kMaxRows = 2;

  /// sum += the four products of each column, as two partial sums a column.
  static void step(__m256i& sum, __m256i x, __m256i w) { sum = _mm256_add_epi32(sum, _mm256_madd_epi16(x, w)); }
  /// Partial sums of columns 0..3 and 4..7 to the 8 column sums.
  static __m256i fold(__m256i a, __m256i b) { return _mm256_permute4x64_epi64(_mm256_hadd_epi32(a, b), 0xD8); }

  static __m256 scale(const GemmArgs& args, __m256i sum, std::int64_t row, std::int64_t column) {
    sum = _mm256_add_epi32(sum, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(args.w_start + column)));
    const __m256 factor = _mm256_mul_ps(_mm256_set1_ps(args.x_scale[row]), _mm256_loadu_ps(args.w_scale + column));
    return _mm256_mul_ps(_mm256_cvtepi32_ps(sum), factor);
  }

  template <int R>
  static void block(const GemmArgs& args, std::int64_t row, std::int64_t panel) {
    const std::byte* w = args.weights + panel * args.k_groups * 64;
    const auto stride = static_cast<std::int64_t>(args.x_stride);
    const std::byte* x = args.x + row * stride;
    __m256i sum[R][4];
#pragma GCC unroll 2
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) sum[r][i] = _mm256_setzero_si256();
    }
    for (std::int64_t group = 0; group < args.k_groups; ++group, w += 64, x += 8) {
      _mm_prefetch(w + kStreamAhead, _MM_HINT_T0);
      __m256i xv[R];
#pragma GCC unroll 2
      for (int r = 0; r < R; ++r) {
        xv[r] = _mm256_castpd_si256(_mm256_broadcast_sd(reinterpret_cast<const double*>(x + r * stride)));
      }
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const __m256i wv = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(w + 16 * i)));
#pragma GCC unroll 2
        for (int r = 0; r < R; ++r) step(sum[r][i], xv[r], wv);
      }
    }
#pragma GCC unroll 2
    for (int r = 0; r < R; ++r) {
      const Columns value{scale(args, fold(sum[r][0], sum[r][1]), row + r, panel * kPanel),
                          scale(args, fold(sum[r][2], sum[r][3]), row + r, panel * kPanel + 8)};
      store_columns(args, add_bias(args, value, panel), row + r, panel);
    }
  }
};

/// Calls block<R> for a number of rows known at run time only.
template <class Type, int R = Type::kMaxRows>
void block_of(int rows, const GemmArgs& args, std::int64_t row, std::int64_t panel) {
  if constexpr (R > 0) {
    if (rows == R) {
      Type::template block<R>(args, row, panel);
    } else {
      block_of<Type, R - 1>(rows, args, row, panel);
    }
  }
}

template <class Type>
void gemm(const GemmArgs& args) {
  const std::int64_t blocks = (args.rows + Type::kMaxRows - 1) / Type::kMaxRows;
  for (std::int64_t panel = args.panel_begin; panel < args.panel_end; ++panel) {
    std::int64_t row = 0;
    for (std::int64_t i = 0; i < blocks; ++i) {
      const int rows = static_cast<int>(args.rows / blocks + (i < args.rows % blocks ? 1 : 0));
      block_of<Type>(rows, args, row, panel);
      row += rows;
    }
  }
}

}  // namespace

void prepare_bf16(const float* x, std::int64_t k, std::int64_t k_padded, std::byte* out) {
  auto* rounded = reinterpret_cast<float*>(out);
  for (std::int64_t i = 0; i < k_padded; i += 8) {
    store_first(rounded + i, k_padded - i, _mm256_castsi256_ps(round_to_bf16(load_first(x + i, k - i))));
  }
}

namespace {

/// The largest |x| in every lane: its bits order like the values, with NaN above infinity.
inline __m128i max_magnitude(const float* x, std::int64_t k) {
  __m256i max_bits = _mm256_setzero_si256();
  for (std::int64_t i = 0; i < k; i += 8) {
    const __m256i bits = _mm256_castps_si256(load_first(x + i, k - i));
    max_bits = _mm256_max_epi32(max_bits, _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff)));
  }
  __m128i most4 = _mm_max_epi32(_mm256_castsi256_si128(max_bits), _mm256_extracti128_si256(max_bits, 1));
  most4 = _mm_max_epi32(most4, _mm_shuffle_epi32(most4, 0x4E));
  return _mm_max_epi32(most4, _mm_shuffle_epi32(most4, 0xB1));
}

/// `left` values from q on that are still missing; 8 or 4 at a time.
inline void store_int16(std::int16_t* out, std::int64_t left, __m256i q) {
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1));
  if (left >= 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), words);
  } else {  // k_padded is a multiple of 4
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out), words);
  }
}

}  // namespace

void prepare_int8(const float* x, std::int64_t k, std::int64_t k_padded, std::byte* out, float* scale) {
  const __m128i most4 = max_magnitude(x, k);
  const bool finite = _mm_cvtsi128_si32(most4) < 0x7f800000;
  const float step = _mm_cvtss_f32(_mm_castsi128_ps(most4)) / 127.0F;
  *scale = finite ? step : __builtin_nanf("");
  const bool zero = !finite || step == 0.0F;
  const __m256 divisor = _mm256_set1_ps(zero ? 1.0F : step);
  auto* quantised = reinterpret_cast<std::int16_t*>(out);
  for (std::int64_t i = 0; i < k_padded; i += 8) {
    const __m256 value = zero ? _mm256_setzero_ps() : load_first(x + i, k - i);
    __m256i q = _mm256_cvtps_epi32(_mm256_div_ps(value, divisor));
    // A step that is itself denormal is imprecise, hence the clamp.
    q = _mm256_min_epi32(_mm256_max_epi32(q, _mm256_set1_epi32(-127)), _mm256_set1_epi32(127));
    store_int16(quantised + i, k_padded - i, q);
  }
}

void prepare_static(const float* x, std::int64_t k, std::int64_t k_padded, const StaticQuantiser& how, std::byte* out,
                    float* scale) {
  const bool finite = _mm_cvtsi128_si32(max_magnitude(x, k)) < 0x7f800000;
  *scale = finite ? 1.0F : __builtin_nanf("");
  const __m256 bound = _mm256_set1_ps(kStaticBound);
  auto* quantised = reinterpret_cast<std::int16_t*>(out);
  for (std::int64_t i = 0; i < k_padded; i += 8) {
    const __m256 value = finite ? load_first(x + i, k - i) : _mm256_setzero_ps();
    __m256 y = _mm256_add_ps(_mm256_div_ps(value, _mm256_set1_ps(how.scale)), _mm256_set1_ps(how.offset));
    y = _mm256_max_ps(_mm256_min_ps(y, bound), _mm256_sub_ps(_mm256_setzero_ps(), bound));
    __m256i q = _mm256_add_epi32(_mm256_cvtps_epi32(y), _mm256_set1_epi32(how.zero_point));
    q = _mm256_min_epi32(_mm256_max_epi32(q, _mm256_set1_epi32(-128)), _mm256_set1_epi32(127));
    store_int16(quantised + i, k_padded - i, q);
  }
}

void gemm_f32(const GemmArgs& args) { gemm<F32Type>(args); }
void gemm_bf16(const GemmArgs& args) { gemm<Bf16Type>(args); }
void gemm_int8(const GemmArgs& args) { gemm<Int8Type>(args); }

}  // namespace tandem::kernels::cpu::avx2
