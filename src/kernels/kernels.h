// SPDX-License-Identifier: Apache-2.0
// Tensor maths of a transformer on one device. kernels/cpu has three implementations behind this interface, chosen at
// run time: portable (also the oracle of the tests), AVX2+FMA, and AVX-512 with VNNI and BF16.
//
// Batch invariance (docs/architecture.md, "The same tokens every way"): every function computes each row from that row
// alone, with sums over K, over head_dim and over KV positions in one fixed order that does not depend on the number of
// rows, on the number of threads, or on how a prompt is cut into calls. KV positions are tiled at absolute positions.
// A given machine (one Isa) therefore gives bit-equal results alone or batched, chunked or whole, cached or computed.
//
// Activations are float32 between kernels; a linear layer rounds its input to the type of its weights (BF16, or int8
// with one scale per row) and accumulates in float32 or int32.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "kernels/thread_team.h"

namespace tandem::kernels {

/// kAvx2 and kAvx512 on x86-64, kNeon and kDotprod on arm64.
enum class Isa { kPortable, kAvx2, kAvx512, kNeon, kDotprod };
/// On every machine a later one is better, if it has it.
inline constexpr std::array kAllIsas = {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kNeon, Isa::kDotprod};
/// The best this CPU has (kAvx512 needs F, BW, VL, DQ, VNNI and BF16; kDotprod is NEON with SDOT).
Isa detect_isa();
std::string_view isa_name(Isa isa);  ///< "portable", "avx2", "avx512", "neon", "dotprod"

enum class WeightType {
  kF32,
  kBf16,  ///< products of BF16 values, summed in float32 (emulated in float32 where the CPU has no BF16)
  kInt8,  ///< W8A8: int8 per-output-channel weights, int8 per-row activations (spec: model_formats.md 5.4, "Dynamic
          ///< W8A8")
};

/// Weights of y = x * W^T + b in the layout one Ops wants. Immutable; use only with the Ops that packed it.
class PackedLinear {
 public:
  virtual ~PackedLinear() = default;
  virtual WeightType type() const = 0;
  virtual std::int64_t out_features() const = 0;  ///< N
  virtual std::int64_t in_features() const = 0;   ///< K
  virtual std::size_t bytes() const = 0;          ///< memory held
};

/// Writes row `row` of W (in_features floats) to `out`. Called from several threads at once.
using RowReader = std::function<void(std::int64_t row, float* out)>;

/// How an int8 layer with one scale for all its inputs ("static", known from calibration) makes x an integer:
///     xq = clamp(rne(x / scale + offset) + zero_point, -128, 127)
/// The formats differ in whether a zero point counts before the rounding (offset, msModelSlim) or after it
/// (zero_point, compressed-tensors). Spec: model_formats.md 5.1, 5.2.
struct StaticInput {
  float scale = 1.0F;  ///< above 0, finite
  float offset = 0.0F;
  std::int32_t zero_point = 0;

  bool operator==(const StaticInput&) const = default;
};

/// A layer that is int8 already: y = float(sum_k xq[k] * Wq[n][k] + start[n]) * scale[n] * s + bias[n]. Without `input`
/// xq and s are made of each row as for WeightType::kInt8; with it xq is StaticInput's, and s is 1. A row with a value
/// that is not finite becomes NaN either way.
struct Int8Layer {
  /// Writes row `row` of Wq (in_features values). Called from several threads at once.
  std::function<void(std::int64_t row, std::int8_t* out)> read_row;
  std::span<const float> scale;         ///< [N]
  std::span<const std::int32_t> start;  ///< [N], or empty: zeros
  std::span<const float> bias;          ///< [N], or empty: zeros
  std::optional<StaticInput> input;
};

enum class Epilogue {
  kStore,  ///< y = x W^T + b
  kAdd,    ///< y += x W^T + b (the residual stream)
};

enum class KvType {
  kBf16,
  kF32,
  kInt8,  ///< head_dim values and then their float32 scale, max|x| / 127 of the vector, unaligned
};

/// One layer of one rank's paged KV cache, by address. The vector of (block, k_or_v, head, token) stands at
/// data + block*block_stride + k_or_v*kv_stride + head*head_stride + token*vector_bytes(), head counted on this rank.
/// A rank holds the KV heads that its query heads read; another rank may hold the same ones too.
struct PagedKv {
  std::byte* data = nullptr;
  std::size_t block_stride = 0;
  std::size_t kv_stride = 0;
  std::size_t head_stride = 0;
  std::int32_t block_size = 0;     ///< tokens
  std::int32_t first_kv_head = 0;  ///< the model's KV heads [first_kv_head, first_kv_head + num_kv_heads) are here
  std::int32_t num_kv_heads = 0;
  std::int32_t first_head = 0;  ///< the model's query heads [first_head, first_head + num_heads) are this rank's
  std::int32_t num_heads = 0;
  std::int32_t head_dim = 0;
  KvType type = KvType::kBf16;

  std::size_t vector_bytes() const {
    const auto dim = static_cast<std::size_t>(head_dim);
    return type == KvType::kBf16 ? 2 * dim : type == KvType::kF32 ? 4 * dim : dim + sizeof(float);
  }
};

/// The new tokens of one sequence in a step. Token i stands at position first_position + i.
struct AttentionSequence {
  std::int64_t first_row = 0;  ///< row of its first token in q, k, v and out
  std::int64_t num_tokens = 0;
  std::int64_t first_position = 0;            ///< KV of positions [0, first_position) is in the cache already
  std::span<const std::int32_t> block_table;  ///< covers first_position + num_tokens tokens
};

/// Some of the rows of a grouped_linear(): those of one expert.
struct RowGroup {
  const PackedLinear* weights = nullptr;
  std::int64_t num_rows = 0;
};

class Ops {
 public:
  virtual ~Ops() = default;
  virtual Isa isa() const = 0;

  /// bias: out_features floats or nullptr; copied.
  virtual std::unique_ptr<PackedLinear> pack_linear(ThreadTeam& team, WeightType type, std::int64_t out_features,
                                                    std::int64_t in_features, const RowReader& read_row,
                                                    const float* bias) const = 0;
  /// The same for a layer that is int8 already: its integers go into the kernels as they are.
  virtual std::unique_ptr<PackedLinear> pack_int8(ThreadTeam& team, std::int64_t out_features, std::int64_t in_features,
                                                  const Int8Layer& layer) const = 0;
  /// One layer whose outputs are those of `parts` (at least one, of one in_features), in order: what fuses projections
  /// whose weights differ in type or whose static inputs differ. Each part is computed for itself.
  virtual std::unique_ptr<PackedLinear> join(std::vector<std::unique_ptr<PackedLinear>> parts) const = 0;
  /// x [rows, K] with row stride ldx, y [rows, N] with row stride ldy (in floats).
  virtual void linear(ThreadTeam& team, const PackedLinear& weights, const float* x, std::int64_t ldx,
                      std::int64_t rows, float* y, std::int64_t ldy, Epilogue epilogue) const = 0;

  /// Many linear layers with the same K and N in one call, each on rows of its own: the first group has the first rows
  /// of x and y, and so on. x[i] is the address of row i; rows may share one. All threads are busy however the rows are
  /// spread over the groups, and each row gets the bits that linear() gives it. y [rows, N] with row stride ldy.
  virtual void grouped_linear(ThreadTeam& team, std::span<const RowGroup> groups, const float* const* x, float* y,
                              std::int64_t ldy) const = 0;

  // A mixture of experts (spec: model_formats.md 1.3, "MoE block"). Plain code, the same bits on every instruction set.

  /// For each row of router logits [rows, num_experts]: the softmax over all experts, and of it the top_k largest (of
  /// equal ones the lower expert), divided by their sum if `normalise`. experts, weights [rows, top_k], by ascending
  /// expert, which is the order of every later sum. A row with a NaN gets the weights NaN and experts that exist.
  virtual void choose_experts(ThreadTeam& team, const float* logits, std::int64_t rows, std::int32_t num_experts,
                              std::int32_t top_k, bool normalise, std::int32_t* experts, float* weights) const = 0;
  /// y[r] += sum over j < count of weights[r * count + j] * parts[r * count + j][0 .. cols), summed in that order from
  /// 0 and then added. y [rows, cols], dense.
  virtual void add_weighted(ThreadTeam& team, const float* const* parts, const float* weights, std::int32_t count,
                            std::int64_t rows, std::int64_t cols, float* y) const = 0;

  /// y = weight * x / sqrt(mean(x^2) + eps) + bias; x, y [rows, cols] with strides; x may be y. cols may be a head's
  /// dim. bias: cols floats or nullptr.
  virtual void rms_norm(ThreadTeam& team, const float* x, std::int64_t ldx, const float* weight, const float* bias,
                        float eps, std::int64_t rows, std::int64_t cols, float* y, std::int64_t ldy) const = 0;
  /// In place, rotate-half pairing (i, i + head_dim/2), for `num_heads` consecutive heads of each row.
  /// cos, sin [position][head_dim/2]; positions [rows].
  virtual void rope(ThreadTeam& team, float* x, std::int64_t ldx, std::int64_t rows, std::int32_t num_heads,
                    std::int32_t head_dim, const std::int32_t* positions, const float* cos, const float* sin) const = 0;
  /// y[r][i] = silu(gate_up[r][i]) * gate_up[r][cols + i]; gate_up [rows, 2*cols], y [rows, cols].
  virtual void silu_mul(ThreadTeam& team, const float* gate_up, std::int64_t rows, std::int64_t cols,
                        float* y) const = 0;

  // The next two work on the caches of all ranks (at least one; they differ in data, strides and heads only). With a
  // team whose size is a multiple of the ranks, each rank has its own threads, those next to each other. The result has
  // the same bits however heads are split.

  /// Writes k and v (rows with strides ldk, ldv; all KV heads of the model, head_dim each) to the cache slots of the
  /// sequences, every rank its own heads.
  virtual void store_kv(ThreadTeam& team, std::span<const AttentionSequence> sequences, const float* k,
                        std::int64_t ldk, const float* v, std::int64_t ldv, std::span<const PagedKv> ranks) const = 0;
  /// Causal attention of q (row stride ldq, all query heads of the model) over the caches, which already hold the new
  /// tokens. out has row stride ldo. Query head j reads KV head j / group. Slots past a query's position are never read
  /// into the result.
  virtual void attention(ThreadTeam& team, std::span<const AttentionSequence> sequences, const float* q,
                         std::int64_t ldq, std::int32_t group, float scale, std::span<const PagedKv> ranks, float* out,
                         std::int64_t ldo) const = 0;
};

/// The implementation for `isa`; an error if this CPU cannot run it. The object lives for ever.
Result<const Ops*> ops_for(Isa isa);

}  // namespace tandem::kernels
