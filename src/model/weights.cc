// SPDX-License-Identifier: Apache-2.0
#include "model/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "model/expert_placement.h"
#include "model/tensor_names.h"

namespace tandem::model {
namespace {

using kernels::PackedLinear;
using kernels::WeightType;

WeightType layer_weight_type(ComputeType compute) {
  switch (compute) {
    case ComputeType::kFloat32:
      return WeightType::kF32;
    case ComputeType::kBf16:
      return WeightType::kBf16;
    case ComputeType::kW8A8:
      return WeightType::kInt8;
  }
  return WeightType::kF32;
}

class Loader {
 public:
  Loader(const Checkpoint& checkpoint, const ModelOptions& options, const kernels::Ops& ops, kernels::ThreadTeam& team,
         const std::function<void(double)>& progress)
      : checkpoint_(checkpoint),
        config_(checkpoint.config()),
        options_(options),
        ops_(ops),
        team_(team),
        progress_(progress),
        experts_(own_experts(options.experts, config_.num_experts)) {
    for (const TensorSpec& spec : expected_tensors(config_))
      if (spec.expert < 0 || experts_.contains(spec.expert)) total_ += static_cast<double>(spec.rows * spec.cols);
  }

  Result<ModelWeights> load() {
    ModelWeights weights;
    TANDEM_ASSIGN(weights.embedding, checkpoint_.tensor(kEmbeddingName, config_.vocab_size, config_.hidden_size));
    weights.layers.resize(static_cast<std::size_t>(config_.num_layers));
    for (std::int32_t layer = 0; layer < config_.num_layers; ++layer)
      TANDEM_TRY(load_layer(layer, weights.layers[static_cast<std::size_t>(layer)]));
    TANDEM_ASSIGN(weights.final_norm, vector(std::string(kFinalNormName), config_.hidden_size));
    const bool float_head = options_.compute == ComputeType::kFloat32 || options_.float32_rest;
    const std::string head(config_.tie_word_embeddings ? kEmbeddingName : kHeadName);
    TANDEM_ASSIGN(weights.head, pack(float_head ? WeightType::kF32 : WeightType::kBf16, config_.hidden_size,
                                     {{head, config_.vocab_size}}, {}));
    weights.bytes = bytes_;
    if (progress_) progress_(1.0);
    return weights;
  }

 private:
  struct Part {
    std::string name;
    std::int64_t rows = 0;
  };

  Result<void> load_layer(std::int32_t layer, LayerWeights& out) {
    const std::int64_t hidden = config_.hidden_size;
    const std::int64_t inner = config_.intermediate_size;
    const std::int64_t q = static_cast<std::int64_t>(config_.num_heads) * config_.head_dim;
    const std::int64_t kv = static_cast<std::int64_t>(config_.num_kv_heads) * config_.head_dim;
    const WeightType type = layer_weight_type(options_.compute);
    const auto named = [&](std::string_view rest) { return layer_tensor(layer, rest); };
    const auto biased = [&](bool has, std::vector<Part> parts) { return has ? std::move(parts) : std::vector<Part>(); };

    TANDEM_ASSIGN(out.input_norm, vector(named("input_layernorm.weight"), hidden));
    TANDEM_ASSIGN(out.post_attention_norm, vector(named("post_attention_layernorm.weight"), hidden));
    if (config_.qk_norm) {
      TANDEM_ASSIGN(out.q_norm, vector(named("self_attn.q_norm.weight"), config_.head_dim));
      TANDEM_ASSIGN(out.k_norm, vector(named("self_attn.k_norm.weight"), config_.head_dim));
    }
    TANDEM_ASSIGN(out.qkv, pack(type, hidden,
                                {{named("self_attn.q_proj.weight"), q},
                                 {named("self_attn.k_proj.weight"), kv},
                                 {named("self_attn.v_proj.weight"), kv}},
                                biased(config_.qkv_bias, {{named("self_attn.q_proj.bias"), q},
                                                          {named("self_attn.k_proj.bias"), kv},
                                                          {named("self_attn.v_proj.bias"), kv}})));
    TANDEM_ASSIGN(out.o, pack(type, q, {{named("self_attn.o_proj.weight"), hidden}},
                              biased(config_.o_bias, {{named("self_attn.o_proj.bias"), hidden}})));
    if (is_expert_layer(config_, layer)) return load_experts(layer, out);
    TANDEM_ASSIGN(
        out.gate_up,
        pack(type, hidden, {{named("mlp.gate_proj.weight"), inner}, {named("mlp.up_proj.weight"), inner}},
             biased(config_.mlp_bias, {{named("mlp.gate_proj.bias"), inner}, {named("mlp.up_proj.bias"), inner}})));
    TANDEM_ASSIGN(out.down, pack(type, inner, {{named("mlp.down_proj.weight"), hidden}},
                                 biased(config_.mlp_bias, {{named("mlp.down_proj.bias"), hidden}})));
    return {};
  }

  Result<void> load_experts(std::int32_t layer, LayerWeights& out) {
    const std::int64_t hidden = config_.hidden_size;
    const std::int64_t inner = config_.moe_intermediate_size;
    // Always float32: a rounding that tips the choice of an expert changes more than any other, and the router is
    // small.
    TANDEM_ASSIGN(out.router,
                  pack(WeightType::kF32, hidden, {{layer_tensor(layer, kRouterName), config_.num_experts}}, {}));
    const WeightType type = layer_weight_type(options_.compute);
    for (std::int32_t expert = experts_.begin; expert < experts_.end; ++expert) {
      const auto named = [&](std::string_view rest) { return expert_tensor(layer, expert, rest); };
      ExpertWeights& weights = out.experts.emplace_back();
      TANDEM_ASSIGN(weights.gate_up,
                    pack(type, hidden, {{named("gate_proj.weight"), inner}, {named("up_proj.weight"), inner}}, {}));
      TANDEM_ASSIGN(weights.down, pack(type, inner, {{named("down_proj.weight"), hidden}}, {}));
    }
    return {};
  }

  Result<std::vector<float>> vector(const std::string& name, std::int64_t size) {
    TANDEM_ASSIGN(const TensorView view, checkpoint_.tensor(name, 1, size));
    std::vector<float> values(static_cast<std::size_t>(size));
    view.read_row(0, values.data());
    bytes_ += values.size() * sizeof(float);
    return values;
  }

  // One matrix of all parts' rows, in order.
  Result<std::unique_ptr<PackedLinear>> pack(WeightType type, std::int64_t in_features, const std::vector<Part>& parts,
                                             const std::vector<Part>& bias_parts) {
    std::vector<TensorView> views;
    std::int64_t rows = 0;
    for (const Part& part : parts) {
      TANDEM_ASSIGN(TensorView view, checkpoint_.tensor(part.name, part.rows, in_features));
      views.push_back(std::move(view));
      rows += part.rows;
    }
    std::vector<float> bias;
    for (const Part& part : bias_parts) {
      TANDEM_ASSIGN(const std::vector<float> values, vector(part.name, part.rows));
      bias.insert(bias.end(), values.begin(), values.end());
    }
    const auto read_row = [&views](std::int64_t row, float* out) {
      for (const TensorView& view : views) {
        if (row < view.rows) return view.read_row(row, out);
        row -= view.rows;
      }
    };
    auto packed = ops_.pack_linear(team_, type, rows, in_features, read_row, bias.empty() ? nullptr : bias.data());
    bytes_ += packed->bytes();
    done_ += static_cast<double>(rows * in_features);
    if (progress_ && total_ > 0) progress_(std::min(done_ / total_, 1.0));
    return packed;
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  const ModelOptions& options_;
  const kernels::Ops& ops_;
  kernels::ThreadTeam& team_;
  const std::function<void(double)>& progress_;
  const ExpertRange experts_;
  double total_ = 0;
  double done_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace

Result<ModelWeights> load_weights(const Checkpoint& checkpoint, const ModelOptions& options, const kernels::Ops& ops,
                                  kernels::ThreadTeam& team, const std::function<void(double)>& progress) {
  return Loader(checkpoint, options, ops, team, progress).load();
}

}  // namespace tandem::model
