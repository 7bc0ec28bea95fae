// SPDX-License-Identifier: Apache-2.0
// Rows of floats into the storage types of checkpoints: the inverse of TensorView::read_row, for making files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/float16.h"
#include "base/status.h"
#include "model/checkpoint.h"

namespace tandem::tools {

/// Round to nearest even; overflow becomes infinity, NaN stays NaN.
f16_t to_f16(float value);

/// "bf16", "q8_0" (any case). The error lists what can be written.
Result<model::TensorType> writable_type(std::string_view name);

std::size_t row_bytes(model::TensorType type, std::int64_t cols);
/// cols must be a multiple of the type's block; `type` one that writable_type() gives.
void encode_row(model::TensorType type, const float* values, std::int64_t cols, std::byte* out);

}  // namespace tandem::tools
