// SPDX-License-Identifier: Apache-2.0
// Packs (and for int8 quantises) the weights of a linear layer into panels, in parallel by panels.
#include "kernels/cpu/packed_linear.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <mutex>

#include "base/float16.h"
#include "base/quantise.h"
#include "base/status.h"
#include "kernels/cpu/partition.h"

namespace tandem::kernels::cpu {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

std::size_t element_bytes(WeightType type) {
  switch (type) {
    case WeightType::kF32:
      return 4;
    case WeightType::kBf16:
      return 2;
    case WeightType::kInt8:
      return 1;
  }
  return 4;
}

/// Not touched here: the threads that fill it do, so that pages land on their NUMA node.
std::shared_ptr<std::byte> allocate_huge(std::size_t bytes) {
  const std::size_t rounded = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(kHugePage, rounded));
  TANDEM_ASSERT(memory != nullptr, "out of memory for packed weights");
  // One row of activations streams all weights through the TLB; huge pages are a hint that may be refused.
  (void)madvise(memory, rounded, MADV_HUGEPAGE);
  return {memory, [](std::byte* own) { std::free(own); }};
}

/// Layers smaller than a huge page share slabs, so that they get huge pages too. A slab lives as long as its last
/// layer.
std::shared_ptr<std::byte> allocate_weights(std::size_t bytes) {
  constexpr std::size_t kSlabBytes = 8 * kHugePage;
  if (bytes >= kHugePage) return allocate_huge(bytes);
  static std::mutex mutex;
  static std::shared_ptr<std::byte> slab;
  static std::size_t used = kSlabBytes;
  const std::size_t rounded = (bytes + 4095) / 4096 * 4096;
  const std::lock_guard lock(mutex);
  if (used + rounded > kSlabBytes || slab.use_count() == 1) {
    slab = allocate_huge(kSlabBytes);
    used = 0;
  }
  std::byte* memory = slab.get() + used;
  used += rounded;
  return {slab, memory};
}

}  // namespace

int k_group(WeightType type) { return static_cast<int>(4 / element_bytes(type)); }

std::int64_t JoinedLinear::out_features() const {
  std::int64_t sum = 0;
  for (const auto& part : parts_) sum += part->out_features();
  return sum;
}

std::size_t JoinedLinear::bytes() const {
  std::size_t sum = 0;
  for (const auto& part : parts_) sum += part->bytes();
  return sum;
}

CpuPackedLinear::CpuPackedLinear(WeightType type, std::int64_t out_features, std::int64_t in_features, int x_offset)
    : type_(type), n_(out_features), k_(in_features), x_offset_(x_offset) {
  TANDEM_ASSERT(n_ > 0 && k_ > 0, "a linear layer needs features");
  const std::int64_t group = k_group(type);
  k_padded_ = (k_ + group - 1) / group * group;
  num_panels_ = (n_ + kPanel - 1) / kPanel;
  panel_bytes_ = static_cast<std::size_t>(k_padded_ * kPanel) * element_bytes(type);
  weights_ = allocate_weights(static_cast<std::size_t>(num_panels_) * panel_bytes_);
  const auto columns = static_cast<std::size_t>(num_panels_ * kPanel);
  bias_.assign(columns, 0.0F);
  if (type_ == WeightType::kInt8) {
    scales_.assign(columns, 0.0F);
    starts_.assign(columns, 0);
  }
}

std::size_t CpuPackedLinear::bytes() const {
  return static_cast<std::size_t>(num_panels_) * panel_bytes_ +
         (bias_.size() + scales_.size() + starts_.size()) * sizeof(float);
}

void CpuPackedLinear::fill(ThreadTeam& team, const RowReader& read_row, const float* bias) {
  if (bias != nullptr) std::memcpy(bias_.data(), bias, static_cast<std::size_t>(n_) * sizeof(float));
  fill_panels(team, [&]() -> RowPacker {
    return [&, row = std::vector<float>(static_cast<std::size_t>(k_))](std::int64_t n, std::uint32_t* words) mutable {
      read_row(n, row.data());
      pack_row(n, row.data(), words);
    };
  });
}

void CpuPackedLinear::fill(ThreadTeam& team, const Int8Layer& layer) {
  const auto count = static_cast<std::size_t>(n_);
  TANDEM_ASSERT(layer.scale.size() == count && (layer.start.empty() || layer.start.size() == count) &&
                    (layer.bias.empty() || layer.bias.size() == count),
                "an int8 layer needs a scale, and perhaps a start and a bias, for each output");
  std::copy(layer.scale.begin(), layer.scale.end(), scales_.begin());
  std::copy(layer.bias.begin(), layer.bias.end(), bias_.begin());
  static_input_ = layer.input;
  fill_panels(team, [&]() -> RowPacker {
    return [&](std::int64_t n, std::uint32_t* words) {
      auto* row = reinterpret_cast<std::int8_t*>(words);
      layer.read_row(n, row);
      std::memset(row + k_, 0, static_cast<std::size_t>(k_padded_ - k_));
      start_column(n, row, layer.start.empty() ? 0 : layer.start[static_cast<std::size_t>(n)]);
    };
  });
}

void CpuPackedLinear::fill_panels(ThreadTeam& team, const std::function<RowPacker()>& make_packer) {
  team.run([&](int thread) {
    const RowPacker pack = make_packer();
    // An odd number of cache lines, so that the same word of 16 rows does not fall into one cache set.
    const std::size_t stride = (panel_bytes_ / kPanel / 64 + 1) / 2 * 32 + 16;
    std::vector<std::uint32_t> words(kPanel * stride, 0);
    const Range panels = part_of(num_panels_, thread, team.size());
    for (std::int64_t panel = panels.begin; panel < panels.end; ++panel) {
      for (std::int64_t lane = 0; lane < kPanel; ++lane) {
        std::uint32_t* packed = words.data() + static_cast<std::size_t>(lane) * stride;
        const std::int64_t n = panel * kPanel + lane;
        if (n < n_) {
          pack(n, packed);
        } else {
          std::memset(packed, 0, panel_bytes_ / kPanel);
        }
      }
      interleave(panel, words.data(), stride);
    }
  });
}

/// Whatever the type, a panel is 32-bit words of consecutive k: word g of lane l stands at g * 16 + l.
void CpuPackedLinear::interleave(std::int64_t panel, const std::uint32_t* words, std::size_t stride) {
  auto* out = reinterpret_cast<std::uint32_t*>(weights_.get() + static_cast<std::size_t>(panel) * panel_bytes_);
  const std::size_t groups = panel_bytes_ / kPanel / sizeof(std::uint32_t);
  for (std::size_t group = 0; group < groups; ++group) {
    for (std::size_t lane = 0; lane < kPanel; ++lane) out[group * kPanel + lane] = words[lane * stride + group];
  }
}

void CpuPackedLinear::pack_row(std::int64_t n, const float* row, std::uint32_t* words) {
  switch (type_) {
    case WeightType::kF32:
      std::memcpy(words, row, static_cast<std::size_t>(k_) * sizeof(float));
      break;
    case WeightType::kBf16: {
      auto* out = reinterpret_cast<bf16_t*>(words);
      for (std::int64_t k = 0; k < k_; ++k) out[k] = to_bf16(row[k]);
      for (std::int64_t k = k_; k < k_padded_; ++k) out[k] = bf16_t{0};
      break;
    }
    case WeightType::kInt8:
      quantise_int8_row(n, row, reinterpret_cast<std::int8_t*>(words));
      break;
  }
}

void CpuPackedLinear::quantise_int8_row(std::int64_t n, const float* row, std::int8_t* out) {
  const auto index = static_cast<std::size_t>(n);
  std::memset(out, 0, static_cast<std::size_t>(k_padded_));
  const std::uint32_t max_bits = max_magnitude_bits(row, k_);
  if (max_bits >= kInfinityBits) {
    // A broken row must show in the output, not become some other number.
    scales_[index] = std::numeric_limits<float>::quiet_NaN();
    return;
  }
  const float scale = weight_step(max_bits);
  scales_[index] = scale;
  for (std::int64_t k = 0; k < k_; ++k) out[k] = quantise(row[k], scale);
  start_column(n, out, 0);
}

void CpuPackedLinear::start_column(std::int64_t n, const std::int8_t* row, std::int32_t start) {
  std::int32_t sum = 0;
  for (std::int64_t k = 0; k < k_; ++k) sum += row[k];
  // In unsigned: a wild start from a file may wrap, as it does in the kernels.
  starts_[static_cast<std::size_t>(n)] = static_cast<std::int32_t>(
      static_cast<std::uint32_t>(start) - static_cast<std::uint32_t>(x_offset_) * static_cast<std::uint32_t>(sum));
}

}  // namespace tandem::kernels::cpu
