// SPDX-License-Identifier: Apache-2.0
// FP8 (e4m3) weights with one scale for each block of a matrix, as the Qwen3-*-FP8 checkpoints have them. The kernels
// have no FP8, so rows are floats when they are read. Spec: model_formats.md 5.3.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <memory>

#include "model/quantised/format.h"

namespace tandem::model {

/// Sign, 4 bits of exponent (bias 7), 3 of mantissa; no infinity, 0x7f and 0xff are NaN.
float fp8_e4m3_value(std::uint8_t bits);

/// `config`: config.json's quantization_config. FP8 of another kind is refused by field.
Result<std::unique_ptr<QuantisedFormat>> block_fp8_format(const boost::json::object& config);

}  // namespace tandem::model
