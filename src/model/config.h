// SPDX-License-Identifier: Apache-2.0
// What a checkpoint says of its model, checked. Spec: model_formats.md 1.1 and 2.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace tandem::model {

enum class Family { kLlama, kQwen2, kQwen3, kQwen3Moe };
enum class RopeType { kDefault, kLinear, kLlama3, kYarn };

struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double factor = 1.0;
  double low_freq_factor = 1.0;            ///< llama3
  double high_freq_factor = 4.0;           ///< llama3
  std::int64_t original_max_position = 0;  ///< llama3, yarn
  double beta_fast = 32.0;                 ///< yarn
  double beta_slow = 1.0;
  bool truncate = true;
  double extrapolation_factor = 1.0;  ///< yarn: weight of the uninterpolated frequencies
  double attention_factor = 1.0;      ///< multiplies cos and sin
  /// From a GGUF file's rope_freqs.weight: pair i turns at f_i / factor. Empty, or one a pair.
  std::vector<float> frequency_factors;
};

struct ModelConfig {
  Family family = Family::kLlama;
  std::string architecture;  ///< "Qwen3ForCausalLM"
  std::int32_t vocab_size = 0;
  std::int32_t hidden_size = 0;
  std::int32_t intermediate_size = 0;
  std::int32_t num_layers = 0;
  std::int32_t num_heads = 0;
  std::int32_t num_kv_heads = 0;
  std::int32_t head_dim = 0;
  float rms_norm_eps = 1e-6F;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;
  /// Mixture of experts (Qwen3-MoE). 0: every layer is dense.
  std::int32_t num_experts = 0;
  std::int32_t experts_per_token = 0;
  std::int32_t moe_intermediate_size = 0;
  bool norm_topk_prob = false;
  std::int32_t decoder_sparse_step = 1;
  std::vector<std::int32_t> mlp_only_layers;  ///< ascending
  bool interleaved_qk = false;                ///< GGUF Llama files store q and k rows permuted; the loader undoes it
  RopeConfig rope;
  std::int64_t max_position_embeddings = 0;
  /// The longest context the checkpoint allows: max_position_embeddings, or original * factor with YaRN.
  std::int64_t max_context = 0;
  std::string dtype = "bfloat16";           ///< the checkpoint's own
  std::vector<std::int32_t> eos_token_ids;  ///< from config.json or GGUF
  std::optional<std::int32_t> bos_token_id;
};

/// Whether `layer` (from 0) has a router and experts in the place of an MLP of intermediate_size.
bool is_expert_layer(const ModelConfig& config, std::int32_t layer);

/// Reads a parsed config.json with `overrides` (--hf-overrides, may be empty) merged over it.
Result<ModelConfig> parse_config(const boost::json::object& config, const boost::json::object& overrides);

/// Lowers max_context to what tokenizer_config.json's model_max_length allows. YaRN's limit stands as it is (as in
/// vLLM).
void limit_context(ModelConfig& config, double model_max_length);

/// `overrides` merged into `base`, objects member by member. A RoPE object that names its type replaces the old one
/// whole (but keeps rope_theta): the settings of one RoPE type mean nothing to another.
boost::json::object merge_overrides(const boost::json::object& base, const boost::json::object& overrides);

/// f'_i of every pair, without the attention factor. Length head_dim / 2.
std::vector<double> rope_frequencies(const RopeConfig& rope, std::int32_t head_dim);

}  // namespace tandem::model
