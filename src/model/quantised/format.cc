// SPDX-License-Identifier: Apache-2.0
#include "model/quantised/format.h"

#include <fmt/format.h>

#include <boost/json.hpp>

#include "base/json.h"
#include "model/quantised/ascend.h"
#include "model/quantised/block_fp8.h"
#include "model/quantised/compressed_tensors.h"
#include "model/quantised/packed_int4.h"

namespace tandem::model {
namespace json = boost::json;
namespace {

constexpr const char* kDescription = "quant_model_description.json";

const json::value* present(const json::object& config, const char* key) {
  const json::value* value = config.if_contains(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

Result<std::unique_ptr<QuantisedFormat>> format_of(const json::object& config) {
  TANDEM_ASSIGN(const auto method, json_string(config, "quant_method"));
  const std::string name = method.value_or("");
  if (name == "compressed-tensors") return compressed_tensors_format(config);
  if (name == "gptq") return gptq_format(config);
  if (name == "awq") return awq_format(config);
  if (name == "fp8") return block_fp8_format(config);
  return Status(Code::kUnsupported,
                fmt::format("'quant_method' is '{}', which cannot be read; supported: compressed-tensors, gptq, awq, "
                            "fp8, and msModelSlim's files (ascend)",
                            name.substr(0, 60)));
}

}  // namespace

Result<std::unique_ptr<QuantisedFormat>> quantised_format(const json::object& config, const json::object* description) {
  const char* key = "quantization_config";
  const json::value* value = present(config, key);
  if (value == nullptr) value = present(config, key = "compression_config");
  if (description != nullptr) {
    if (value != nullptr)
      return Status(Code::kInvalidArgument,
                    fmt::format("the folder has both {} and '{}' in config.json; take away the one that the weights "
                                "do not belong to",
                                kDescription, key));
    auto format = ascend_format(*description);
    if (!format) return format.error().context(kDescription);
    return format;
  }
  if (value != nullptr) {
    if (!value->is_object())
      return Status(Code::kInvalidArgument, fmt::format("'{}' in config.json is not an object", key));
    auto format = format_of(value->as_object());
    if (!format) return format.error().context(fmt::format("'{}' in config.json", key));
    return format;
  }
  if (const json::value* legacy = present(config, "quantize"))
    return Status(Code::kNotFound,
                  fmt::format("config.json says 'quantize': {}, but the folder holds no {}; is the download complete?",
                              json::serialize(*legacy).substr(0, 60), kDescription));
  return std::unique_ptr<QuantisedFormat>();
}

}  // namespace tandem::model
