// SPDX-License-Identifier: Apache-2.0
// The header of a safetensors file: u64 length, JSON, data. Every number in it is checked before it is believed.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/tensor_index.h"

namespace tandem::model {

/// The tensors of a file; their data point into `file`. Errors name `path`, the tensor, what was found and expected.
Result<std::vector<StoredTensor>> parse_safetensors(std::span<const std::byte> file, const std::string& path);

}  // namespace tandem::model
