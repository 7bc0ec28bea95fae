// SPDX-License-Identifier: Apache-2.0
#include "model/quantised/ascend.h"

#include <fmt/format.h>

#include <bit>
#include <boost/json.hpp>
#include <cmath>
#include <cstring>
#include <map>

#include "base/json.h"
#include "model/quantised/stored.h"

namespace tandem::model {
namespace json = boost::json;
namespace {

constexpr std::int64_t kMaxGroup = 1 << 20;

/// W4A8: int4 values with a scale a row and a scale a group of inputs. Two ways of packing: the values of output rows
/// 2j (low nibble) and 2j+1 in row j (version 1.0.0, written by w4a8_pack_int4 of msModelSlim), or one value a byte.
class Int4Source : public RowSource {
 public:
  Int4Source(const std::int8_t* values, bool packed, std::vector<float> scale, std::vector<float> group_scale,
             std::int64_t group)
      : values_(values),
        packed_(packed),
        scale_(std::move(scale)),
        group_scale_(std::move(group_scale)),
        group_(group) {}

  void read_row(std::int64_t row, std::int64_t cols, float* out) const override {
    const std::int8_t* values = values_ + (packed_ ? row / 2 : row) * cols;
    const float scale = scale_[static_cast<std::size_t>(row)];
    const std::int64_t groups = group_ > 0 ? cols / group_ : 1;
    for (std::int64_t i = 0; i < cols; ++i) {
      const std::int8_t stored = values[i];
      // The sign of a nibble: shifted to the top of a byte and back.
      const auto nibble =
          static_cast<std::int8_t>(static_cast<std::int8_t>(row % 2 == 0 ? stored << 4 : stored & 0xf0) >> 4);
      const float factor =
          group_ > 0 ? scale * group_scale_[static_cast<std::size_t>(row * groups + i / group_)] : scale;
      out[i] = static_cast<float>(packed_ ? nibble : stored) * factor;
    }
  }

 private:
  const std::int8_t* values_;
  bool packed_;
  std::vector<float> scale_;
  std::vector<float> group_scale_;
  std::int64_t group_;  ///< inputs with one group scale; 0: there are none
};

/// deq_scale: floats, or for float16 models int64 whose low half holds the bits of a float32.
Result<std::vector<float>> read_deq_scale(const TensorIndex& index, const std::string& name, std::int64_t rows) {
  const StoredTensor* tensor = index.find(name);
  if (tensor == nullptr || tensor->type_name != "I64") return stored_floats(index, name, rows);
  TANDEM_ASSIGN(tensor, stored_tensor(index, name, {"I64"}, {rows}));
  std::vector<float> values(static_cast<std::size_t>(rows));
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, tensor->data + i * sizeof(bits), sizeof(bits));
    values[i] = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (!std::isfinite(values[i]))
      return Status(Code::kInvalidArgument, fmt::format("tensor '{}' holds {:#x}, whose low half is no finite float32",
                                                        tensor->stored_name, bits));
  }
  return values;
}

class AscendFormat : public QuantisedFormat {
 public:
  AscendFormat(std::map<std::string, std::string, std::less<>> types, std::int64_t group_size, bool packed_int4)
      : types_(std::move(types)), group_size_(group_size), packed_int4_(packed_int4) {}

  std::string_view method() const override { return "ascend"; }

  Result<std::optional<LinearModule>> linear(const TensorIndex& index, const std::string& module, std::int64_t rows,
                                             std::int64_t cols) const override {
    const std::string name = module + ".weight";
    const auto found = types_.find(name);
    if (found == types_.end()) {
      if (const StoredTensor* stored = index.find(name); stored == nullptr || stored->type)
        return std::optional<LinearModule>();
      return Status(Code::kInvalidArgument,
                    fmt::format("tensor '{}' is {}, but quant_model_description.json does not list it", name,
                                index.find(name)->type_name));
    }
    const std::string& type = found->second;
    if (type == "FLOAT") return std::optional<LinearModule>();
    auto read = [&]() -> Result<LinearModule> {
      if (type == "W8A8") return static_module(index, module, rows, cols);
      if (type == "W8A8_DYNAMIC" || type == "W8A8_MIX" || type == "W8A16")
        return weight_only(index, module, type, rows, cols);
      if (type == "W4A8_DYNAMIC") return int4_module(index, module, rows, cols);
      return Status(Code::kUnsupported,
                    fmt::format("type {} cannot be read; supported: FLOAT, W8A8, W8A8_DYNAMIC, W8A8_MIX, W8A16, "
                                "W4A8_DYNAMIC",
                                type.substr(0, 60)));
    }();
    if (!read) return read.error().context(fmt::format("quantised module '{}'", module));
    return std::optional<LinearModule>(std::move(*read));
  }

  bool uses(std::string_view tensor) const override {
    for (const std::string_view end :
         {".weight_scale", ".weight_offset", ".input_scale", ".input_offset", ".quant_bias", ".deq_scale",
          ".weight_scale_second", ".weight_offset_second", ".scale_bias", ".bias", ".module.weight"})
      if (tensor.ends_with(end)) return true;
    return false;
  }

 private:
  static Result<const std::int8_t*> int8_values(const TensorIndex& index, const std::string& module, std::int64_t rows,
                                                std::int64_t cols) {
    TANDEM_ASSIGN(const StoredTensor* const tensor, stored_tensor(index, module + ".weight", {"I8"}, {rows, cols}));
    return reinterpret_cast<const std::int8_t*>(tensor->data);
  }

  static Result<void> refuse_offset(const TensorIndex& index, const std::string& name) {
    const StoredTensor* tensor = index.find(name);
    if (tensor == nullptr) return {};
    std::int64_t count = 1;
    for (const std::int64_t size : tensor->shape) count *= size;
    TANDEM_ASSIGN(const std::vector<float> offsets, stored_floats(index, name, count));
    for (const float offset : offsets)
      if (offset != 0.0F)
        return Status(Code::kUnsupported,
                      fmt::format("tensor '{}' holds {}; only symmetric weights (all zero) can be read", name, offset));
    return {};
  }

  static Result<LinearModule> static_module(const TensorIndex& index, const std::string& module, std::int64_t rows,
                                            std::int64_t cols) {
    Int8Rows int8;
    TANDEM_ASSIGN(int8.values, int8_values(index, module, rows, cols));
    TANDEM_ASSIGN(int8.scale, read_deq_scale(index, module + ".deq_scale", rows));
    TANDEM_ASSIGN(int8.start, stored_integers(index, module + ".quant_bias", rows));
    TANDEM_ASSIGN(const std::vector<float> scale, stored_floats(index, module + ".input_scale", 1));
    TANDEM_ASSIGN(const std::vector<std::int32_t> offset, stored_integers(index, module + ".input_offset", 1));
    if (!(scale[0] > 0.0F))
      return Status(Code::kInvalidArgument, fmt::format("input_scale is {}, expected above 0", scale[0]));
    if (offset[0] < -128 || offset[0] > 127)
      return Status(Code::kInvalidArgument, fmt::format("input_offset is {}, expected -128..127", offset[0]));
    int8.input = kernels::StaticInput{scale[0], static_cast<float>(offset[0]), 0};
    std::vector<float> weight_scale = int8.scale;
    for (float& value : weight_scale) value /= scale[0];
    LinearModule result = int8_module("W8A8", rows, cols, std::move(int8), std::move(weight_scale));
    result.includes_bias = true;
    return result;
  }

  // W8A8_MIX is static on instances that only decode and dynamic elsewhere; it holds what both need. Dynamic
  // everywhere makes prefiller and decoder agree.
  static Result<LinearModule> weight_only(const TensorIndex& index, const std::string& module, const std::string& type,
                                          std::int64_t rows, std::int64_t cols) {
    Int8Rows int8;
    TANDEM_ASSIGN(int8.values, int8_values(index, module, rows, cols));
    TANDEM_ASSIGN(int8.scale, stored_floats(index, module + ".weight_scale", rows));
    TANDEM_TRY(refuse_offset(index, module + ".weight_offset"));
    std::vector<float> weight_scale = int8.scale;
    LinearModule result = int8_module(type, rows, cols, std::move(int8), std::move(weight_scale));
    if (type == "W8A16") result.int8.reset();  // activations are not to be quantised
    return result;
  }

  Result<LinearModule> int4_module(const TensorIndex& index, const std::string& module, std::int64_t rows,
                                   std::int64_t cols) const {
    if (packed_int4_ && rows % 2 != 0)
      return Status(Code::kInvalidArgument, fmt::format("{} output rows cannot be packed in pairs", rows));
    TANDEM_ASSIGN(const std::int8_t* const values, int8_values(index, module, packed_int4_ ? rows / 2 : rows, cols));
    TANDEM_ASSIGN(std::vector<float> scale, stored_floats(index, module + ".weight_scale", rows));
    TANDEM_TRY(refuse_offset(index, module + ".weight_offset"));
    TANDEM_TRY(refuse_offset(index, module + ".weight_offset_second"));
    const bool grouped = index.contains(module + ".weight_scale_second");
    std::vector<float> group_scale;
    if (grouped) {
      if (group_size_ < 1 || cols % group_size_ != 0)
        return Status(Code::kInvalidArgument,
                      fmt::format("group_size {} does not divide the {} inputs", group_size_, cols));
      TANDEM_ASSIGN(group_scale, stored_floats(index, module + ".weight_scale_second", rows * (cols / group_size_)));
    }
    const std::size_t bytes = static_cast<std::size_t>(rows * cols) / (packed_int4_ ? 2 : 1);
    return dequantised_module("W4A8_DYNAMIC", rows, cols, bytes,
                              std::make_shared<Int4Source>(values, packed_int4_, std::move(scale),
                                                           std::move(group_scale), grouped ? group_size_ : 0));
  }

  std::map<std::string, std::string, std::less<>> types_;  ///< tensor name -> type
  std::int64_t group_size_;
  bool packed_int4_;
};

}  // namespace

Result<std::unique_ptr<QuantisedFormat>> ascend_format(const json::object& description) {
  std::map<std::string, std::string, std::less<>> types;
  // Names of tensors have a dot; the rest is about the file ("version", "model_quant_type").
  for (const auto& [key, value] : description)
    if (key.find('.') != json::string_view::npos && value.is_string())
      types.emplace(std::string(key), std::string(value.as_string()));
  if (types.empty())
    return Status(Code::kInvalidArgument, "it names no tensor; expected \"model.layers.0.mlp.up_proj.weight\": TYPE");
  TANDEM_ASSIGN(const auto group, json_int(description, "group_size"));
  if (group && (*group < 0 || *group > kMaxGroup))
    return Status(Code::kInvalidArgument, fmt::format("group_size is {}, expected 0..{}", *group, kMaxGroup));
  const json::value* version = description.if_contains("version");
  const bool packed = version != nullptr && version->is_string() && version->as_string() == "1.0.0";
  constexpr std::int64_t kDefaultGroup = 256;
  return std::unique_ptr<QuantisedFormat>(
      std::make_unique<AscendFormat>(std::move(types), group.value_or(kDefaultGroup), packed));
}

}  // namespace tandem::model
