// SPDX-License-Identifier: Apache-2.0
// Writes a checkpoint as a Hugging Face folder: config.json and safetensors. Tokenizer files are tokenizer_files.h's.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "make_model/model_tensors.h"
#include "model/checkpoint.h"

namespace tandem::tools {

struct HfOptions {
  model::TensorType type = model::TensorType::kBf16;  ///< kF32, kF16 or kBf16
  int shards = 1;                                     ///< more than one: with model.safetensors.index.json
  std::vector<NamedTensor> extra;                     ///< tensors beyond those of the config
  ExpertForm experts = ExpertForm::kSeparate;
};

/// Makes the folder if need be and overwrites the files in it.
Result<void> write_hf_folder(const model::Checkpoint& checkpoint, const std::string& folder, const HfOptions& options);

}  // namespace tandem::tools
