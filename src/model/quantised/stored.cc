// SPDX-License-Identifier: Apache-2.0
#include "model/quantised/stored.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace tandem::model {
namespace {

/// int8 values times one scale a row.
class Int8Source : public RowSource {
 public:
  Int8Source(const std::int8_t* values, std::vector<float> scale) : values_(values), scale_(std::move(scale)) {}
  void read_row(std::int64_t row, std::int64_t cols, float* out) const override {
    const std::int8_t* values = values_ + row * cols;
    const float scale = scale_[static_cast<std::size_t>(row)];
    for (std::int64_t i = 0; i < cols; ++i) out[i] = static_cast<float>(values[i]) * scale;
  }

 private:
  const std::int8_t* values_;
  std::vector<float> scale_;
};

Status wrong(const StoredTensor& tensor, std::string_view expected) {
  return Status(Code::kInvalidArgument, fmt::format("tensor '{}' is {} [{}], expected {}", tensor.stored_name,
                                                    tensor.type_name, fmt::join(tensor.shape, ", "), expected));
}

Result<const StoredTensor*> find(const TensorIndex& index, const std::string& name) {
  const StoredTensor* tensor = index.find(name);
  if (tensor != nullptr) return tensor;
  return Status(Code::kNotFound,
                fmt::format("tensor '{}' is missing from the checkpoint; its quantisation needs it", name));
}

std::int64_t num_values(const StoredTensor& tensor) {
  std::int64_t count = 1;
  for (const std::int64_t size : tensor.shape) count *= size;  // the reader has checked that the product exists
  return count;
}

TensorView view_of(std::int64_t rows, std::int64_t cols, std::shared_ptr<const RowSource> source) {
  TensorView view;
  view.type = TensorType::kF32;
  view.rows = rows;
  view.cols = cols;
  view.source = std::move(source);
  return view;
}

template <class Integer>
std::int64_t integer_at(const std::byte* data, std::int64_t i) {
  Integer value{};
  std::memcpy(&value, data + static_cast<std::size_t>(i) * sizeof(value), sizeof(value));
  return value;
}

}  // namespace

Result<const StoredTensor*> stored_tensor(const TensorIndex& index, const std::string& name,
                                          std::initializer_list<std::string_view> types,
                                          const std::vector<std::int64_t>& shape) {
  TANDEM_ASSIGN(const StoredTensor* const tensor, find(index, name));
  if (std::find(types.begin(), types.end(), tensor->type_name) != types.end() && tensor->shape == shape) return tensor;
  return wrong(*tensor, fmt::format("{} [{}]", fmt::join(types, " or "), fmt::join(shape, ", ")));
}

Result<std::vector<float>> stored_floats(const TensorIndex& index, const std::string& name, std::int64_t count) {
  TANDEM_ASSIGN(const StoredTensor* const tensor, find(index, name));
  if (!tensor->type || tensor_block_values(*tensor->type) != 1 || num_values(*tensor) != count)
    return wrong(*tensor, fmt::format("{} values as F32, BF16 or F16", count));
  if (count == 0) return std::vector<float>();
  TensorView view;
  view.type = *tensor->type;
  view.rows = 1;
  view.cols = count;
  view.data = tensor->data;
  view.bytes = tensor->bytes;
  std::vector<float> values(static_cast<std::size_t>(count));
  view.read_row(0, values.data());
  for (const float value : values)
    if (!std::isfinite(value))
      return Status(Code::kInvalidArgument,
                    fmt::format("tensor '{}' holds {}, expected finite numbers", tensor->stored_name, value));
  return values;
}

Result<std::vector<std::int32_t>> stored_integers(const TensorIndex& index, const std::string& name,
                                                  std::int64_t count) {
  TANDEM_ASSIGN(const StoredTensor* const tensor, find(index, name));
  if (num_values(*tensor) != count) return wrong(*tensor, fmt::format("{} integers", count));
  std::vector<std::int32_t> values(static_cast<std::size_t>(count));
  std::vector<float> floats;
  if (tensor->type) {
    TANDEM_ASSIGN(floats, stored_floats(index, name, count));
  } else if (tensor->type_name != "I8" && tensor->type_name != "I32" && tensor->type_name != "I64") {
    return wrong(*tensor, fmt::format("{} integers as I8, I32 or I64", count));
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<std::size_t>(i);
    std::int64_t value = 0;
    if (!floats.empty()) {
      if (std::trunc(floats[at]) != floats[at] || std::abs(floats[at]) > 1e9F)
        return Status(Code::kInvalidArgument,
                      fmt::format("tensor '{}' holds {}, expected whole numbers", tensor->stored_name, floats[at]));
      value = static_cast<std::int64_t>(floats[at]);
    } else if (tensor->type_name == "I8") {
      value = integer_at<std::int8_t>(tensor->data, i);
    } else if (tensor->type_name == "I32") {
      value = integer_at<std::int32_t>(tensor->data, i);
    } else {
      value = integer_at<std::int64_t>(tensor->data, i);
    }
    if (value < std::numeric_limits<std::int32_t>::min() || value > std::numeric_limits<std::int32_t>::max())
      return Status(Code::kInvalidArgument,
                    fmt::format("tensor '{}' holds {}, expected 32-bit integers", tensor->stored_name, value));
    values[at] = static_cast<std::int32_t>(value);
  }
  return values;
}

LinearModule dequantised_module(std::string type, std::int64_t rows, std::int64_t cols, std::size_t stored_bytes,
                                std::shared_ptr<const RowSource> source) {
  LinearModule module;
  module.weight = view_of(rows, cols, std::move(source));
  module.type = std::move(type);
  module.stored_bytes = stored_bytes;
  return module;
}

LinearModule int8_module(std::string type, std::int64_t rows, std::int64_t cols, Int8Rows int8,
                         std::vector<float> weight_scale) {
  LinearModule module;
  module.weight = view_of(rows, cols, std::make_shared<Int8Source>(int8.values, std::move(weight_scale)));
  module.type = std::move(type);
  module.stored_bytes = static_cast<std::size_t>(rows * cols);
  module.int8 = std::move(int8);
  return module;
}

}  // namespace tandem::model
