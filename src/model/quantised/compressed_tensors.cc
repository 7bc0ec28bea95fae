// SPDX-License-Identifier: Apache-2.0
#include "model/quantised/compressed_tensors.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <cstdint>
#include <vector>

#include "base/json.h"
#include "model/quantised/packed_int4.h"
#include "model/quantised/stored.h"

namespace tandem::model {
namespace json = boost::json;
namespace {

constexpr std::size_t kMaxGroups = 64;

/// What a group says of the modules it is for. Which group a module belongs to follows from what is stored for it:
/// int8 rows or packed int4, so names and regular expressions of the targets need not be matched.
struct Group {
  std::string name;
  std::int64_t bits = 0;
  bool static_input = false;
};

const json::object* object_field(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(key);
  return value == nullptr ? nullptr : value->if_object();
}

Status unsupported(const std::string& group, std::string_view field, std::string_view found,
                   std::string_view expected) {
  return Status(Code::kUnsupported, fmt::format("config_groups '{}': {} is {}, which cannot be read; supported: {}",
                                                group.substr(0, 60), field, found.substr(0, 60), expected));
}

Result<std::string> text_field(const json::object& object, std::string_view key, std::string_view missing) {
  TANDEM_ASSIGN(const auto value, json_string(object, key));
  return value.value_or(std::string(missing));
}

Result<Group> read_group(const std::string& name, const json::object& object) {
  Group group;
  group.name = name;
  const json::object* weights = object_field(object, "weights");
  if (weights == nullptr) return unsupported(name, "weights", "missing", "an object with num_bits");
  TANDEM_ASSIGN(const std::string type, text_field(*weights, "type", "int"));
  if (type != "int") return unsupported(name, "weights.type", type, "int");
  TANDEM_ASSIGN(const auto bits, json_int(*weights, "num_bits"));
  group.bits = bits.value_or(0);
  if (group.bits != 4 && group.bits != 8)
    return unsupported(name, "weights.num_bits", std::to_string(group.bits), "8, 4");
  TANDEM_ASSIGN(const std::string strategy, text_field(*weights, "strategy", "channel"));
  const bool known = strategy == "channel" || (group.bits == 8 ? strategy == "tensor" : strategy == "group");
  if (!known)
    return unsupported(name, "weights.strategy", strategy, group.bits == 8 ? "channel, tensor" : "channel, group");
  TANDEM_ASSIGN(const auto symmetric, json_bool(*weights, "symmetric"));
  if (group.bits == 8 && !symmetric.value_or(true))
    return unsupported(name, "weights.symmetric", "false", "symmetric 8-bit weights");
  const json::object* input = object_field(object, "input_activations");
  if (group.bits == 4 || input == nullptr) {
    if (group.bits == 8) return unsupported(name, "input_activations", "missing", "8-bit integers (W8A8)");
    return group;  // int4 weights are computed with as floats, whatever would have become of the activations
  }
  TANDEM_ASSIGN(const std::string input_type, text_field(*input, "type", "int"));
  TANDEM_ASSIGN(const auto input_bits, json_int(*input, "num_bits"));
  if (input_type != "int" || input_bits.value_or(8) != 8)
    return unsupported(name, "input_activations", fmt::format("{} of {} bits", input_type, input_bits.value_or(8)),
                       "int of 8 bits");
  TANDEM_ASSIGN(const auto dynamic, json_bool(*input, "dynamic"));
  group.static_input = !dynamic.value_or(false);
  TANDEM_ASSIGN(const std::string input_strategy, text_field(*input, "strategy", "token"));
  const std::string_view expected = group.static_input ? "tensor" : "token";
  if (input_strategy != expected) return unsupported(name, "input_activations.strategy", input_strategy, expected);
  if (!group.static_input) {
    TANDEM_ASSIGN(const auto input_symmetric, json_bool(*input, "symmetric"));
    if (!input_symmetric.value_or(true))
      return unsupported(name, "input_activations.symmetric", "false", "symmetric dynamic activations");
  }
  return group;
}

class CompressedTensorsFormat : public QuantisedFormat {
 public:
  explicit CompressedTensorsFormat(std::vector<Group> groups) : groups_(std::move(groups)) {}

  std::string_view method() const override { return "compressed-tensors"; }

  Result<std::optional<LinearModule>> linear(const TensorIndex& index, const std::string& module, std::int64_t rows,
                                             std::int64_t cols) const override {
    const StoredTensor* weight = index.find(module + ".weight");
    const bool packed = weight == nullptr && index.contains(module + ".weight_packed");
    if (!packed && (weight == nullptr || weight->type)) return std::optional<LinearModule>();  // ignored modules
    auto read = packed ? compressed_int4(index, module, rows, cols) : int8_linear(index, module, rows, cols);
    if (!read) return read.error().context(fmt::format("quantised module '{}'", module));
    return std::optional<LinearModule>(std::move(*read));
  }

  bool uses(std::string_view tensor) const override {
    for (const std::string_view end : {".weight_scale", ".weight_zero_point", ".input_scale", ".input_zero_point",
                                       ".weight_packed", ".weight_shape", ".weight_g_idx", ".bias"})
      if (tensor.ends_with(end)) return true;
    return false;
  }

 private:
  Result<LinearModule> int8_linear(const TensorIndex& index, const std::string& module, std::int64_t rows,
                                   std::int64_t cols) const {
    TANDEM_ASSIGN(const StoredTensor* const tensor, stored_tensor(index, module + ".weight", {"I8"}, {rows, cols}));
    Int8Rows int8;
    int8.values = reinterpret_cast<const std::int8_t*>(tensor->data);
    TANDEM_ASSIGN(std::vector<float> weight_scale, read_weight_scale(index, module, rows));
    TANDEM_TRY(refuse_zero_points(index, module, rows));
    const bool has_input = index.contains(module + ".input_scale");
    if (!allows(has_input))
      return Status(Code::kInvalidArgument,
                    fmt::format("it has {} input_scale, but no group of config_groups has {} 8-bit activations",
                                has_input ? "an" : "no", has_input ? "static" : "dynamic"));
    int8.scale = weight_scale;
    if (has_input) TANDEM_TRY(add_static_input(index, module, cols, int8));
    return int8_module(has_input ? "W8A8 static" : "W8A8 dynamic", rows, cols, std::move(int8),
                       std::move(weight_scale));
  }

  bool allows(bool static_input) const {
    for (const Group& group : groups_)
      if (group.bits == 8 && group.static_input == static_input) return true;
    return false;
  }

  static Result<std::vector<float>> read_weight_scale(const TensorIndex& index, const std::string& module,
                                                      std::int64_t rows) {
    const StoredTensor* scale = index.find(module + ".weight_scale");
    std::int64_t count = 1;
    if (scale != nullptr)
      for (const std::int64_t size : scale->shape) count *= size;
    TANDEM_ASSIGN(std::vector<float> values, stored_floats(index, module + ".weight_scale", count == 1 ? 1 : rows));
    if (values.size() == 1) values.resize(static_cast<std::size_t>(rows), values[0]);  // one for the tensor
    return values;
  }

  static Result<void> refuse_zero_points(const TensorIndex& index, const std::string& module, std::int64_t rows) {
    const std::string name = module + ".weight_zero_point";
    const StoredTensor* tensor = index.find(name);
    if (tensor == nullptr) return {};
    TANDEM_ASSIGN(const auto zeros,
                  stored_integers(index, name, tensor->shape.size() == 1 && tensor->shape[0] == 1 ? 1 : rows));
    for (const std::int32_t zero : zeros)
      if (zero != 0)
        return Status(Code::kUnsupported,
                      fmt::format("tensor '{}' holds {}; only symmetric weights can be read", name, zero));
    return {};
  }

  // y = s_x s_w (sum xq Wq - zp sum Wq): the zero point's part is where the sum starts.
  static Result<void> add_static_input(const TensorIndex& index, const std::string& module, std::int64_t cols,
                                       Int8Rows& int8) {
    TANDEM_ASSIGN(const std::vector<float> scale, stored_floats(index, module + ".input_scale", 1));
    if (!(scale[0] > 0.0F))
      return Status(Code::kInvalidArgument, fmt::format("input_scale is {}, expected above 0", scale[0]));
    std::int32_t zero = 0;
    if (index.contains(module + ".input_zero_point")) {
      TANDEM_ASSIGN(const auto zeros, stored_integers(index, module + ".input_zero_point", 1));
      zero = zeros[0];
    }
    if (zero < -128 || zero > 127)
      return Status(Code::kInvalidArgument, fmt::format("input_zero_point is {}, expected -128..127", zero));
    int8.input = kernels::StaticInput{scale[0], 0.0F, zero};
    for (std::size_t row = 0; row < int8.scale.size(); ++row) {
      int8.scale[row] *= scale[0];
      if (zero == 0) continue;
      const std::int8_t* values = int8.values + static_cast<std::int64_t>(row) * cols;
      std::int64_t sum = 0;
      for (std::int64_t i = 0; i < cols; ++i) sum += values[i];
      int8.start.push_back(static_cast<std::int32_t>(-zero * sum));
    }
    return {};
  }

  std::vector<Group> groups_;
};

}  // namespace

Result<std::unique_ptr<QuantisedFormat>> compressed_tensors_format(const json::object& config) {
  TANDEM_ASSIGN(const std::string status, text_field(config, "quantization_status", "compressed"));
  if (status != "compressed" && status != "frozen")
    return Status(Code::kUnsupported,
                  fmt::format("quantization_status is {}, expected compressed", status.substr(0, 60)));
  const json::object* groups = object_field(config, "config_groups");
  if (groups == nullptr || groups->empty() || groups->size() > kMaxGroups)
    return Status(Code::kInvalidArgument,
                  fmt::format("'config_groups' is missing, empty or has more than {} groups", kMaxGroups));
  std::vector<Group> list;
  for (const auto& [name, value] : *groups) {
    if (!value.is_object())
      return Status(Code::kInvalidArgument, fmt::format("config_groups '{}' is not an object", std::string(name)));
    TANDEM_ASSIGN(Group group, read_group(std::string(name), value.as_object()));
    list.push_back(std::move(group));
  }
  return std::unique_ptr<QuantisedFormat>(std::make_unique<CompressedTensorsFormat>(std::move(list)));
}

}  // namespace tandem::model
