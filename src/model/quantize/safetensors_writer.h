// SPDX-License-Identifier: Apache-2.0
// Writes tensors into the safetensors files of a Hugging Face folder: one file, or shards and their index.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace tandem::model {

struct OutputTensor {
  std::string name;
  std::string dtype;  ///< as safetensors names it: "BF16", "I8"
  std::vector<std::int64_t> shape;
  std::size_t bytes = 0;
  /// Writes exactly `bytes` bytes. Called once, in the order of the list, so a tensor may need what was made for the
  /// one before.
  std::function<Result<void>(std::ostream& out)> write;
};

/// One file with these tensors.
Result<void> write_safetensors_file(const std::string& path, std::span<const OutputTensor> tensors);

/// model.safetensors, or, if all tensors take more than `shard_bytes`, model-00001-of-0000N.safetensors and
/// model.safetensors.index.json (written last). A tensor is never split. Errors name the file.
Result<void> write_safetensors_folder(const std::string& folder, const std::vector<OutputTensor>& tensors,
                                      std::size_t shard_bytes);

}  // namespace tandem::model
