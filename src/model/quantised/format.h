// SPDX-License-Identifier: Apache-2.0
// How a quantised checkpoint stores its linear modules: one format for each way, and which one a folder has. Spec:
// model_formats.md 5.
#pragma once

#include <boost/json/fwd.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "model/linear_module.h"
#include "model/tensor_index.h"

namespace tandem::model {

class QuantisedFormat {
 public:
  virtual ~QuantisedFormat() = default;
  /// By the names of --quantization.
  virtual std::string_view method() const = 0;
  /// The module "model.layers.0.mlp.up_proj" as its tensors in `index` say; nullopt if it is a plain float one. Errors
  /// name the module's type or the tensor that is not as it should be. The views point into the files of `index`.
  virtual Result<std::optional<LinearModule>> linear(const TensorIndex& index, const std::string& module,
                                                     std::int64_t rows, std::int64_t cols) const = 0;
  /// Whether the format may read a tensor whose name ends like this (".weight_scale"), for warnings about unused ones.
  virtual bool uses(std::string_view tensor) const = 0;
};

/// The format that a config.json (`config`) and, if there is one, a quant_model_description*.json say; nullptr: floats.
/// An unknown method is refused by its name.
Result<std::unique_ptr<QuantisedFormat>> quantised_format(const boost::json::object& config,
                                                          const boost::json::object* description);

}  // namespace tandem::model
