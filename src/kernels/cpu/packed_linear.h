// SPDX-License-Identifier: Apache-2.0
// Weights in panels of 16 output columns, the one layout of all CPU kernels (cpu/kernel_table.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/cpu/kernel_table.h"
#include "kernels/kernels.h"

namespace tandem::kernels::cpu {

/// Values of K that stand side by side in a panel: 1, 2 or 4.
int k_group(WeightType type);

/// Layers whose outputs stand one after another (Ops::join).
class JoinedLinear final : public PackedLinear {
 public:
  explicit JoinedLinear(std::vector<std::unique_ptr<PackedLinear>> parts) : parts_(std::move(parts)) {}

  WeightType type() const override { return parts_.front()->type(); }
  std::int64_t out_features() const override;
  std::int64_t in_features() const override { return parts_.front()->in_features(); }
  std::size_t bytes() const override;
  const std::vector<std::unique_ptr<PackedLinear>>& parts() const { return parts_; }

 private:
  std::vector<std::unique_ptr<PackedLinear>> parts_;
};

class CpuPackedLinear final : public PackedLinear {
 public:
  /// x_offset: the table's int8_x_offset.
  CpuPackedLinear(WeightType type, std::int64_t out_features, std::int64_t in_features, int x_offset);

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
  const std::int32_t* starts() const { return starts_.data(); }
  const std::optional<StaticInput>& static_input() const { return static_input_; }

  /// Reads all rows, shared between the team's threads by whole panels.
  void fill(ThreadTeam& team, const RowReader& read_row, const float* bias);
  void fill(ThreadTeam& team, const Int8Layer& layer);

 private:
  /// Writes one row's packed_row_bytes() to `words`.
  using RowPacker = std::function<void(std::int64_t n, std::uint32_t* words)>;
  void fill_panels(ThreadTeam& team, const std::function<RowPacker()>& make_packer);
  void pack_row(std::int64_t n, const float* row, std::uint32_t* words);
  void quantise_int8_row(std::int64_t n, const float* row, std::int8_t* out);
  void start_column(std::int64_t n, const std::int8_t* row, std::int32_t start);
  void interleave(std::int64_t panel, const std::uint32_t* words, std::size_t stride);

  WeightType type_;
  std::int64_t n_;
  std::int64_t k_;
  std::int64_t k_padded_;
  std::int64_t num_panels_;
  std::size_t panel_bytes_;
  std::shared_ptr<std::byte> weights_;  ///< may be part of a slab
  std::vector<float> bias_;             ///< zeros where there is none
  int x_offset_;
  std::vector<float> scales_;         ///< int8 only
  std::vector<std::int32_t> starts_;  ///< int8 only: the layer's start - x_offset * column sum
  std::optional<StaticInput> static_input_;
};

}  // namespace tandem::kernels::cpu
