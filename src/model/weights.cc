// SPDX-License-Identifier: Apache-2.0
#include "model/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "base/log.h"
#include "model/expert_placement.h"
#include "model/pack_modules.h"
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
    for (std::int32_t layer = 0; layer < config_.num_layers; ++layer) {
      TANDEM_TRY(load_layer(layer, weights.layers[static_cast<std::size_t>(layer)]));
      checkpoint_.release_pages();  // or the model would be in memory twice at the end
    }
    TANDEM_ASSIGN(weights.final_norm, norm(std::string(kFinalNormName), config_.hidden_size));
    const bool float_head = options_.compute == ComputeType::kFloat32 || options_.float32_rest;
    const std::string head(config_.tie_word_embeddings ? kEmbeddingName : kHeadName);
    TANDEM_ASSIGN(weights.head, pack(float_head ? WeightType::kF32 : WeightType::kBf16, config_.hidden_size,
                                     {{head, config_.vocab_size}}, {}));
    checkpoint_.release_pages();
    weights.bytes = bytes_;
    log_dequantised();
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

    TANDEM_ASSIGN(out.input_norm, norm(named("input_layernorm.weight"), hidden));
    TANDEM_ASSIGN(out.post_attention_norm, norm(named("post_attention_layernorm.weight"), hidden));
    if (config_.qk_norm) {
      TANDEM_ASSIGN(out.q_norm, norm(named("self_attn.q_norm.weight"), config_.head_dim));
      TANDEM_ASSIGN(out.k_norm, norm(named("self_attn.k_norm.weight"), config_.head_dim));
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

  Result<Norm> norm(const std::string& name, std::int64_t size) {
    Norm values;
    TANDEM_ASSIGN(values.weight, vector(name, size));
    // What smoothing takes from the activations comes back as a bias of the norm. A float model has none.
    if (const std::string bias = bias_name(name); is_quantised() && checkpoint_.has_tensor(bias)) {
      TANDEM_ASSIGN(values.bias, vector(bias, size));
    }
    return values;
  }

  static std::string bias_name(const std::string& weight) { return weight.substr(0, weight.rfind('.')) + ".bias"; }
  bool is_quantised() const { return !checkpoint_.quantization().empty(); }

  // One layer of all parts' rows, in order. Modules that the checkpoint has in int8 stay as they are.
  Result<std::unique_ptr<PackedLinear>> pack(WeightType type, std::int64_t in_features, const std::vector<Part>& parts,
                                             const std::vector<Part>& bias_parts) {
    std::vector<ModulePart> modules;
    std::int64_t rows = 0;
    std::size_t stored_bytes = 0;
    bool dequantised = false;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      ModulePart& part = modules.emplace_back();
      TANDEM_ASSIGN(part.module, checkpoint_.linear(parts[i].name, parts[i].rows, in_features));
      // Smoothing can give a bias to a module whose config has none.
      const std::string bias = bias_name(parts[i].name);
      const bool has_bias = !bias_parts.empty() || (is_quantised() && checkpoint_.has_tensor(bias));
      if (has_bias && !part.module.includes_bias) {
        TANDEM_ASSIGN(part.bias, vector(bias, parts[i].rows));
      }
      rows += parts[i].rows;
      stored_bytes += part.module.stored_bytes;
      dequantised = dequantised || part.module.is_dequantised();
    }
    auto packed = pack_modules(ops_, team_, type, modules);
    bytes_ += packed->bytes();
    if (options_.observer != nullptr) options_.observer->loaded(*packed, module_rows(parts));
    if (dequantised) {
      dequantised_type_ = modules.front().module.type;
      dequantised_stored_ += stored_bytes;
      dequantised_packed_ += packed->bytes();
    }
    done_ += static_cast<double>(rows * in_features);
    if (progress_ && total_ > 0) progress_(std::min(done_ / total_, 1.0));
    return packed;
  }

  static std::vector<ModuleRows> module_rows(const std::vector<Part>& parts) {
    std::vector<ModuleRows> modules;
    for (const Part& part : parts) modules.push_back({part.name.substr(0, part.name.rfind('.')), part.rows});
    return modules;
  }

  void log_dequantised() const {
    if (dequantised_packed_ == 0) return;
    constexpr double kMiB = 1024.0 * 1024.0;
    log::info(
        "{} weights become {} in memory, as there are no kernels for them: {:.1f} MiB in the files, {:.1f} MiB here",
        dequantised_type_, options_.compute == ComputeType::kFloat32 ? "float32" : "bfloat16",
        static_cast<double>(dequantised_stored_) / kMiB, static_cast<double>(dequantised_packed_) / kMiB);
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
  std::string dequantised_type_;
  std::size_t dequantised_stored_ = 0;
  std::size_t dequantised_packed_ = 0;
};

}  // namespace

std::size_t packed_linear_bytes(const Checkpoint& checkpoint, const ModelOptions& options, const ExpertRange& experts) {
  const bool float_head = options.compute == ComputeType::kFloat32 || options.float32_rest;
  const std::size_t rest = float_head ? 4 : 2;
  const ModelConfig& config = checkpoint.config();
  std::size_t bytes = 0;
  for (const TensorSpec& spec : expected_tensors(config)) {
    if (spec.expert >= 0 && !experts.contains(spec.expert)) continue;
    const auto values = static_cast<std::size_t>(spec.rows * spec.cols);
    if (spec.name == kHeadName || (spec.role == TensorRole::kEmbedding && config.tie_word_embeddings)) {
      bytes += values * rest;
    } else if (spec.role == TensorRole::kLinear) {
      const auto module = checkpoint.linear(spec.name, spec.rows, spec.cols);
      const bool int8 = options.compute == ComputeType::kW8A8 || (module && module->int8);
      bytes += values * (int8 ? 1 : options.compute == ComputeType::kFloat32 ? 4 : 2);
    }
  }
  return bytes;
}

Result<ModelWeights> load_weights(const Checkpoint& checkpoint, const ModelOptions& options, const kernels::Ops& ops,
                                  kernels::ThreadTeam& team, const std::function<void(double)>& progress) {
  if (options.compute == ComputeType::kW8A8 && !checkpoint.quantization().empty())
    return Status(Code::kInvalidArgument,
                  fmt::format("w8a8 is made of float weights, but the checkpoint is quantised already: {}",
                              checkpoint.quantization()),
                  Scope::kProcess);
  return Loader(checkpoint, options, ops, team, progress).load();
}

}  // namespace tandem::model
