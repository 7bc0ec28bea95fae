// SPDX-License-Identifier: Apache-2.0
// Looking up the tensors beside a quantised weight (scales, zero points) with errors that name what was found.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/linear_module.h"
#include "model/tensor_index.h"

namespace tandem::model {

/// The tensor, with one of the types ("I8") and exactly this shape.
Result<const StoredTensor*> stored_tensor(const TensorIndex& index, const std::string& name,
                                          std::initializer_list<std::string_view> types,
                                          const std::vector<std::int64_t>& shape);
/// `count` values of a tensor of any shape, stored as F32, BF16 or F16. Values that are not finite are errors.
Result<std::vector<float>> stored_floats(const TensorIndex& index, const std::string& name, std::int64_t count);
/// `count` integers of a tensor of any shape, stored as I8, I32 or I64, or as whole floats. Errors past int32.
Result<std::vector<std::int32_t>> stored_integers(const TensorIndex& index, const std::string& name,
                                                  std::int64_t count);

/// A module of rows that are computed when they are read.
LinearModule dequantised_module(std::string type, std::int64_t rows, std::int64_t cols, std::size_t stored_bytes,
                                std::shared_ptr<const RowSource> source);
/// A W8A8 module; its floats are values * weight_scale.
LinearModule int8_module(std::string type, std::int64_t rows, std::int64_t cols, Int8Rows int8,
                         std::vector<float> weight_scale);

}  // namespace tandem::model
