// SPDX-License-Identifier: Apache-2.0
// Check values of model_formats.md 8.1, and the tool's shapes against the golden files.
#include "model/generator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "make_model/encode.h"
#include "make_model/shapes.h"
#include "support/model_support.h"

namespace tandem::model {
namespace {

namespace json = boost::json;
using testing::load_golden;

TEST(Generator, CheckValues) {
  const std::uint64_t seed = generator_seed("39:", "model.embed_tokens.weight");
  EXPECT_EQ(seed, 0xe90e105f49d3a63aU);
  EXPECT_EQ(generator_unit(seed, 0), 0.8253538608551025F);
  EXPECT_EQ(generator_unit(seed, 1), -0.9895849227905273F);
  EXPECT_EQ(generator_unit(seed, 2), 0.5746383666992188F);
}

TEST(Generator, FirstEmbeddingWeights) {
  const auto golden = load_golden("T1-qwen3");
  const auto checkpoint = make_synthetic_checkpoint(golden.config, golden.salt);
  const auto view = checkpoint->tensor("model.embed_tokens.weight", 257, 48);
  ASSERT_TRUE(view.has_value());
  std::vector<float> row(48);
  view->read_row(0, row.data());
  EXPECT_EQ(row[0], 0.10302734375F);
  EXPECT_EQ(row[1], -0.12353515625F);
  EXPECT_EQ(row[2], 0.07177734375F);
}

TEST(Generator, RefusesUnknownTensorsAndShapes) {
  const auto golden = load_golden("T1-qwen3");
  const auto checkpoint = make_synthetic_checkpoint(golden.config, golden.salt);
  EXPECT_FALSE(checkpoint->tensor("lm_head.weight", 257, 48).has_value()) << "the embedding is tied";
  EXPECT_FALSE(checkpoint->tensor("model.embed_tokens.weight", 257, 49).has_value());
  EXPECT_TRUE(checkpoint->has_tensor("model.layers.2.self_attn.q_norm.weight"));
  EXPECT_FALSE(checkpoint->has_tensor("model.layers.3.self_attn.q_norm.weight"));
}

TEST(Generator, FingerprintsDifferByWeightsAndByShape) {
  const auto golden = load_golden("T7-qwen3-2kv");
  const auto one = make_synthetic_checkpoint(golden.config, "1:")->fingerprint();
  EXPECT_EQ(make_synthetic_checkpoint(golden.config, "1:")->fingerprint(), one);
  EXPECT_NE(make_synthetic_checkpoint(golden.config, "2:")->fingerprint(), one);
  ModelConfig other = golden.config;
  other.rms_norm_eps = 1e-5F;
  EXPECT_NE(make_synthetic_checkpoint(other, "1:")->fingerprint(), one);
}

TEST(Shapes, AreThoseOfTheGoldenFiles) {
  const std::pair<const char*, const char*> pairs[] = {
      {"tiny-t1", "T1-qwen3"},      {"tiny-t2", "T2-qwen3moe"},   {"tiny-t2b", "T2b-qwen3moe-mixed"},
      {"tiny-t3", "T3-qwen2"},      {"tiny-t4", "T4-llama"},      {"tiny-t4b", "T4b-llama3rope"},
      {"tiny-t5", "T5-qwen3-yarn"}, {"tiny-t6", "T6-qwen3-12kv"}, {"tiny-t7", "T7-qwen3-2kv"}};
  for (const auto& [name, file] : pairs) {
    const auto shape = tools::find_shape(name);
    ASSERT_TRUE(shape.has_value());
    const auto golden = load_golden(file);
    EXPECT_EQ(shape->salt, golden.salt);
    const auto config =
        parse_config(json::parse(json::string_view(shape->config.data(), shape->config.size())).as_object(), {});
    ASSERT_TRUE(config.has_value());
    EXPECT_EQ(json::serialize(tools::config_json(*config)), json::serialize(tools::config_json(golden.config))) << name;
  }
  EXPECT_FALSE(tools::find_shape("tiny-t9").has_value());
}

TEST(Encode, EveryFinitePatternOfF16ComesBack) {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const f16_t value{static_cast<std::uint16_t>(bits)};
    const bool nan = (bits & 0x7c00U) == 0x7c00U && (bits & 0x3ffU) != 0;
    if (nan) continue;
    ASSERT_EQ(tools::to_f16(to_float(value)).bits, bits) << bits;
  }
  EXPECT_EQ(tools::to_f16(65519.99F).bits, 0x7bffU);
  EXPECT_EQ(tools::to_f16(65520.0F).bits, 0x7c00U);
  EXPECT_EQ(tools::to_f16(1.0F + 0x1p-11F).bits, 0x3c00U) << "ties go to even";
  EXPECT_EQ(tools::to_f16(1.0F + 0x3p-11F).bits, 0x3c02U);
  EXPECT_EQ(tools::to_f16(0x1p-25F).bits, 0U);
  EXPECT_EQ(tools::to_f16(0x1.8p-25F).bits, 1U);
}

}  // namespace
}  // namespace tandem::model
