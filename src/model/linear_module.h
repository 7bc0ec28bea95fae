// SPDX-License-Identifier: Apache-2.0
// One linear module of a checkpoint, in the form nearest to what kernels take: int8 rows with their scales, or rows of
// floats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "model/tensor_view.h"

namespace tandem::model {

/// A W8A8 module as stored: kernels::Int8Layer without its bias.
struct Int8Rows {
  const std::int8_t* values = nullptr;  ///< [rows, cols], in the mapped file
  std::vector<float> scale;             ///< [rows]: of the weights, or (static) of the result
  std::vector<std::int32_t> start;      ///< [rows], or empty
  std::optional<kernels::StaticInput> input;
};

struct LinearModule {
  TensorView weight;             ///< [rows, cols] as floats, whatever is stored
  std::optional<Int8Rows> int8;  ///< if set, this is what to compute with
  /// The type in the file, where it is not a plain float one: "W8A8_DYNAMIC", "gptq int4".
  std::string type;
  std::size_t stored_bytes = 0;  ///< of the weights alone
  bool includes_bias = false;    ///< the bias is in int8->start: a stored `.bias` must not be added again
  bool is_dequantised() const { return !type.empty() && !int8; }
};

}  // namespace tandem::model
