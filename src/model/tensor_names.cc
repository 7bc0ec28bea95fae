// SPDX-License-Identifier: Apache-2.0
#include "model/tensor_names.h"

#include <fmt/format.h>

namespace tandem::model {

std::string layer_tensor(std::int32_t layer, std::string_view rest) {
  return fmt::format("model.layers.{}.{}", layer, rest);
}

std::string expert_tensor(std::int32_t layer, std::int32_t expert, std::string_view rest) {
  return fmt::format("model.layers.{}.mlp.experts.{}.{}", layer, expert, rest);
}

namespace {

void add_experts(const ModelConfig& config, std::int32_t layer, std::vector<TensorSpec>& list) {
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t inner = config.moe_intermediate_size;
  list.push_back({layer_tensor(layer, kRouterName), config.num_experts, hidden, TensorRole::kLinear});
  for (std::int32_t expert = 0; expert < config.num_experts; ++expert) {
    const auto linear = [&](std::string_view name, std::int64_t out, std::int64_t in) {
      list.push_back({expert_tensor(layer, expert, name), out, in, TensorRole::kLinear, expert});
    };
    linear("gate_proj.weight", inner, hidden);
    linear("up_proj.weight", inner, hidden);
    linear("down_proj.weight", hidden, inner);
  }
}

}  // namespace

std::vector<TensorSpec> expected_tensors(const ModelConfig& config) {
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t inner = config.intermediate_size;
  const std::int64_t q = static_cast<std::int64_t>(config.num_heads) * config.head_dim;
  const std::int64_t kv = static_cast<std::int64_t>(config.num_kv_heads) * config.head_dim;
  std::vector<TensorSpec> list;
  list.push_back({std::string(kEmbeddingName), config.vocab_size, hidden, TensorRole::kEmbedding});
  for (std::int32_t layer = 0; layer < config.num_layers; ++layer) {
    const auto norm = [&](std::string_view name, std::int64_t size) {
      list.push_back({layer_tensor(layer, name), 1, size, TensorRole::kNorm});
    };
    const auto linear = [&](std::string_view name, std::int64_t out, std::int64_t in, bool bias) {
      list.push_back({layer_tensor(layer, fmt::format("{}.weight", name)), out, in, TensorRole::kLinear});
      if (bias) list.push_back({layer_tensor(layer, fmt::format("{}.bias", name)), 1, out, TensorRole::kBias});
    };
    norm("input_layernorm.weight", hidden);
    linear("self_attn.q_proj", q, hidden, config.qkv_bias);
    linear("self_attn.k_proj", kv, hidden, config.qkv_bias);
    linear("self_attn.v_proj", kv, hidden, config.qkv_bias);
    linear("self_attn.o_proj", hidden, q, config.o_bias);
    if (config.qk_norm) {
      norm("self_attn.q_norm.weight", config.head_dim);
      norm("self_attn.k_norm.weight", config.head_dim);
    }
    norm("post_attention_layernorm.weight", hidden);
    if (is_expert_layer(config, layer)) {
      add_experts(config, layer, list);
      continue;
    }
    linear("mlp.gate_proj", inner, hidden, config.mlp_bias);
    linear("mlp.up_proj", inner, hidden, config.mlp_bias);
    linear("mlp.down_proj", hidden, inner, config.mlp_bias);
  }
  list.push_back({std::string(kFinalNormName), 1, hidden, TensorRole::kNorm});
  if (!config.tie_word_embeddings)
    list.push_back({std::string(kHeadName), config.vocab_size, hidden, TensorRole::kLinear});
  return list;
}

}  // namespace tandem::model
