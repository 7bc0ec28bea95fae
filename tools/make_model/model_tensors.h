// SPDX-License-Identifier: Apache-2.0
// The tensors of a checkpoint as a file stores them: each expert's by itself, or a layer's experts in one tensor.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/checkpoint.h"

namespace tandem::tools {

/// A tensor under a name.
struct NamedTensor {
  std::string name;
  model::TensorView view;
  std::int64_t experts = 0;  ///< not 0: [experts, rows / experts, cols]
};

enum class ExpertForm {
  kSeparate,     ///< mlp.experts.<e>.gate_proj.weight, as on the Hub
  kFused,        ///< mlp.experts.gate_proj.weight [E, M, H] and so on, as in GGUF
  kFusedGateUp,  ///< mlp.experts.gate_up_proj [E, 2M, H], mlp.experts.down_proj, as transformers 5 has them in memory
};

/// Every tensor that the checkpoint's config asks for, in order.
Result<std::vector<NamedTensor>> model_tensors(const model::Checkpoint& checkpoint, ExpertForm form);

}  // namespace tandem::tools
