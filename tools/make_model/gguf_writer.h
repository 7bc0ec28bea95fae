// SPDX-License-Identifier: Apache-2.0
// Writes a checkpoint as a GGUF version 3 file that llama.cpp accepts.
#pragma once

#include <string>

#include "base/status.h"
#include "make_model/tokenizer_files.h"
#include "model/checkpoint.h"

namespace tandem::tools {

struct GgufOptions {
  /// Of the matrices. One whose rows are not whole blocks is written as F16; norms and biases are F32.
  model::TensorType type = model::TensorType::kQ8_0;
  Vocabulary vocabulary;  ///< one token an id of the model
};

Result<void> write_gguf(const model::Checkpoint& checkpoint, const std::string& path, const GgufOptions& options);

}  // namespace tandem::tools
