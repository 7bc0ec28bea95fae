// SPDX-License-Identifier: Apache-2.0
#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <string>

namespace tandem::model {
namespace {

namespace json = boost::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

json::object object(std::string_view text) {
  return json::parse(json::string_view(text.data(), text.size())).as_object();
}

json::object qwen3() {
  return object(R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151936,
    "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_theta": 1000000, "tie_word_embeddings": true,
    "max_position_embeddings": 40960, "eos_token_id": 151645})");
}

json::object llama() {
  return object(R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 49152, "hidden_size": 576,
    "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9})");
}

json::object qwen3_moe() {
  return object(R"({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 151936,
    "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "rope_theta": 1000000, "num_experts": 128, "num_experts_per_tok": 8,
    "moe_intermediate_size": 768, "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": []})");
}

json::object with(json::object config, std::string_view changes) {
  for (const auto& [key, value] : object(changes)) config[key] = value;
  return config;
}

ModelConfig good(const json::object& config, const json::object& overrides = {}) {
  auto parsed = parse_config(config, overrides);
  EXPECT_TRUE(parsed.has_value()) << parsed.error().message();
  return parsed ? *parsed : ModelConfig();
}

std::string error(const json::object& config, const json::object& overrides = {}) {
  const auto parsed = parse_config(config, overrides);
  EXPECT_FALSE(parsed.has_value());
  return parsed ? "" : parsed.error().message();
}

TEST(Config, Qwen3HeadDimIsNotDerivedFromTheHiddenSize) {
  const ModelConfig config = good(qwen3());
  EXPECT_EQ(config.family, Family::kQwen3);
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_TRUE(config.qk_norm);
  EXPECT_FALSE(config.qkv_bias);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(151645));
  EXPECT_EQ(good(with(qwen3(), R"({"head_dim": null})")).head_dim, 128);
  EXPECT_EQ(good(with(qwen3(), R"({"head_dim": 64})")).head_dim, 64);
}

TEST(Config, DefaultsOfAbsentFields) {
  const ModelConfig config = good(llama());
  EXPECT_EQ(config.head_dim, 64);
  EXPECT_EQ(config.num_kv_heads, 9);
  EXPECT_FLOAT_EQ(config.rms_norm_eps, 1e-6F);
  EXPECT_FALSE(config.tie_word_embeddings) << "these families untie by default";
  EXPECT_DOUBLE_EQ(config.rope.theta, 10000.0);
  EXPECT_EQ(config.rope.type, RopeType::kDefault);
  EXPECT_EQ(config.max_position_embeddings, 32768);
  EXPECT_EQ(config.max_context, 32768);
  EXPECT_EQ(config.dtype, "bfloat16");
  EXPECT_THAT(config.eos_token_ids, IsEmpty());
  EXPECT_FALSE(config.mlp_bias);
}

TEST(Config, Qwen2BiasIsImplicitAndNeverOnTheOutput) {
  const json::object config = with(llama(), R"({"architectures": ["Qwen2ForCausalLM"], "rope_theta": 1e6,
                                                "attention_bias": true, "mlp_bias": true})");
  EXPECT_TRUE(good(config).qkv_bias);
  EXPECT_FALSE(good(config).o_bias);
  EXPECT_FALSE(good(config).mlp_bias);
  EXPECT_TRUE(good(with(config, R"({"attention_bias": false})")).qkv_bias);
}

TEST(Config, AttentionBiasOfLlamaIncludesTheOutput) {
  const ModelConfig config = good(with(llama(), R"({"attention_bias": true, "mlp_bias": true})"));
  EXPECT_TRUE(config.qkv_bias);
  EXPECT_TRUE(config.o_bias);
  EXPECT_TRUE(config.mlp_bias);
}

TEST(Config, SlidingWindowWithoutItsFlagIsNoise) {
  good(with(qwen3(), R"({"sliding_window": 32768, "use_sliding_window": false, "max_window_layers": 21})"));
  good(with(qwen3(), R"({"sliding_window": 4096})"));
  EXPECT_THAT(error(with(qwen3(), R"({"use_sliding_window": true, "sliding_window": 4096})")),
              HasSubstr("use_sliding_window"));
}

TEST(Config, ExpertsOfQwen3Moe) {
  const ModelConfig config = good(qwen3_moe());
  EXPECT_EQ(config.family, Family::kQwen3Moe);
  EXPECT_EQ(config.num_experts, 128);
  EXPECT_EQ(config.experts_per_token, 8);
  EXPECT_EQ(config.moe_intermediate_size, 768);
  EXPECT_TRUE(config.norm_topk_prob);
  EXPECT_TRUE(config.qk_norm);
  EXPECT_FALSE(config.qkv_bias);
  for (std::int32_t layer = 0; layer < 48; ++layer) EXPECT_TRUE(is_expert_layer(config, layer)) << layer;
  EXPECT_EQ(good(qwen3()).num_experts, 0);
  EXPECT_FALSE(is_expert_layer(good(qwen3()), 0));
}

TEST(Config, DefaultsOfExpertFields) {
  json::object bare = qwen3_moe();
  for (const char* field : {"num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob",
                            "decoder_sparse_step", "mlp_only_layers", "head_dim"})
    bare.erase(field);
  const ModelConfig config = good(bare);
  EXPECT_EQ(config.num_experts, 128);
  EXPECT_EQ(config.experts_per_token, 8);
  EXPECT_EQ(config.moe_intermediate_size, 768);
  EXPECT_FALSE(config.norm_topk_prob);
  EXPECT_EQ(config.decoder_sparse_step, 1);
  EXPECT_EQ(config.head_dim, 64) << "other than Qwen3's, derived from the hidden size";
  EXPECT_EQ(good(with(bare, R"({"num_local_experts": 16})")).num_experts, 16);
}

TEST(Config, WhichLayersHaveExperts) {
  const auto layers = [](std::string_view changes) {
    const ModelConfig config = good(with(qwen3_moe(), changes));
    std::vector<std::int32_t> list;
    for (std::int32_t layer = 0; layer < 8; ++layer)
      if (is_expert_layer(config, layer)) list.push_back(layer);
    return list;
  };
  EXPECT_THAT(layers(R"({"decoder_sparse_step": 2})"), ElementsAre(1, 3, 5, 7)) << "steps count from 1";
  EXPECT_THAT(layers(R"({"decoder_sparse_step": 3, "mlp_only_layers": [5, 2]})"), IsEmpty());
  EXPECT_THAT(layers(R"({"mlp_only_layers": [7, 0, 1, 90]})"), ElementsAre(2, 3, 4, 5, 6));
  EXPECT_THAT(layers(R"({"num_experts": 0})"), IsEmpty());
}

TEST(Config, WildExpertFieldsAreRefusedByName) {
  for (const char* field : {"num_experts_per_tok", "moe_intermediate_size", "decoder_sparse_step"})
    for (const char* value : {"0", "-1", "4000000000", "1.5", "\"many\""})
      EXPECT_THAT(error(with(qwen3_moe(), std::string(R"({")") + field + "\": " + value + "}")), HasSubstr(field));
  EXPECT_THAT(error(with(qwen3_moe(), R"({"num_experts": -1})")), HasSubstr("num_experts"));
  EXPECT_THAT(error(with(qwen3_moe(), R"({"num_experts": 5000})")), HasSubstr("num_experts"));
  EXPECT_THAT(error(with(qwen3_moe(), R"({"num_experts": 4})")), HasSubstr("'num_experts_per_tok' is 8"));
  EXPECT_THAT(error(with(qwen3_moe(), R"({"norm_topk_prob": "maybe"})")), HasSubstr("norm_topk_prob"));
  for (const char* value : {"3", "[-1]", "[\"a\"]", "[1.5]", "{}"})
    EXPECT_THAT(error(with(qwen3_moe(), std::string(R"({"mlp_only_layers": )") + value + "}")),
                HasSubstr("mlp_only_layers"));
}

TEST(Config, UnknownArchitecturesAreRefusedByName) {
  const std::string message = error(with(qwen3(), R"({"architectures": ["Qwen2MoeForCausalLM"]})"));
  EXPECT_THAT(message, HasSubstr("Qwen2MoeForCausalLM"));
  EXPECT_THAT(message, HasSubstr("LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, Qwen3MoeForCausalLM"));
  EXPECT_THAT(error(with(qwen3(), R"({"model_type": "llama"})")), HasSubstr("model_type"));
  EXPECT_THAT(error(with(qwen3(), R"({"architectures": []})")), HasSubstr("architectures"));
  EXPECT_THAT(error(object("{}")), HasSubstr("architectures"));
  EXPECT_THAT(error(object(R"({"model_type": "mamba"})")), HasSubstr("mamba"));
}

TEST(Config, WildSizesAreRefused) {
  for (const char* field : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                            "num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings"})
    for (const char* value : {"0", "-1", "4000000000", "9223372036854775807", "1.5", "\"many\"", "[]"}) {
      const std::string change = std::string(R"({")") + field + "\": " + value + "}";
      EXPECT_THAT(error(with(qwen3(), change)), HasSubstr(field)) << value;
    }
  EXPECT_THAT(error(with(qwen3(), R"({"num_key_value_heads": 5})")), HasSubstr("multiple"));
  EXPECT_THAT(error(with(llama(), R"({"hidden_size": 577})")), HasSubstr("head_dim"));
  EXPECT_THAT(error(with(qwen3(), R"({"head_dim": 63})")), HasSubstr("odd"));
  EXPECT_THAT(error(with(qwen3(), R"({"rms_norm_eps": 0})")), HasSubstr("rms_norm_eps"));
  EXPECT_THAT(error(with(qwen3(), R"({"rope_theta": -1})")), HasSubstr("rope_theta"));
  EXPECT_THAT(error(with(qwen3(), R"({"hidden_act": "gelu"})")), HasSubstr("gelu"));
  EXPECT_THAT(error(with(qwen3(), R"({"eos_token_id": [151645, 151936]})")), HasSubstr("eos_token_id"));
  json::object missing = qwen3();
  missing.erase("hidden_size");
  EXPECT_THAT(error(missing), HasSubstr("'hidden_size' is missing"));
}

TEST(Config, QuantisedCheckpointsAreRefused) {}

TEST(Config, OverridesAreMergedDeeply) {
  const json::object merged = merge_overrides(object(R"({"a": 1, "b": {"c": 2, "d": {"e": 3}}})"),
                                              object(R"({"b": {"d": {"f": 4}}, "g": null})"));
  EXPECT_EQ(merged, object(R"({"a": 1, "b": {"c": 2, "d": {"e": 3, "f": 4}}, "g": null})"));
  EXPECT_EQ(good(qwen3(), object(R"({"max_position_embeddings": 1000})")).max_context, 1000);
  EXPECT_EQ(good(with(qwen3(), R"({"use_sliding_window": true})"), object(R"({"use_sliding_window": false})")).head_dim,
            128);
}

TEST(Config, YarnSetsTheContext) {
  const json::object yarn =
      object(R"({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}})");
  ModelConfig config = good(qwen3(), yarn);
  EXPECT_EQ(config.rope.type, RopeType::kYarn);
  EXPECT_EQ(config.max_context, 131072);
  limit_context(config, 1000.0);
  EXPECT_EQ(config.max_context, 131072) << "as in vLLM, YaRN's own limit stands";
  EXPECT_THAT(error(qwen3(), object(R"({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}})")),
              HasSubstr("original_max_position_embeddings"));
}

TEST(Config, TheTokenizersLimitLowersTheContext) {
  ModelConfig config = good(qwen3());
  limit_context(config, 131072.0);
  EXPECT_EQ(config.max_context, 40960);
  limit_context(config, 2048.0);
  EXPECT_EQ(config.max_context, 2048);
  config = good(qwen3());
  limit_context(config, 1e30);
  EXPECT_EQ(config.max_context, 40960);
}

TEST(Config, LinearScalingStretchesTheContext) {
  const json::object linear = object(R"({"rope_scaling": {"type": "linear", "factor": 4}})");
  EXPECT_EQ(good(with(llama(), R"({"max_position_embeddings": 4096})"), linear).max_context, 16384);
}

}  // namespace
}  // namespace tandem::model
