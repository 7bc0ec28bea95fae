// SPDX-License-Identifier: Apache-2.0
#include "make_model/shapes.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <cstdlib>

namespace tandem::tools {
namespace json = boost::json;

const std::vector<NamedShape>& named_shapes() {
  static const std::vector<NamedShape> shapes = {
      {"tiny-t1", "39:",
       R"({"model_type": "qwen3", "vocab_size": 257, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
           "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 32, "rms_norm_eps": 1e-6,
           "rope_theta": 1000000.0, "tie_word_embeddings": true, "max_position_embeddings": 512})"},
      {"tiny-t2", "11:",
       R"({"model_type": "qwen3_moe", "vocab_size": 320, "hidden_size": 40, "intermediate_size": 56,
           "moe_intermediate_size": 24, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 1,
           "head_dim": 16, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": false,
           "num_experts": 6, "num_experts_per_tok": 2, "norm_topk_prob": true, "decoder_sparse_step": 1,
           "mlp_only_layers": [], "max_position_embeddings": 512})"},
      {"tiny-t2b", "8:",
       R"({"model_type": "qwen3_moe", "vocab_size": 320, "hidden_size": 40, "intermediate_size": 56,
           "moe_intermediate_size": 24, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 1,
           "head_dim": 16, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": false,
           "num_experts": 6, "num_experts_per_tok": 3, "norm_topk_prob": false, "decoder_sparse_step": 2,
           "mlp_only_layers": [3], "max_position_embeddings": 512})"},
      {"tiny-t3", "14:",
       R"({"model_type": "qwen2", "vocab_size": 300, "hidden_size": 56, "intermediate_size": 100, "num_hidden_layers": 2,
           "num_attention_heads": 7, "num_key_value_heads": 1, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
           "tie_word_embeddings": false, "max_position_embeddings": 512})"},
      {"tiny-t4", "8:",
       R"({"model_type": "llama", "vocab_size": 259, "hidden_size": 72, "intermediate_size": 96, "num_hidden_layers": 3,
           "num_attention_heads": 9, "num_key_value_heads": 3, "rms_norm_eps": 1e-5, "rope_theta": 100000.0,
           "tie_word_embeddings": true, "max_position_embeddings": 512})"},
      {"tiny-t4b", "9:",
       R"({"model_type": "llama", "vocab_size": 259, "hidden_size": 72, "intermediate_size": 96, "num_hidden_layers": 3,
           "num_attention_heads": 9, "num_key_value_heads": 3, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
           "tie_word_embeddings": true, "max_position_embeddings": 512,
           "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                            "original_max_position_embeddings": 64}})"},
      {"tiny-t5", "5:",
       R"({"model_type": "qwen3", "vocab_size": 257, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
           "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 32, "rms_norm_eps": 1e-6,
           "rope_theta": 10000.0, "tie_word_embeddings": true, "max_position_embeddings": 256,
           "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}})"},
      {"tiny-t6", "1:",
       R"({"model_type": "qwen3", "vocab_size": 288, "hidden_size": 96, "intermediate_size": 144, "num_hidden_layers": 3,
           "num_attention_heads": 12, "num_key_value_heads": 12, "head_dim": 16, "rms_norm_eps": 1e-6,
           "rope_theta": 1000000.0, "tie_word_embeddings": false, "max_position_embeddings": 2048})"},
      {"tiny-t7", "7:",
       R"({"model_type": "qwen3", "vocab_size": 288, "hidden_size": 96, "intermediate_size": 144, "num_hidden_layers": 3,
           "num_attention_heads": 12, "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-6,
           "rope_theta": 1000000.0, "tie_word_embeddings": false, "max_position_embeddings": 2048})"},
      {"qwen3-0.6b", "qwen3-0.6b:",
       R"({"model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072,
           "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
           "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": true,
           "max_position_embeddings": 40960})"},
      {"smollm2-135m", "smollm2-135m:",
       R"({"model_type": "llama", "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536,
           "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "rms_norm_eps": 1e-5,
           "rope_theta": 100000.0, "tie_word_embeddings": true, "max_position_embeddings": 8192})"},
      // Qwen3-235B-A22B made small, with its vocabulary and the ratios that matter: KV heads are fewer than TP 8, and
      // the experts divide neither by 32 ranks nor by the ones of two nodes.
      {"qwen3-moe-small", "qwen3-moe-small:",
       R"({"model_type": "qwen3_moe", "vocab_size": 151936, "hidden_size": 128, "intermediate_size": 256,
           "moe_intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 4,
           "head_dim": 32, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": false,
           "num_experts": 40, "num_experts_per_tok": 4, "norm_topk_prob": true, "decoder_sparse_step": 1,
           "mlp_only_layers": [], "max_position_embeddings": 40960, "eos_token_id": [151645, 151643]})"},
  };
  return shapes;
}

Result<NamedShape> find_shape(std::string_view name) {
  std::string names;
  for (const NamedShape& shape : named_shapes()) {
    if (shape.name == name) return shape;
    names += (names.empty() ? "" : ", ") + std::string(shape.name);
  }
  return Status(Code::kInvalidArgument, fmt::format("there is no shape '{}'; there are {}", name, names));
}

namespace {

// 1e-6F as 1e-06, not as 9.999999974752427e-07.
double shortest(float value) { return std::strtod(fmt::format("{}", value).c_str(), nullptr); }

json::object rope_json(const model::RopeConfig& rope) {
  switch (rope.type) {
    case model::RopeType::kDefault:
      return {};
    case model::RopeType::kLinear:
      return {{"rope_type", "linear"}, {"factor", rope.factor}};
    case model::RopeType::kLlama3:
      return {{"rope_type", "llama3"},
              {"factor", rope.factor},
              {"low_freq_factor", rope.low_freq_factor},
              {"high_freq_factor", rope.high_freq_factor},
              {"original_max_position_embeddings", rope.original_max_position}};
    case model::RopeType::kYarn:
      return {{"rope_type", "yarn"},
              {"factor", rope.factor},
              {"original_max_position_embeddings", rope.original_max_position},
              {"beta_fast", rope.beta_fast},
              {"beta_slow", rope.beta_slow},
              {"extrapolation_factor", rope.extrapolation_factor},
              {"truncate", rope.truncate},
              {"attention_factor", rope.attention_factor}};
  }
  return {};
}

std::string_view model_type(model::Family family) {
  switch (family) {
    case model::Family::kLlama:
      return "llama";
    case model::Family::kQwen2:
      return "qwen2";
    case model::Family::kQwen3:
      return "qwen3";
    case model::Family::kQwen3Moe:
      return "qwen3_moe";
  }
  return "";
}

}  // namespace

json::object config_json(const model::ModelConfig& config) {
  json::object object{{"architectures", json::array{json::value(config.architecture)}},
                      {"model_type", model_type(config.family)},
                      {"vocab_size", config.vocab_size},
                      {"hidden_size", config.hidden_size},
                      {"intermediate_size", config.intermediate_size},
                      {"num_hidden_layers", config.num_layers},
                      {"num_attention_heads", config.num_heads},
                      {"num_key_value_heads", config.num_kv_heads},
                      {"head_dim", config.head_dim},
                      {"hidden_act", "silu"},
                      {"rms_norm_eps", shortest(config.rms_norm_eps)},
                      {"rope_theta", config.rope.theta},
                      {"rope_scaling", nullptr},
                      {"max_position_embeddings", config.max_position_embeddings},
                      {"tie_word_embeddings", config.tie_word_embeddings},
                      {"attention_bias", config.o_bias},
                      {"mlp_bias", config.mlp_bias},
                      {"torch_dtype", config.dtype}};
  if (config.family == model::Family::kQwen3Moe) {
    object["num_experts"] = config.num_experts;
    object["num_experts_per_tok"] = config.experts_per_token;
    object["moe_intermediate_size"] = config.moe_intermediate_size;
    object["norm_topk_prob"] = config.norm_topk_prob;
    object["decoder_sparse_step"] = config.decoder_sparse_step;
    object["mlp_only_layers"] = json::value_from(config.mlp_only_layers);
  }
  if (config.rope.type != model::RopeType::kDefault) object["rope_scaling"] = rope_json(config.rope);
  if (!config.eos_token_ids.empty()) object["eos_token_id"] = json::value_from(config.eos_token_ids);
  if (config.bos_token_id) object["bos_token_id"] = *config.bos_token_id;
  return object;
}

}  // namespace tandem::tools
