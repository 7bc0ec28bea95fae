// SPDX-License-Identifier: Apache-2.0
// The kernels of a device with somebody listening to the inputs of linear layers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernels/kernels.h"

namespace tandem::model {

/// Hears of x [rows, layer.in_features()] with row stride ldx before the layer is computed.
using LinearHook =
    std::function<void(const kernels::PackedLinear& layer, const float* x, std::int64_t ldx, std::int64_t rows)>;

class ObservedOps final : public kernels::Ops {
 public:
  ObservedOps(const kernels::Ops& ops, LinearHook hook) : ops_(ops), hook_(std::move(hook)) {}

  kernels::Isa isa() const override { return ops_.isa(); }
  std::unique_ptr<kernels::PackedLinear> pack_linear(kernels::ThreadTeam& team, kernels::WeightType type,
                                                     std::int64_t out_features, std::int64_t in_features,
                                                     const kernels::RowReader& read_row,
                                                     const float* bias) const override {
    return ops_.pack_linear(team, type, out_features, in_features, read_row, bias);
  }
  std::unique_ptr<kernels::PackedLinear> pack_int8(kernels::ThreadTeam& team, std::int64_t out_features,
                                                   std::int64_t in_features,
                                                   const kernels::Int8Layer& layer) const override {
    return ops_.pack_int8(team, out_features, in_features, layer);
  }
  std::unique_ptr<kernels::PackedLinear> join(
      std::vector<std::unique_ptr<kernels::PackedLinear>> parts) const override {
    return ops_.join(std::move(parts));
  }
  void linear(kernels::ThreadTeam& team, const kernels::PackedLinear& weights, const float* x, std::int64_t ldx,
              std::int64_t rows, float* y, std::int64_t ldy, kernels::Epilogue epilogue) const override {
    hook_(weights, x, ldx, rows);
    ops_.linear(team, weights, x, ldx, rows, y, ldy, epilogue);
  }
  void grouped_linear(kernels::ThreadTeam& team, std::span<const kernels::RowGroup> groups, const float* const* x,
                      float* y, std::int64_t ldy) const override {
    const float* const* row = x;
    for (const kernels::RowGroup& group : groups) {
      const std::int64_t cols = group.weights->in_features();
      std::vector<float> rows;
      for (std::int64_t i = 0; i < group.num_rows; ++i, ++row) rows.insert(rows.end(), *row, *row + cols);
      hook_(*group.weights, rows.data(), cols, group.num_rows);
    }
    ops_.grouped_linear(team, groups, x, y, ldy);
  }
  void choose_experts(kernels::ThreadTeam& team, const float* logits, std::int64_t rows, std::int32_t num_experts,
                      std::int32_t top_k, bool normalise, std::int32_t* experts, float* weights) const override {
    ops_.choose_experts(team, logits, rows, num_experts, top_k, normalise, experts, weights);
  }
  void add_weighted(kernels::ThreadTeam& team, const float* const* parts, const float* weights, std::int32_t count,
                    std::int64_t rows, std::int64_t cols, float* y) const override {
    ops_.add_weighted(team, parts, weights, count, rows, cols, y);
  }
  void rms_norm(kernels::ThreadTeam& team, const float* x, std::int64_t ldx, const float* weight, const float* bias,
                float eps, std::int64_t rows, std::int64_t cols, float* y, std::int64_t ldy) const override {
    ops_.rms_norm(team, x, ldx, weight, bias, eps, rows, cols, y, ldy);
  }
  void rope(kernels::ThreadTeam& team, float* x, std::int64_t ldx, std::int64_t rows, std::int32_t num_heads,
            std::int32_t head_dim, const std::int32_t* positions, const float* cos, const float* sin) const override {
    ops_.rope(team, x, ldx, rows, num_heads, head_dim, positions, cos, sin);
  }
  void silu_mul(kernels::ThreadTeam& team, const float* gate_up, std::int64_t rows, std::int64_t cols,
                float* y) const override {
    ops_.silu_mul(team, gate_up, rows, cols, y);
  }
  void store_kv(kernels::ThreadTeam& team, std::span<const kernels::AttentionSequence> sequences, const float* k,
                std::int64_t ldk, const float* v, std::int64_t ldv,
                std::span<const kernels::PagedKv> ranks) const override {
    ops_.store_kv(team, sequences, k, ldk, v, ldv, ranks);
  }
  void attention(kernels::ThreadTeam& team, std::span<const kernels::AttentionSequence> sequences, const float* q,
                 std::int64_t ldq, std::int32_t group, float scale, std::span<const kernels::PagedKv> ranks, float* out,
                 std::int64_t ldo) const override {
    ops_.attention(team, sequences, q, ldq, group, scale, ranks, out, ldo);
  }

 private:
  const kernels::Ops& ops_;
  LinearHook hook_;
};

}  // namespace tandem::model
