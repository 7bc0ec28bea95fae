// SPDX-License-Identifier: Apache-2.0
// A checkpoint's tensors, packed for the kernels of one device: projections that share their input are fused.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "base/status.h"
#include "kernels/kernels.h"
#include "model/checkpoint.h"
#include "model/expert_placement.h"
#include "model/model.h"

namespace tandem::model {

struct Norm {
  std::vector<float> weight;
  std::vector<float> bias;  ///< of smoothed quantised checkpoints; empty: none
};

struct ExpertWeights {
  std::unique_ptr<kernels::PackedLinear> gate_up;  ///< rows gate | up
  std::unique_ptr<kernels::PackedLinear> down;
};

struct LayerWeights {
  Norm input_norm;           ///< [H]
  Norm post_attention_norm;  ///< [H]
  Norm q_norm;               ///< [head_dim], Qwen3 only
  Norm k_norm;
  std::unique_ptr<kernels::PackedLinear> qkv;  ///< rows q | k | v
  std::unique_ptr<kernels::PackedLinear> o;
  // A dense layer has these two,
  std::unique_ptr<kernels::PackedLinear> gate_up;  ///< rows gate | up
  std::unique_ptr<kernels::PackedLinear> down;
  // and a layer with experts these.
  std::unique_ptr<kernels::PackedLinear> router;  ///< rows are experts; nullptr in a dense layer
  std::vector<ExpertWeights> experts;             ///< this process's (own_experts), in order
};

struct ModelWeights {
  TensorView embedding;  ///< [V, H], read row by row from the checkpoint
  std::vector<LayerWeights> layers;
  Norm final_norm;
  std::unique_ptr<kernels::PackedLinear> head;  ///< lm_head, or the embedding again if tied
  std::size_t bytes = 0;
};

/// The memory that the linear layers (with lm_head, and with these experts of each layer) will take, about: before they
/// are loaded.
std::size_t packed_linear_bytes(const Checkpoint& checkpoint, const ModelOptions& options, const ExpertRange& experts);

/// Uses all threads of the team; `progress` (may be empty) gets the share done.
Result<ModelWeights> load_weights(const Checkpoint& checkpoint, const ModelOptions& options, const kernels::Ops& ops,
                                  kernels::ThreadTeam& team, const std::function<void(double)>& progress);

}  // namespace tandem::model
