// SPDX-License-Identifier: Apache-2.0
#include "model/quantised/packed_int4.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <cstring>
#include <vector>

#include "base/json.h"
#include "model/quantised/stored.h"

namespace tandem::model {
namespace json = boost::json;
namespace {

constexpr std::int64_t kPerWord = 8;
constexpr std::int64_t kMaxGroup = 1 << 20;

/// A matrix of nibbles in 32-bit words (which need not be aligned).
struct Nibbles {
  const std::byte* data = nullptr;
  std::int64_t words_per_row = 0;

  int at(std::int64_t row, std::int64_t word, int shift) const {
    std::uint32_t value = 0;
    std::memcpy(&value, data + static_cast<std::size_t>(row * words_per_row + word) * sizeof(value), sizeof(value));
    return static_cast<int>(value >> shift & 15U);
  }
};

/// Everything of a module but the order of its nibbles. W[n][k] = (q - zero) * scale, both of (group of k, n).
struct Parts {
  Nibbles values;
  Nibbles zeros;                       ///< data == nullptr: `zero` everywhere
  int zero = 0;                        ///< without `zeros`; with them it is added
  std::vector<float> scale;            ///< [groups, rows], or [rows, groups] in compressed-tensors
  std::vector<std::int32_t> group_of;  ///< [cols]
  std::int64_t rows = 0;
  std::int64_t groups = 0;
};

/// Where a column n of AWQ stands in its word.
constexpr int kAwqShift[kPerWord] = {0, 16, 4, 20, 8, 24, 12, 28};

class GptqSource : public RowSource {
 public:
  explicit GptqSource(Parts parts) : parts_(std::move(parts)) {}
  void read_row(std::int64_t row, std::int64_t cols, float* out) const override {
    for (std::int64_t k = 0; k < cols; ++k) {
      const std::int64_t group = parts_.group_of[static_cast<std::size_t>(k)];
      const int q = parts_.values.at(k / kPerWord, row, static_cast<int>(4 * (k % kPerWord)));
      const int zero = parts_.zero + parts_.zeros.at(group, row / kPerWord, static_cast<int>(4 * (row % kPerWord)));
      out[k] = static_cast<float>(q - zero) * parts_.scale[static_cast<std::size_t>(group * parts_.rows + row)];
    }
  }

 private:
  Parts parts_;
};

class AwqSource : public RowSource {
 public:
  explicit AwqSource(Parts parts) : parts_(std::move(parts)) {}
  void read_row(std::int64_t row, std::int64_t cols, float* out) const override {
    const int shift = kAwqShift[row % kPerWord];
    for (std::int64_t k = 0; k < cols; ++k) {
      const std::int64_t group = parts_.group_of[static_cast<std::size_t>(k)];
      const int q = parts_.values.at(k, row / kPerWord, shift);
      const int zero = parts_.zeros.at(group, row / kPerWord, shift);
      out[k] = static_cast<float>(q - zero) * parts_.scale[static_cast<std::size_t>(group * parts_.rows + row)];
    }
  }

 private:
  Parts parts_;
};

class CompressedSource : public RowSource {
 public:
  explicit CompressedSource(Parts parts) : parts_(std::move(parts)) {}
  void read_row(std::int64_t row, std::int64_t cols, float* out) const override {
    for (std::int64_t k = 0; k < cols; ++k) {
      const std::int64_t group = parts_.group_of[static_cast<std::size_t>(k)];
      const int q = parts_.values.at(row, k / kPerWord, static_cast<int>(4 * (k % kPerWord)));
      // Values and zero points are both stored plus 8.
      const int zero = parts_.zeros.data == nullptr
                           ? parts_.zero
                           : parts_.zeros.at(row / kPerWord, group, static_cast<int>(4 * (row % kPerWord)));
      out[k] = static_cast<float>(q - zero) * parts_.scale[static_cast<std::size_t>(row * parts_.groups + group)];
    }
  }

 private:
  Parts parts_;
};

Result<Nibbles> nibbles(const TensorIndex& index, const std::string& name, std::int64_t rows, std::int64_t words) {
  TANDEM_ASSIGN(const StoredTensor* const tensor, stored_tensor(index, name, {"I32"}, {rows, words}));
  return Nibbles{tensor->data, words};
}

/// Group of each input: `stored` (act-order) if that tensor exists, else consecutive runs. group_size -1: one group.
Result<std::vector<std::int32_t>> groups_of(const TensorIndex& index, const std::string& stored, std::int64_t cols,
                                            std::int64_t groups) {
  if (index.contains(stored)) {
    TANDEM_ASSIGN(std::vector<std::int32_t> list, stored_integers(index, stored, cols));
    for (const std::int32_t group : list)
      if (group < 0 || group >= groups)
        return Status(Code::kInvalidArgument,
                      fmt::format("tensor '{}' holds {}, expected groups 0..{}", stored, group, groups - 1));
    return list;
  }
  std::vector<std::int32_t> list(static_cast<std::size_t>(cols));
  for (std::int64_t k = 0; k < cols; ++k)
    list[static_cast<std::size_t>(k)] = static_cast<std::int32_t>(k / (cols / groups));
  return list;
}

Result<std::int64_t> num_groups(std::int64_t cols, std::int64_t group_size) {
  if (group_size == -1) return std::int64_t{1};
  if (cols % group_size != 0)
    return Status(Code::kUnsupported, fmt::format("group_size {} does not divide the {} inputs", group_size, cols));
  return cols / group_size;
}

Result<void> check_packing(std::int64_t rows, std::int64_t cols) {
  if (rows % kPerWord == 0 && cols % kPerWord == 0) return {};
  return Status(Code::kUnsupported, fmt::format("a module [{}, {}] cannot be packed by eights", rows, cols));
}

std::size_t packed_bytes(const Parts& parts, std::int64_t rows, std::int64_t cols) {
  return static_cast<std::size_t>(rows * cols / 2) + parts.scale.size() * 2;
}

/// GPTQ and AWQ: which differ in the order of nibbles, and in v1's zero points, that are stored less 1.
class Int4Format : public QuantisedFormat {
 public:
  Int4Format(bool awq, std::int64_t group_size, int zero_offset)
      : awq_(awq), group_size_(group_size), zero_offset_(zero_offset) {}

  std::string_view method() const override { return awq_ ? "awq" : "gptq"; }

  Result<std::optional<LinearModule>> linear(const TensorIndex& index, const std::string& module, std::int64_t rows,
                                             std::int64_t cols) const override {
    if (!index.contains(module + ".qweight")) return std::optional<LinearModule>();
    auto read = this->read(index, module, rows, cols);
    if (!read) return read.error().context(fmt::format("quantised module '{}'", module));
    return std::optional<LinearModule>(std::move(*read));
  }

  bool uses(std::string_view tensor) const override {
    for (const std::string_view end : {".qweight", ".qzeros", ".scales", ".g_idx", ".bias"})
      if (tensor.ends_with(end)) return true;
    return false;
  }

 private:
  Result<LinearModule> read(const TensorIndex& index, const std::string& module, std::int64_t rows,
                            std::int64_t cols) const {
    TANDEM_TRY(check_packing(rows, cols));
    Parts parts;
    parts.rows = rows;
    parts.zero = zero_offset_;
    TANDEM_ASSIGN(parts.groups, num_groups(cols, group_size_));
    TANDEM_ASSIGN(parts.values, awq_ ? nibbles(index, module + ".qweight", cols, rows / kPerWord)
                                     : nibbles(index, module + ".qweight", cols / kPerWord, rows));
    TANDEM_ASSIGN(parts.zeros, nibbles(index, module + ".qzeros", parts.groups, rows / kPerWord));
    TANDEM_ASSIGN(parts.scale, stored_floats(index, module + ".scales", parts.groups * rows));
    TANDEM_ASSIGN(parts.group_of, groups_of(index, module + (awq_ ? "" : ".g_idx"), cols, parts.groups));
    const std::size_t bytes = packed_bytes(parts, rows, cols);
    std::shared_ptr<const RowSource> source;
    if (awq_)
      source = std::make_shared<AwqSource>(std::move(parts));
    else
      source = std::make_shared<GptqSource>(std::move(parts));
    return dequantised_module(fmt::format("{} int4", method()), rows, cols, bytes, std::move(source));
  }

  bool awq_;
  std::int64_t group_size_;
  int zero_offset_;
};

Result<std::int64_t> read_group_size(const json::object& config) {
  TANDEM_ASSIGN(const auto bits, json_int(config, "bits"));
  if (bits.value_or(4) != 4)
    return Status(Code::kUnsupported, fmt::format("'bits' is {}, which cannot be read; supported: 4", *bits));
  TANDEM_ASSIGN(const auto group, json_int(config, "group_size"));
  const std::int64_t size = group.value_or(128);
  if (size != -1 && (size < 1 || size > kMaxGroup))
    return Status(Code::kInvalidArgument, fmt::format("'group_size' is {}, expected -1 or 1..{}", size, kMaxGroup));
  return size;
}

}  // namespace

Result<std::unique_ptr<QuantisedFormat>> gptq_format(const json::object& config) {
  TANDEM_ASSIGN(const std::int64_t group, read_group_size(config));
  TANDEM_ASSIGN(const auto layout, json_string(config, "checkpoint_format"));
  const std::string name = layout.value_or("gptq");
  if (name != "gptq" && name != "gptq_v2")
    return Status(Code::kUnsupported, fmt::format("'checkpoint_format' is {}, which cannot be read; supported: gptq, "
                                                  "gptq_v2",
                                                  name.substr(0, 60)));
  return std::unique_ptr<QuantisedFormat>(std::make_unique<Int4Format>(false, group, name == "gptq" ? 1 : 0));
}

Result<std::unique_ptr<QuantisedFormat>> awq_format(const json::object& config) {
  json::object plain = config;
  if (const json::value* bits = config.if_contains("w_bit"); bits != nullptr) plain["bits"] = *bits;
  if (const json::value* group = config.if_contains("q_group_size"); group != nullptr) plain["group_size"] = *group;
  TANDEM_ASSIGN(const std::int64_t group, read_group_size(plain));
  TANDEM_ASSIGN(const auto version, json_string(config, "version"));
  const std::string name = version.value_or("gemm");
  if (name != "gemm" && name != "GEMM")
    return Status(Code::kUnsupported,
                  fmt::format("'version' is {}, which cannot be read; supported: gemm", name.substr(0, 60)));
  return std::unique_ptr<QuantisedFormat>(std::make_unique<Int4Format>(true, group, 0));
}

Result<LinearModule> compressed_int4(const TensorIndex& index, const std::string& module, std::int64_t rows,
                                     std::int64_t cols) {
  TANDEM_TRY(check_packing(rows, cols));
  const StoredTensor* scale = index.find(module + ".weight_scale");
  Parts parts;
  parts.rows = rows;
  parts.zero = 8;
  parts.groups = scale != nullptr && scale->shape.size() == 2 ? scale->shape[1] : 1;
  if (parts.groups < 1 || cols % parts.groups != 0)
    return Status(Code::kInvalidArgument, fmt::format("weight_scale has {} groups for {} inputs", parts.groups, cols));
  TANDEM_ASSIGN(parts.values, nibbles(index, module + ".weight_packed", rows, cols / kPerWord));
  TANDEM_ASSIGN(parts.scale, stored_floats(index, module + ".weight_scale", rows * parts.groups));
  if (index.contains(module + ".weight_zero_point")) {
    TANDEM_ASSIGN(parts.zeros, nibbles(index, module + ".weight_zero_point", rows / kPerWord, parts.groups));
  }
  TANDEM_ASSIGN(parts.group_of, groups_of(index, module + ".weight_g_idx", cols, parts.groups));
  const std::size_t bytes = packed_bytes(parts, rows, cols);
  return dequantised_module("compressed-tensors int4", rows, cols, bytes,
                            std::make_shared<CompressedSource>(std::move(parts)));
}

}  // namespace tandem::model
