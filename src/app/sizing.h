// SPDX-License-Identifier: Apache-2.0
// How long a context an instance offers and how much memory its KV gets. Pure arithmetic over what the model, the flags
// and the machine say; serve.cc prints the outcome.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/status.h"
#include "config/serve_config.h"
#include "kv/layout.h"
#include "model/config.h"

namespace tandem::app {

struct Sizing {
  std::int64_t max_model_len = 0;
  std::int32_t num_blocks = 0;  ///< of each data-parallel rank of this process
  std::string note;             ///< something the user should know, "" if nothing
};

/// Memory is this process's; its data-parallel ranks share it evenly, while --num-gpu-blocks-override and
/// --max-num-seqs are each rank's. `one_block`: the tensor-parallel ranks' layouts for one block (model::kv_layouts),
/// whose bytes count, replicated heads as often as they are held. `memory_bytes`: what this process may use (machine or
/// cgroup). `weight_bytes`: what the weights will take, if that is known better than by estimated_weight_bytes(). An
/// error names the flag and both numbers.
Result<Sizing> size_instance(const config::ServeConfig& config, const model::ModelConfig& model,
                             std::span<const kv::Layout> one_block, std::int64_t memory_bytes,
                             std::optional<std::int64_t> weight_bytes = {});

/// Rough size of the loaded weights, before they are loaded.
std::int64_t estimated_weight_bytes(const model::ModelConfig& model, const config::ServeConfig& config);
/// Rough size of the activations and logits of the largest step: one in which every data-parallel rank of this process
/// uses up its token budget and its seats.
std::int64_t estimated_activation_bytes(const model::ModelConfig& model, const config::ServeConfig& config);
/// Memory that is free for this process now: of the machine, or of its control group if that has less.
std::int64_t available_memory_bytes();

}  // namespace tandem::app
