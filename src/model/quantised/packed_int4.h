// SPDX-License-Identifier: Apache-2.0
// int4 weights, eight to a 32-bit word: GPTQ, AWQ, and compressed-tensors' pack-quantized. The kernels have no int4, so
// rows are floats when they are read. Spec: model_formats.md 5.3.
#pragma once

#include <boost/json/fwd.hpp>
#include <memory>

#include "model/quantised/format.h"

namespace tandem::model {

/// `config`: config.json's quantization_config. Other bits or layouts are refused by field.
Result<std::unique_ptr<QuantisedFormat>> gptq_format(const boost::json::object& config);
Result<std::unique_ptr<QuantisedFormat>> awq_format(const boost::json::object& config);

/// A module of compressed-tensors: weight_packed, weight_scale, and perhaps weight_zero_point and weight_g_idx.
Result<LinearModule> compressed_int4(const TensorIndex& index, const std::string& module, std::int64_t rows,
                                     std::int64_t cols);

}  // namespace tandem::model
