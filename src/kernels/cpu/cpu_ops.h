// SPDX-License-Identifier: Apache-2.0
// Ops on CPUs: partition between threads and scratch here, arithmetic in the table of one instruction set.
#pragma once

#include "kernels/cpu/kernel_table.h"
#include "kernels/kernels.h"

namespace tandem::kernels::cpu {

class CpuOps final : public Ops {
 public:
  CpuOps(Isa isa, const KernelTable& table) : isa_(isa), table_(table) {}

  Isa isa() const override { return isa_; }
  std::unique_ptr<PackedLinear> pack_linear(ThreadTeam& team, WeightType type, std::int64_t out_features,
                                            std::int64_t in_features, const RowReader& read_row,
                                            const float* bias) const override;
  std::unique_ptr<PackedLinear> pack_int8(ThreadTeam& team, std::int64_t out_features, std::int64_t in_features,
                                          const Int8Layer& layer) const override;
  std::unique_ptr<PackedLinear> join(std::vector<std::unique_ptr<PackedLinear>> parts) const override;
  void linear(ThreadTeam& team, const PackedLinear& weights, const float* x, std::int64_t ldx, std::int64_t rows,
              float* y, std::int64_t ldy, Epilogue epilogue) const override;
  void grouped_linear(ThreadTeam& team, std::span<const RowGroup> groups, const float* const* x, float* y,
                      std::int64_t ldy) const override;
  void choose_experts(ThreadTeam& team, const float* logits, std::int64_t rows, std::int32_t num_experts,
                      std::int32_t top_k, bool normalise, std::int32_t* experts, float* weights) const override;
  void add_weighted(ThreadTeam& team, const float* const* parts, const float* weights, std::int32_t count,
                    std::int64_t rows, std::int64_t cols, float* y) const override;
  void rms_norm(ThreadTeam& team, const float* x, std::int64_t ldx, const float* weight, const float* bias, float eps,
                std::int64_t rows, std::int64_t cols, float* y, std::int64_t ldy) const override;
  void rope(ThreadTeam& team, float* x, std::int64_t ldx, std::int64_t rows, std::int32_t num_heads,
            std::int32_t head_dim, const std::int32_t* positions, const float* cos, const float* sin) const override;
  void silu_mul(ThreadTeam& team, const float* gate_up, std::int64_t rows, std::int64_t cols, float* y) const override;
  void store_kv(ThreadTeam& team, std::span<const AttentionSequence> sequences, const float* k, std::int64_t ldk,
                const float* v, std::int64_t ldv, std::span<const PagedKv> ranks) const override;
  void attention(ThreadTeam& team, std::span<const AttentionSequence> sequences, const float* q, std::int64_t ldq,
                 std::int32_t group, float scale, std::span<const PagedKv> ranks, float* out,
                 std::int64_t ldo) const override;

 private:
  void grouped_joined(ThreadTeam& team, std::span<const RowGroup> groups, const float* const* x, float* y,
                      std::int64_t ldy) const;

  Isa isa_;
  const KernelTable& table_;
};

/// The address of a head's vector of position `position` in a sequence; the head is counted on its rank.
inline std::byte* kv_address(const PagedKv& cache, std::span<const std::int32_t> block_table, bool value,
                             std::int64_t head, std::int64_t position) {
  const auto block = static_cast<std::size_t>(block_table[static_cast<std::size_t>(position / cache.block_size)]);
  const auto token = static_cast<std::size_t>(position % cache.block_size);
  return cache.data + block * cache.block_stride + (value ? cache.kv_stride : 0) +
         static_cast<std::size_t>(head) * cache.head_stride + token * cache.vector_bytes();
}

}  // namespace tandem::kernels::cpu
