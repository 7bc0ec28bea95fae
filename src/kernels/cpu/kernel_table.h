// SPDX-License-Identifier: Apache-2.0
// The seam between the baseline code (partition, scratch, packing) and the code that is compiled for one instruction
// set: a table of plain functions. Files compiled with -m flags include this header and their intrinsics only; an
// inline function of the standard library instantiated there could be linked into baseline code and fault on older
// CPUs.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tandem::kernels::cpu {

/// Output columns of a packed panel. Weights are stored as [N/16][K/group][16][group] with group 1 (float32),
/// 2 (BF16) or 4 (int8), padded with zeros in N and K.
inline constexpr std::int64_t kPanel = 16;

/// KV positions that one attention step covers, cut at absolute multiples.
inline constexpr int kTile = 64;
/// Tiles of one online-softmax run; runs are merged in order, so that a long sequence can be shared by threads.
inline constexpr int kTilesPerPartition = 8;

/// Rows x panels [panel_begin, panel_end) of one linear layer; x was written by the table's prepare functions.
struct GemmArgs {
  const std::byte* x;
  std::size_t x_stride;  ///< bytes between rows
  const float* x_scale;  ///< int8: one per row
  std::int64_t rows;
  const std::byte* weights;     ///< panel 0
  std::int64_t k_groups;        ///< padded K / group
  const float* bias;            ///< padded to whole panels
  const float* w_scale;         ///< int8: one per column, padded
  const std::int32_t* w_start;  ///< int8: what the sum of each column starts from, padded
  std::int64_t panel_begin;
  std::int64_t panel_end;
  std::int64_t n;  ///< real columns; the last panel may be partly padding
  float* y;
  std::int64_t ldy;
  bool add;  ///< y += instead of y =
};

/// Head vectors of kTile consecutive positions. The first num_positions are visible to the queries they are used with;
/// the others have addresses that can be read, but whatever stands there must not reach the result.
struct AttentionTile {
  const std::byte* const* k;
  const std::byte* const* v;
  int num_positions;
  /// The kTile vectors of the tile that will be asked for after this one, to be fetched meanwhile; nullptr for none.
  const std::byte* const* next_k;
  const std::byte* const* next_v;
};

/// Queries of one KV head with their running softmax state.
/// State: [0] maximum, [1] sum, [kStateHeader...) accumulator in an order of dims that the table's code chooses.
struct AttentionQueries {
  const std::byte* q;    ///< prepared vectors
  std::size_t q_stride;  ///< bytes
  float* state;
  std::size_t state_stride;  ///< floats
  int count;
  int head_dim;
  float scale;
  bool kv_bf16;
};
inline constexpr int kStateHeader = 16;
/// "No score yet": finite, so that no infinities are subtracted.
inline constexpr float kNoScore = -1e30F;

/// kernels.h, StaticInput.
struct StaticQuantiser {
  float scale;
  float offset;
  std::int32_t zero_point;
};
/// Bounds of x / scale + offset before it is rounded; past them the result is the same, whatever the zero point.
inline constexpr float kStaticBound = 512.0F;

struct KernelTable {
  int bf16_x_bytes;  ///< size of one prepared element
  int int8_x_bytes;
  /// What the prepare functions add to int8 values (128 where the instruction wants them unsigned). Packing takes
  /// int8_x_offset times the sum of a column from its w_start.
  int int8_x_offset;

  /// Rounds k floats to BF16 and pads with zeros to k_padded.
  void (*prepare_bf16)(const float* x, std::int64_t k, std::int64_t k_padded, std::byte* out);
  /// One scale for the row: max|x|/127, values x/scale rounded half to even. A row with a non-finite value gets the
  /// scale NaN.
  void (*prepare_int8)(const float* x, std::int64_t k, std::int64_t k_padded, std::byte* out, float* scale);
  /// int8 values with a scale that is known before. The row's scale becomes 1, or NaN if a value is not finite.
  void (*prepare_static)(const float* x, std::int64_t k, std::int64_t k_padded, const StaticQuantiser& how,
                         std::byte* out, float* scale);
  void (*gemm_f32)(const GemmArgs& args);
  void (*gemm_bf16)(const GemmArgs& args);
  void (*gemm_int8)(const GemmArgs& args);

  /// bias may be nullptr.
  void (*rms_norm)(const float* x, const float* weight, const float* bias, float eps, std::int64_t cols, float* y);
  /// One head; cos and sin of its position.
  void (*rope)(float* x, int head_dim, const float* cos, const float* sin);
  void (*silu_mul)(const float* gate, const float* up, std::int64_t cols, float* y);
  void (*store_bf16)(const float* x, std::int64_t count, std::byte* out);

  /// Attention over int8 KV expands each tile first: to BF16 where that is the faster type, to float32 otherwise.
  bool int8_kv_as_bf16;
  /// One int8 vector (head_dim values, then their scale) as head_dim values of that type.
  void (*expand_int8)(const std::byte* vector, int head_dim, std::byte* out);

  /// Writes padded_dim(head_dim) * 4 bytes at most.
  void (*prepare_query)(const float* q, int head_dim, bool kv_bf16, std::byte* out);
  void (*attend_tile)(const AttentionQueries& queries, const AttentionTile& tile);
  /// into = the softmax state over both position ranges, `part` being the later one.
  void (*merge_state)(float* into, const float* part, int head_dim);
  void (*finish_state)(const float* state, int head_dim, bool kv_bf16, float* out);
};

// Of internal linkage, as everything here that has code: each file keeps its own instructions.
[[maybe_unused]] static inline int padded_dim(int head_dim) { return (head_dim + 31) / 32 * 32; }

const KernelTable& portable_table();
#if defined(__x86_64__)
const KernelTable& avx2_table();
const KernelTable& avx512_table();
#elif defined(__aarch64__)
const KernelTable& neon_table();
const KernelTable& dotprod_table();  ///< neon_table() with int8 by SDOT
#endif

}  // namespace tandem::kernels::cpu
