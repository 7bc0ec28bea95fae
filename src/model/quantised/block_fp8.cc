// SPDX-License-Identifier: Apache-2.0
#include "model/quantised/block_fp8.h"

#include <fmt/format.h>

#include <array>
#include <boost/json.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "base/json.h"
#include "model/quantised/stored.h"

namespace tandem::model {
namespace json = boost::json;
namespace {

constexpr std::int64_t kMaxBlock = 1 << 20;

const std::array<float, 256>& value_table() {
  static const std::array<float, 256> table = [] {
    std::array<float, 256> values{};
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = fp8_e4m3_value(static_cast<std::uint8_t>(i));
    return values;
  }();
  return table;
}

class BlockSource : public RowSource {
 public:
  BlockSource(const std::uint8_t* values, std::vector<float> scale, std::int64_t block_rows, std::int64_t block_cols)
      : values_(values), scale_(std::move(scale)), block_rows_(block_rows), block_cols_(block_cols) {}

  void read_row(std::int64_t row, std::int64_t cols, float* out) const override {
    const std::array<float, 256>& table = value_table();
    const std::uint8_t* values = values_ + row * cols;
    const std::int64_t blocks = (cols + block_cols_ - 1) / block_cols_;
    const float* scale = scale_.data() + row / block_rows_ * blocks;
    for (std::int64_t i = 0; i < cols; ++i) out[i] = table[values[i]] * scale[i / block_cols_];
  }

 private:
  const std::uint8_t* values_;
  std::vector<float> scale_;
  std::int64_t block_rows_;
  std::int64_t block_cols_;
};

class BlockFp8Format : public QuantisedFormat {
 public:
  BlockFp8Format(std::int64_t block_rows, std::int64_t block_cols) : block_rows_(block_rows), block_cols_(block_cols) {}

  std::string_view method() const override { return "fp8"; }

  Result<std::optional<LinearModule>> linear(const TensorIndex& index, const std::string& module, std::int64_t rows,
                                             std::int64_t cols) const override {
    const StoredTensor* weight = index.find(module + ".weight");
    if (weight == nullptr || weight->type) return std::optional<LinearModule>();
    auto read = this->read(index, module, rows, cols);
    if (!read) return read.error().context(fmt::format("quantised module '{}'", module));
    return std::optional<LinearModule>(std::move(*read));
  }

  bool uses(std::string_view tensor) const override { return tensor.ends_with(".weight_scale_inv"); }

 private:
  Result<LinearModule> read(const TensorIndex& index, const std::string& module, std::int64_t rows,
                            std::int64_t cols) const {
    TANDEM_ASSIGN(const StoredTensor* const weight,
                  stored_tensor(index, module + ".weight", {"F8_E4M3"}, {rows, cols}));
    const std::int64_t blocks = (rows + block_rows_ - 1) / block_rows_ * ((cols + block_cols_ - 1) / block_cols_);
    // Despite its name it is what the values are multiplied by.
    TANDEM_ASSIGN(std::vector<float> scale, stored_floats(index, module + ".weight_scale_inv", blocks));
    const std::size_t bytes = weight->bytes + scale.size() * sizeof(float);
    return dequantised_module("block fp8", rows, cols, bytes,
                              std::make_shared<BlockSource>(reinterpret_cast<const std::uint8_t*>(weight->data),
                                                            std::move(scale), block_rows_, block_cols_));
  }

  std::int64_t block_rows_;
  std::int64_t block_cols_;
};

}  // namespace

float fp8_e4m3_value(std::uint8_t bits) {
  const int exponent = bits >> 3 & 15;
  const int mantissa = bits & 7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<float>::quiet_NaN();
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                        : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (bits & 0x80U) != 0 ? -magnitude : magnitude;
}

Result<std::unique_ptr<QuantisedFormat>> block_fp8_format(const json::object& config) {
  TANDEM_ASSIGN(const auto kind, json_string(config, "fmt"));
  if (kind.value_or("e4m3") != "e4m3")
    return Status(Code::kUnsupported,
                  fmt::format("'fmt' is {}, which cannot be read; supported: e4m3", kind->substr(0, 60)));
  const json::value* block = config.if_contains("weight_block_size");
  const auto size = [&](std::size_t i) -> std::int64_t {
    if (block == nullptr || !block->is_array() || block->as_array().size() != 2) return 0;
    const json::value& value = block->as_array()[i];
    return value.is_int64() && value.as_int64() <= kMaxBlock ? value.as_int64() : 0;
  };
  if (size(0) < 1 || size(1) < 1)
    return Status(Code::kUnsupported,
                  fmt::format("'weight_block_size' is {}, expected two sizes such as [128, 128]; FP8 with one scale a "
                              "tensor or channel cannot be read",
                              block == nullptr ? "missing" : json::serialize(*block).substr(0, 60)));
  return std::unique_ptr<QuantisedFormat>(std::make_unique<BlockFp8Format>(size(0), size(1)));
}

}  // namespace tandem::model
