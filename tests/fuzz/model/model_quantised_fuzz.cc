// SPDX-License-Identifier: Apache-2.0
// Any JSON as config.json and quant_model_description.json of a quantised checkpoint, and the modules that follow from
// them over tensors of fuzzed type, shape and bytes.
#include <boost/json.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/log.h"
#include "model/quantised/format.h"

namespace {

using namespace tandem;
namespace json = boost::json;

constexpr std::size_t kMaxTensors = 32;
constexpr std::int64_t kMaxSide = 64;

/// {"name": [dtype, [shape...]]} with memory for each; nothing else is checked, as the reader of files has done that.
model::TensorIndex make_index(const json::object& object, std::string_view bytes,
                              std::vector<std::vector<std::byte>>& memory) {
  model::TensorIndex index;
  memory.reserve(kMaxTensors);
  for (const auto& [name, value] : object) {
    if (memory.size() == kMaxTensors || !value.is_array() || value.as_array().size() != 2) continue;
    const json::string* type = value.as_array()[0].if_string();
    const json::array* shape = value.as_array()[1].if_array();
    if (type == nullptr || shape == nullptr || shape->size() > 3) continue;
    model::StoredTensor tensor;
    tensor.name = tensor.stored_name = std::string(name);
    tensor.type_name = std::string(*type);
    std::size_t size = 8;
    if (*type == "F32") tensor.type = model::TensorType::kF32;
    if (*type == "F16") tensor.type = model::TensorType::kF16;
    if (*type == "BF16") tensor.type = model::TensorType::kBf16;
    if (tensor.type) size = model::tensor_block_bytes(*tensor.type);
    if (*type == "I8" || *type == "F8_E4M3") size = 1;
    if (*type == "I32") size = 4;
    for (const json::value& side : *shape) {
      const std::int64_t length = side.is_int64() ? side.as_int64() : 0;
      tensor.shape.push_back(length < 0 || length > kMaxSide ? 1 : length);
      size *= static_cast<std::size_t>(tensor.shape.back());
    }
    std::vector<std::byte>& data = memory.emplace_back(size);
    for (std::size_t i = 0; i < size && !bytes.empty(); ++i) data[i] = static_cast<std::byte>(bytes[i % bytes.size()]);
    tensor.data = data.data();
    tensor.bytes = size;
    (void)index.add(std::move(tensor), "fuzz");
  }
  return index;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  log::configure(log::Level::kError, "");
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto parsed = parse_json({reinterpret_cast<const char*>(data), size}, {.max_depth = 16, .max_bytes = 1U << 20});
  if (!parsed || !parsed->is_object()) return 0;
  const json::object& object = parsed->as_object();
  const json::value* description = object.if_contains("description");
  const auto format = model::quantised_format(
      object, description != nullptr && description->is_object() ? &description->as_object() : nullptr);
  const json::value* tensors = object.if_contains("tensors");
  if (!format || *format == nullptr || tensors == nullptr || !tensors->is_object()) return 0;
  const json::value* bytes = object.if_contains("bytes");
  std::vector<std::vector<std::byte>> memory;
  const model::TensorIndex index = make_index(
      tensors->as_object(), bytes != nullptr && bytes->is_string() ? std::string_view(bytes->as_string()) : "", memory);
  for (const auto& [rows, cols] : {std::pair<std::int64_t, std::int64_t>{8, 16}, {16, 8}, {2, 3}}) {
    const auto module = (*format)->linear(index, "m", rows, cols);
    if (!module || !*module) continue;
    std::vector<float> row(static_cast<std::size_t>(cols));
    for (std::int64_t i = 0; i < rows; ++i) (**module).weight.read_row(i, row.data());
    if ((**module).int8 && (**module).int8->scale.size() != static_cast<std::size_t>(rows)) std::abort();
  }
  return 0;
}
