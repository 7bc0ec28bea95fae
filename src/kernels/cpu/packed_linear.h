// SPDX-License-Identifier: Apache-2.0
// Weights in panels of 16 output columns, the one layout of all CPU kernels (cpu/kernel_table.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cpu/kernel_table.h"
#include "kernels/kernels.h"

namespace tandem::kernels::cpu {

/// Values of K that stand side by side in a panel: 1, 2 or 4.
int k_group(WeightType type);

class CpuPackedLinear final : public PackedLinear {
 public:
  CpuPackedLinear(WeightType type, std::int64_t out_features, std::int64_t in_features);

  WeightType type() const override { return type_; }
  std::int64_t out_features() const override { return n_; }
  std::int64_t in_features() const override { return k_; }
  std::size_t bytes() const override;

  std::int64_t num_panels() const { return num_panels_; }
  std::int64_t k_padded() const { return k_padded_; }
  std::size_t panel_bytes() const { return panel_bytes_; }
  const std::byte* weights() const { return weights_.get(); }
  const float* bias() const { return bias_.data(); }
  const float* scales() const { return scales_.data(); }
  const std::int32_t* offsets() const { return offsets_.data(); }

  /// Reads all rows, shared between the team's threads by whole panels.
  void fill(ThreadTeam& team, const RowReader& read_row, const float* bias);

 private:
  void pack_row(std::int64_t n, const float* row, std::uint32_t* words);
  void pack_int8_row(std::int64_t n, const float* row, std::int8_t* out);
  void interleave(std::int64_t panel, const std::uint32_t* words, std::size_t stride);

  WeightType type_;
  std::int64_t n_;
  std::int64_t k_;
  std::int64_t k_padded_;
  std::int64_t num_panels_;
  std::size_t panel_bytes_;
  std::shared_ptr<std::byte> weights_;  ///< may be part of a slab
  std::vector<float> bias_;             ///< zeros where there is none
  std::vector<float> scales_;           ///< int8 only
  std::vector<std::int32_t> offsets_;   ///< int8 only: -128 * column sum
};

}  // namespace tandem::kernels::cpu
