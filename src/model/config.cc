// SPDX-License-Identifier: Apache-2.0
#include "model/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <limits>

#include "base/json.h"
#include "base/log.h"
#include "model/rope.h"

namespace tandem::model {
namespace json = boost::json;
namespace {

struct FamilyRow {
  Family family;
  std::string_view architecture;
  std::string_view model_type;
};
constexpr FamilyRow kFamilies[] = {
    {Family::kLlama, "LlamaForCausalLM", "llama"},
    {Family::kQwen2, "Qwen2ForCausalLM", "qwen2"},
    {Family::kQwen3, "Qwen3ForCausalLM", "qwen3"},
    {Family::kQwen3Moe, "Qwen3MoeForCausalLM", "qwen3_moe"},
};

// Above every published model by an order of magnitude; small enough that no product of two overflows.
constexpr std::int64_t kMaxVocab = std::int64_t{1} << 24;
constexpr std::int64_t kMaxWidth = std::int64_t{1} << 20;
constexpr std::int64_t kMaxLayers = 4096;
constexpr std::int64_t kMaxHeads = 8192;
constexpr std::int64_t kMaxHeadDim = 1024;
constexpr std::int64_t kMaxExperts = 4096;
constexpr std::int64_t kMaxPositions = std::int64_t{1} << 30;

Status bad_config(std::string message) { return Status(Code::kInvalidArgument, std::move(message)); }

std::string supported_architectures() {
  std::string list;
  for (const FamilyRow& row : kFamilies) list += (list.empty() ? "" : ", ") + std::string(row.architecture);
  return list;
}

Result<const FamilyRow*> find_family(const json::object& config) {
  TANDEM_ASSIGN(const std::optional<std::string> model_type, json_string(config, "model_type"));
  const json::value* architectures = config.if_contains("architectures");
  if (architectures != nullptr && !architectures->is_null()) {
    if (!architectures->is_array() || architectures->as_array().empty() || !architectures->as_array()[0].is_string())
      return bad_config("field 'architectures' must be a list that starts with a name such as \"Qwen3ForCausalLM\"");
    const std::string name(architectures->as_array()[0].as_string());
    for (const FamilyRow& row : kFamilies) {
      if (row.architecture != name) continue;
      if (model_type && *model_type != row.model_type)
        return bad_config(fmt::format("architecture {} goes with model_type '{}', but model_type is '{}'", name,
                                      row.model_type, *model_type));
      return &row;
    }
    return Status(Code::kUnsupported,
                  fmt::format("architecture '{}' is not supported; supported: {}", name, supported_architectures()));
  }
  if (!model_type) return bad_config("the config has neither 'architectures' nor 'model_type'");
  for (const FamilyRow& row : kFamilies)
    if (row.model_type == *model_type) return &row;
  return Status(Code::kUnsupported, fmt::format("model_type '{}' is not supported; supported architectures: {}",
                                                *model_type, supported_architectures()));
}

Result<std::int32_t> size_field(const json::object& config, std::string_view key, std::int64_t limit,
                                std::optional<std::int64_t> fallback = std::nullopt) {
  TANDEM_ASSIGN(const std::optional<std::int64_t> found, json_int(config, key));
  if (!found && !fallback) return bad_config(fmt::format("required field '{}' is missing", key));
  const std::int64_t value = found ? *found : *fallback;
  if (value < 1 || value > limit) return bad_config(fmt::format("field '{}' is {}, expected 1..{}", key, value, limit));
  return static_cast<std::int32_t>(value);
}

Result<bool> flag(const json::object& config, std::string_view key) {
  TANDEM_ASSIGN(const std::optional<bool> found, json_bool(config, key));
  return found.value_or(false);
}

Result<void> parse_sizes(const json::object& config, ModelConfig& model) {
  TANDEM_ASSIGN(model.vocab_size, size_field(config, "vocab_size", kMaxVocab));
  TANDEM_ASSIGN(model.hidden_size, size_field(config, "hidden_size", kMaxWidth));
  TANDEM_ASSIGN(model.intermediate_size, size_field(config, "intermediate_size", kMaxWidth));
  TANDEM_ASSIGN(model.num_layers, size_field(config, "num_hidden_layers", kMaxLayers));
  TANDEM_ASSIGN(model.num_heads, size_field(config, "num_attention_heads", kMaxHeads));
  TANDEM_ASSIGN(model.num_kv_heads, size_field(config, "num_key_value_heads", kMaxHeads, model.num_heads));
  if (model.num_heads % model.num_kv_heads != 0)
    return bad_config(fmt::format("num_attention_heads {} is not a multiple of num_key_value_heads {}", model.num_heads,
                                  model.num_kv_heads));
  std::optional<std::int64_t> derived;
  if (model.family == Family::kQwen3)
    derived = 128;
  else if (model.hidden_size % model.num_heads == 0)
    derived = model.hidden_size / model.num_heads;
  TANDEM_ASSIGN(const std::optional<std::int64_t> given, json_int(config, "head_dim"));
  if (!given && !derived)
    return bad_config(fmt::format("hidden_size {} is not a multiple of num_attention_heads {} and there is no head_dim",
                                  model.hidden_size, model.num_heads));
  TANDEM_ASSIGN(model.head_dim, size_field(config, "head_dim", kMaxHeadDim, derived));
  if (model.head_dim % 2 != 0)
    return bad_config(fmt::format("head_dim {} is odd; rotary embedding needs an even one", model.head_dim));
  return {};
}

Result<void> parse_features(const json::object& config, ModelConfig& model) {
  TANDEM_ASSIGN(const std::optional<std::string> activation, json_string(config, "hidden_act"));
  if (activation && *activation != "silu")
    return Status(Code::kUnsupported, fmt::format("hidden_act '{}' is not supported, only 'silu'", *activation));
  TANDEM_ASSIGN(const bool window, flag(config, "use_sliding_window"));
  if (window)
    return Status(Code::kUnsupported,
                  "use_sliding_window: true is not supported; only full attention is. If the model "
                  "works with full attention, pass --hf-overrides '{\"use_sliding_window\": false}'");
  TANDEM_ASSIGN(const std::optional<double> eps_field, json_double(config, "rms_norm_eps"));
  const double eps = eps_field.value_or(1e-6);
  if (!(eps > 0.0 && eps < 1.0))
    return bad_config(fmt::format("rms_norm_eps is {}, expected above 0 and below 1", eps));
  model.rms_norm_eps = static_cast<float>(eps);
  TANDEM_ASSIGN(model.tie_word_embeddings, flag(config, "tie_word_embeddings"));
  TANDEM_ASSIGN(const bool attention_bias, flag(config, "attention_bias"));
  // Qwen2 has biases on q, k and v whatever its config says, and never one on o.
  model.qkv_bias = model.family == Family::kQwen2 || attention_bias;
  model.o_bias = model.family != Family::kQwen2 && attention_bias;
  TANDEM_ASSIGN(const bool mlp_bias, flag(config, "mlp_bias"));
  model.mlp_bias = model.family == Family::kLlama && mlp_bias;
  model.qk_norm = model.family == Family::kQwen3 || model.family == Family::kQwen3Moe;
  for (const char* key : {"dtype", "torch_dtype"}) {
    TANDEM_ASSIGN(const std::optional<std::string> dtype, json_string(config, key));
    if (!dtype) continue;
    model.dtype = dtype->starts_with("torch.") ? dtype->substr(6) : *dtype;
    break;
  }
  return {};
}

Result<void> parse_mlp_only_layers(const json::object& config, ModelConfig& model) {
  const json::value* list = config.if_contains("mlp_only_layers");
  if (list == nullptr || list->is_null()) return {};
  if (!list->is_array() || static_cast<std::int64_t>(list->as_array().size()) > kMaxLayers)
    return bad_config(fmt::format("field 'mlp_only_layers' is {}, expected a list of layer numbers",
                                  json::serialize(*list).substr(0, 60)));
  for (const json::value& item : list->as_array()) {
    // A number past the last layer is harmless: a config that was cut to fewer layers.
    if (!item.is_int64() || item.as_int64() < 0 || item.as_int64() >= kMaxLayers)
      return bad_config(fmt::format("field 'mlp_only_layers' holds {}, expected layer numbers from 0",
                                    json::serialize(item).substr(0, 60)));
    model.mlp_only_layers.push_back(static_cast<std::int32_t>(item.as_int64()));
  }
  std::sort(model.mlp_only_layers.begin(), model.mlp_only_layers.end());
  return {};
}

// Defaults are those of transformers (model_formats.md 1.1), also where published files differ from them.
Result<void> parse_experts(const json::object& config, ModelConfig& model) {
  if (model.family != Family::kQwen3Moe) return {};
  const std::string_view count = config.contains("num_experts") ? "num_experts" : "num_local_experts";
  TANDEM_ASSIGN(const std::optional<std::int64_t> given, json_int(config, count));
  if (given && *given == 0) return {};
  TANDEM_ASSIGN(model.num_experts, size_field(config, count, kMaxExperts, 128));
  TANDEM_ASSIGN(model.experts_per_token, size_field(config, "num_experts_per_tok", kMaxExperts, 8));
  if (model.experts_per_token > model.num_experts)
    return bad_config(fmt::format("field 'num_experts_per_tok' is {}, more than the {} experts there are",
                                  model.experts_per_token, model.num_experts));
  TANDEM_ASSIGN(model.moe_intermediate_size, size_field(config, "moe_intermediate_size", kMaxWidth, 768));
  TANDEM_ASSIGN(model.norm_topk_prob, flag(config, "norm_topk_prob"));
  TANDEM_ASSIGN(model.decoder_sparse_step, size_field(config, "decoder_sparse_step", kMaxLayers, 1));
  return parse_mlp_only_layers(config, model);
}

Result<std::int32_t> token_id(const json::value& value, std::string_view key, std::int64_t vocab) {
  if (!value.is_int64() || value.as_int64() < 0 || value.as_int64() >= vocab)
    return bad_config(fmt::format("field '{}' holds {}, expected a token id in 0..{}", key,
                                  json::serialize(value).substr(0, 60), vocab - 1));
  return static_cast<std::int32_t>(value.as_int64());
}

Result<void> parse_token_ids(const json::object& config, ModelConfig& model) {
  if (const json::value* eos = config.if_contains("eos_token_id"); eos != nullptr && !eos->is_null()) {
    const json::array list = eos->is_array() ? eos->as_array() : json::array{*eos};
    if (list.size() > 256)
      return bad_config(fmt::format("field 'eos_token_id' lists {} ids, at most 256", list.size()));
    for (const json::value& value : list) {
      TANDEM_ASSIGN(const std::int32_t id, token_id(value, "eos_token_id", model.vocab_size));
      model.eos_token_ids.push_back(id);
    }
  }
  // Only shown to templates and tokenizers; a list (some exports) or an id outside the vocabulary is not worth a
  // failure.
  if (const json::value* bos = config.if_contains("bos_token_id"); bos != nullptr && bos->is_int64())
    if (auto id = token_id(*bos, "bos_token_id", model.vocab_size)) model.bos_token_id = *id;
  return {};
}

std::int64_t context_of(const ModelConfig& model, std::int64_t base) {
  double length = static_cast<double>(base);
  if (model.rope.type == RopeType::kYarn)
    length = static_cast<double>(model.rope.original_max_position) * model.rope.factor;
  else if (model.rope.type == RopeType::kLinear)
    length = static_cast<double>(base) * model.rope.factor;
  return static_cast<std::int64_t>(std::min(std::floor(length), static_cast<double>(kMaxPositions)));
}

bool names_rope_type(const json::value& value) {
  return value.is_object() && (value.as_object().contains("rope_type") || value.as_object().contains("type"));
}

void merge_into(json::object& base, const json::object& overrides, int depth) {
  for (const auto& [key, value] : overrides) {
    json::value* old = base.if_contains(key);
    if (depth > 0 && value.is_object() && old != nullptr && old->is_object())
      merge_into(old->as_object(), value.as_object(), depth - 1);
    else
      base[key] = value;
  }
}

}  // namespace

bool is_expert_layer(const ModelConfig& config, std::int32_t layer) {
  return config.num_experts > 0 && (layer + 1) % config.decoder_sparse_step == 0 &&
         !std::binary_search(config.mlp_only_layers.begin(), config.mlp_only_layers.end(), layer);
}

json::object merge_overrides(const json::object& base, const json::object& overrides) {
  json::object merged = base;
  json::object rest = overrides;
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const json::value* replacement = overrides.if_contains(key);
    if (replacement == nullptr || !(names_rope_type(*replacement) || replacement->is_null())) continue;
    json::object rope;
    for (const char* old_key : {"rope_scaling", "rope_parameters"})
      if (const json::value* old = base.if_contains(old_key); old != nullptr && old->is_object())
        if (const json::value* theta = old->as_object().if_contains("rope_theta")) rope["rope_theta"] = *theta;
    if (replacement->is_object()) merge_into(rope, replacement->as_object(), 0);
    merged.erase("rope_scaling");
    merged["rope_parameters"] = rope;
    rest.erase("rope_parameters");
    rest.erase("rope_scaling");
    break;
  }
  // Settings without a type change the object in use, whichever name it has.
  if (json::value* scaling = rest.if_contains("rope_scaling"); scaling != nullptr && scaling->is_object())
    if (const json::value* used = merged.if_contains("rope_parameters"); used != nullptr && used->is_object()) {
      merge_into(merged["rope_parameters"].as_object(), scaling->as_object(), 0);
      rest.erase("rope_scaling");
    }
  merge_into(merged, rest, 16);
  return merged;
}

void limit_context(ModelConfig& config, double model_max_length) {
  // Tokenizers without a limit write 1e30.
  if (!(model_max_length >= 1.0) || model_max_length > static_cast<double>(kMaxPositions)) return;
  config.max_context =
      context_of(config, std::min(config.max_position_embeddings, static_cast<std::int64_t>(model_max_length)));
}

Result<ModelConfig> parse_config(const json::object& config, const json::object& overrides) {
  const json::object merged = merge_overrides(config, overrides);
  ModelConfig model;
  TANDEM_ASSIGN(const FamilyRow* const family, find_family(merged));
  model.family = family->family;
  model.architecture = family->architecture;
  TANDEM_TRY(parse_sizes(merged, model));
  TANDEM_TRY(parse_features(merged, model));
  TANDEM_TRY(parse_experts(merged, model));
  TANDEM_TRY(parse_token_ids(merged, model));
  TANDEM_ASSIGN(model.rope, parse_rope(merged));
  const bool has_theta = merged.contains("rope_theta") ||
                         (merged.contains("rope_parameters") && merged.at("rope_parameters").is_object() &&
                          merged.at("rope_parameters").as_object().contains("rope_theta"));
  if (!has_theta && model.family != Family::kLlama)
    log::warning(
        "config.json of a {} gives no rope_theta; 10000 is used (vLLM would take 1000000). If the text is "
        "nonsense, pass --hf-overrides '{{\"rope_theta\": 1000000}}'",
        model.architecture);
  TANDEM_ASSIGN(const std::int32_t positions, size_field(merged, "max_position_embeddings", kMaxPositions, 32768));
  model.max_position_embeddings = positions;
  model.max_context = context_of(model, model.max_position_embeddings);
  return model;
}

}  // namespace tandem::model
