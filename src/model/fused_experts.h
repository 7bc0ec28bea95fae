// SPDX-License-Identifier: Apache-2.0
// Checkpoints that store a layer's experts in one tensor: transformers 5 (experts.gate_up_proj [E, 2M, H] with the gate
// rows first, experts.down_proj [E, H, M]) and GGUF (gate, up and down as [E, rows, cols]). Everything after the reader
// of a file sees one tensor an expert, by the names of the unfused form (spec: model_formats.md 1.2).
#pragma once

#include <vector>

#include "base/status.h"
#include "model/config.h"
#include "model/tensor_index.h"

namespace tandem::model {

/// The experts' own tensors, which point into the memory of `tensor`; or just `tensor`, if it is not a fused one. An
/// error names the tensor and the shape that does not fit.
Result<std::vector<StoredTensor>> split_experts(StoredTensor tensor, const ModelConfig& config);

}  // namespace tandem::model
