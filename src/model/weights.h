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
#include "model/model.h"

namespace tandem::model {

struct ExpertWeights {
  std::unique_ptr<kernels::PackedLinear> gate_up;  ///< rows gate | up
  std::unique_ptr<kernels::PackedLinear> down;
};

struct LayerWeights {
  std::vector<float> input_norm;           ///< [H]
  std::vector<float> post_attention_norm;  ///< [H]
  std::vector<float> q_norm;               ///< [head_dim], Qwen3 only
  std::vector<float> k_norm;
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
  std::vector<float> final_norm;
  std::unique_ptr<kernels::PackedLinear> head;  ///< lm_head, or the embedding again if tied
  std::size_t bytes = 0;
};

/// Uses all threads of the team; `progress` (may be empty) gets the share done.
Result<ModelWeights> load_weights(const Checkpoint& checkpoint, const ModelOptions& options, const kernels::Ops& ops,
                                  kernels::ThreadTeam& team, const std::function<void(double)>& progress);

}  // namespace tandem::model
