// SPDX-License-Identifier: Apache-2.0
// Linear layers with AVX-512: one register block for all three types, because in each type one 64-byte load holds the
// weights of 16 columns and one 4-byte broadcast the activations that go with it.
//
// Every output element has one accumulator that takes K in ascending order, whatever block it is in: that is what
// makes results independent of the number of rows and threads.
#include "kernels/cpu/avx512.h"

namespace tandem::kernels::cpu::avx512 {
namespace {

/// Rows of the widest block (2 panels): 24 accumulators, which hide the latency and leave room for the operands.
constexpr int kMaxRows = 12;
/// Up to this many rows the weights' way from memory is the limit. Panels are then read one after the other, as one
/// ascending stream, fetched this far ahead.
constexpr int kFewRows = 4;
constexpr std::int64_t kStreamAhead = 4096;

struct F32Type {
  using Sum = __m512;
  static Sum start(const GemmArgs&, std::int64_t) { return _mm512_setzero_ps(); }
  static Sum step(Sum sum, __m512i x, __m512i w) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(x), _mm512_castsi512_ps(w), sum);
  }
  static __m512 result(const GemmArgs& args, Sum sum, std::int64_t, std::int64_t column) {
    return _mm512_add_ps(sum, _mm512_loadu_ps(args.bias + column));
  }
};

struct Bf16Type : F32Type {
  static Sum step(Sum sum, __m512i x, __m512i w) { return _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)w); }
};

struct Int8Type {
  using Sum = __m512i;
  /// Activations are stored plus 128 (int8_x_offset), as the instruction wants them unsigned; w_start takes that away
  /// again.
  static Sum start(const GemmArgs& args, std::int64_t column) { return _mm512_loadu_si512(args.w_start + column); }
  static Sum step(Sum sum, __m512i x, __m512i w) {
    // Not the intrinsic: g++ 12 changes the vector's mode around it and then copies and spills every accumulator.
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(w));
    return sum;
  }
  static __m512 result(const GemmArgs& args, Sum sum, std::int64_t row, std::int64_t column) {
    const __m512 scale = _mm512_mul_ps(_mm512_set1_ps(args.x_scale[row]), _mm512_loadu_ps(args.w_scale + column));
    return _mm512_add_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sum), scale), _mm512_loadu_ps(args.bias + column));
  }
};

template <class Type>
inline void store_result(const GemmArgs& args, typename Type::Sum sum, std::int64_t row, std::int64_t panel) {
  const std::int64_t column = panel * kPanel;
  const __mmask16 lanes = first_lanes(args.n - column);
  float* y = args.y + row * args.ldy + column;
  __m512 value = Type::result(args, sum, row, column);
  if (args.add) value = _mm512_add_ps(_mm512_maskz_loadu_ps(lanes, y), value);
  _mm512_mask_storeu_ps(y, lanes, value);
}

/// R rows x C panels. Fetches what stands `ahead` bytes after the weights it reads; 0 for none.
template <class Type, int R, int C>
void block(const GemmArgs& args, std::int64_t row, std::int64_t panel, std::int64_t ahead) {
  const std::int64_t panel_bytes = args.k_groups * 64;
  const std::byte* w = args.weights + panel * panel_bytes;
  const auto stride = static_cast<std::int64_t>(args.x_stride);
  const std::byte* x = args.x + row * stride;
  typename Type::Sum sum[R][C];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int c = 0; c < C; ++c) sum[r][c] = Type::start(args, (panel + c) * kPanel);
  }
  for (std::int64_t group = 0; group < args.k_groups; ++group) {
    __m512i wv[C];
#pragma GCC unroll 2
    for (int c = 0; c < C; ++c) {
      wv[c] = _mm512_loadu_si512(w + c * panel_bytes);
      // A panel of its own to the first-level cache, the next pair of panels only to the second.
      _mm_prefetch(w + c * panel_bytes + ahead, C == 1 ? _MM_HINT_T0 : _MM_HINT_T1);
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const __m512i xv = _mm512_set1_epi32(*reinterpret_cast<const int*>(x + r * stride));
#pragma GCC unroll 2
      for (int c = 0; c < C; ++c) sum[r][c] = Type::step(sum[r][c], xv, wv[c]);
    }
    w += 64;
    x += 4;
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int c = 0; c < C; ++c) store_result<Type>(args, sum[r][c], row + r, panel + c);
  }
}

/// Calls block<R> for a number of rows known at run time only.
template <class Type, int C, int R = kMaxRows>
void block_of(int rows, const GemmArgs& args, std::int64_t row, std::int64_t panel, std::int64_t ahead) {
  if constexpr (R > 0) {
    if (rows == R) {
      block<Type, R, C>(args, row, panel, ahead);
    } else {
      block_of<Type, C, R - 1>(rows, args, row, panel, ahead);
    }
  }
}

template <class Type>
void gemm(const GemmArgs& args) {
  if (args.rows <= kFewRows) {
    for (std::int64_t panel = args.panel_begin; panel < args.panel_end; ++panel) {
      block_of<Type, 1, kFewRows>(static_cast<int>(args.rows), args, 0, panel, kStreamAhead);
    }
    return;
  }
  // Blocks of nearly equal height: 13 rows are 7 and 6, not 12 and 1.
  const std::int64_t blocks = (args.rows + kMaxRows - 1) / kMaxRows;
  for (std::int64_t panel = args.panel_begin; panel < args.panel_end; panel += 2) {
    std::int64_t row = 0;
    for (std::int64_t i = 0; i < blocks; ++i) {
      const int rows = static_cast<int>(args.rows / blocks + (i < args.rows % blocks ? 1 : 0));
      const std::int64_t ahead = i == 0 ? 2 * args.k_groups * 64 : 0;
      if (panel + 2 <= args.panel_end) {
        block_of<Type, 2>(rows, args, row, panel, ahead);
      } else {
        block_of<Type, 1>(rows, args, row, panel, ahead);
      }
      row += rows;
    }
  }
}

}  // namespace

void prepare_bf16(const float* x, std::int64_t k, std::int64_t k_padded, std::byte* out) {
  for (std::int64_t i = 0; i < k_padded; i += 16) {
    const __m512 value = _mm512_maskz_loadu_ps(first_lanes(k - i), x + i);
    const __m256i bf16 = (__m256i)_mm512_cvtneps_pbh(value);
    _mm256_mask_storeu_epi16(out + 2 * i, first_lanes(k_padded - i), bf16);
  }
}

namespace {

/// Bits of the largest |x|: they order like the values, with NaN above infinity.
inline int max_magnitude(const float* x, std::int64_t k) {
  __m512i max_bits = _mm512_setzero_si512();
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  for (std::int64_t i = 0; i < k; i += 16) {
    const __m512i bits = _mm512_castps_si512(_mm512_maskz_loadu_ps(first_lanes(k - i), x + i));
    max_bits = _mm512_max_epi32(max_bits, _mm512_and_si512(bits, magnitude));
  }
  return _mm512_reduce_max_epi32(max_bits);
}

}  // namespace

void prepare_int8(const float* x, std::int64_t k, std::int64_t k_padded, std::byte* out, float* scale) {
  const int most = max_magnitude(x, k);
  const bool finite = most < 0x7f800000;
  const float step = _mm512_cvtss_f32(_mm512_castsi512_ps(_mm512_set1_epi32(most))) / 127.0F;
  *scale = finite ? step : __builtin_nanf("");
  const bool zero = !finite || step == 0.0F;
  const __m512 divisor = _mm512_set1_ps(zero ? 1.0F : step);
  for (std::int64_t i = 0; i < k_padded; i += 16) {
    const __m512 value = _mm512_maskz_loadu_ps(zero ? __mmask16{0} : first_lanes(k - i), x + i);
    __m512i q = _mm512_cvtps_epi32(_mm512_div_ps(value, divisor));
    // A step that is itself denormal is imprecise, hence the clamp.
    q = _mm512_min_epi32(_mm512_max_epi32(q, _mm512_set1_epi32(-127)), _mm512_set1_epi32(127));
    q = _mm512_add_epi32(q, _mm512_set1_epi32(128));
    _mm_mask_storeu_epi8(out + i, first_lanes(k_padded - i), _mm512_cvtepi32_epi8(q));
  }
}

void prepare_static(const float* x, std::int64_t k, std::int64_t k_padded, const StaticQuantiser& how, std::byte* out,
                    float* scale) {
  const bool finite = max_magnitude(x, k) < 0x7f800000;
  *scale = finite ? 1.0F : __builtin_nanf("");
  const __m512 bound = _mm512_set1_ps(kStaticBound);
  for (std::int64_t i = 0; i < k_padded; i += 16) {
    const __m512 value = _mm512_maskz_loadu_ps(finite ? first_lanes(k - i) : __mmask16{0}, x + i);
    __m512 y = _mm512_add_ps(_mm512_div_ps(value, _mm512_set1_ps(how.scale)), _mm512_set1_ps(how.offset));
    y = _mm512_max_ps(_mm512_min_ps(y, bound), _mm512_sub_ps(_mm512_setzero_ps(), bound));
    __m512i q = _mm512_add_epi32(_mm512_cvtps_epi32(y), _mm512_set1_epi32(how.zero_point));
    q = _mm512_min_epi32(_mm512_max_epi32(q, _mm512_set1_epi32(-128)), _mm512_set1_epi32(127));
    q = _mm512_add_epi32(q, _mm512_set1_epi32(128));
    _mm_mask_storeu_epi8(out + i, first_lanes(k_padded - i), _mm512_cvtepi32_epi8(q));
  }
}

void gemm_f32(const GemmArgs& args) { gemm<F32Type>(args); }
void gemm_bf16(const GemmArgs& args) { gemm<Bf16Type>(args); }
void gemm_int8(const GemmArgs& args) { gemm<Int8Type>(args); }

}  // namespace tandem::kernels::cpu::avx512
