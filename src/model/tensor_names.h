// SPDX-License-Identifier: Apache-2.0
// Which tensors a model of a given config has: Hugging Face names and shapes (spec: model_formats.md 1.2).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"

namespace tandem::model {

enum class TensorRole { kEmbedding, kLinear, kBias, kNorm };

struct TensorSpec {
  std::string name;
  std::int64_t rows = 0;  ///< 1 for vectors
  std::int64_t cols = 0;
  TensorRole role = TensorRole::kLinear;
  std::int32_t expert = -1;  ///< whose, if it is an expert's
};

/// Every tensor that must be there, embedding first, then layer by layer, then the final norm and (if not tied)
/// lm_head.
std::vector<TensorSpec> expected_tensors(const ModelConfig& config);

/// "model.layers.<layer>.<rest>"
std::string layer_tensor(std::int32_t layer, std::string_view rest);

/// "model.layers.<layer>.mlp.experts.<expert>.<rest>"
std::string expert_tensor(std::int32_t layer, std::int32_t expert, std::string_view rest);

inline constexpr std::string_view kEmbeddingName = "model.embed_tokens.weight";
inline constexpr std::string_view kFinalNormName = "model.norm.weight";
inline constexpr std::string_view kHeadName = "lm_head.weight";
inline constexpr std::string_view kRouterName = "mlp.gate.weight";  ///< of a layer

}  // namespace tandem::model
