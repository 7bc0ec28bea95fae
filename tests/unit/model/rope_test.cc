// SPDX-License-Identifier: Apache-2.0
// Values of model_formats.md 2.3 and 2.4.
#include "model/rope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <string>

namespace tandem::model {
namespace {

namespace json = boost::json;
using ::testing::HasSubstr;

RopeConfig rope(std::string_view config) {
  auto parsed = parse_rope(json::parse(json::string_view(config.data(), config.size())).as_object());
  EXPECT_TRUE(parsed.has_value()) << parsed.error().message();
  return parsed ? *parsed : RopeConfig();
}

std::string error(std::string_view config) {
  const auto parsed = parse_rope(json::parse(json::string_view(config.data(), config.size())).as_object());
  EXPECT_FALSE(parsed.has_value()) << config;
  return parsed ? "" : parsed.error().message();
}

RopeConfig yarn(double factor) {
  RopeConfig config = rope(R"({"rope_theta": 1e6, "rope_scaling": {"rope_type": "yarn", "factor": 4.0,
                               "original_max_position_embeddings": 32768}})");
  config.factor = factor;
  return config;
}

void expect_frequency(const RopeConfig& config, int head_dim, std::size_t i, double expected) {
  EXPECT_NEAR(rope_frequencies(config, head_dim).at(i) / expected, 1.0, 1e-9) << "i = " << i;
}

TEST(Rope, YarnFrequenciesAtFactorFour) {
  const RopeConfig config = yarn(4.0);
  expect_frequency(config, 128, 0, 1.0);
  expect_frequency(config, 128, 1, 8.058421877615e-01);
  expect_frequency(config, 128, 2, 6.493816315762e-01);
  expect_frequency(config, 128, 23, 6.978305848599e-03);
  expect_frequency(config, 128, 24, 5.375321490790e-03);
  expect_frequency(config, 128, 31, 8.029597275452e-04);
  expect_frequency(config, 128, 39, 6.490394320837e-05);
  expect_frequency(config, 128, 40, 4.445698525097e-05);
  expect_frequency(config, 128, 62, 3.849816315149e-07);
  expect_frequency(config, 128, 63, 3.102344401879e-07);
}

TEST(Rope, YarnFrequenciesAtFactorTwo) {
  const RopeConfig config = yarn(2.0);
  expect_frequency(config, 128, 23, 6.978305848599e-03);
  expect_frequency(config, 128, 24, 5.458018744495e-03);
  expect_frequency(config, 128, 31, 9.489524052807e-04);
  expect_frequency(config, 128, 39, 1.168270977751e-04);
  expect_frequency(config, 128, 63, 6.204688803759e-07);
}

TEST(Rope, YarnWithoutTruncationAndWithAnotherHeadDim) {
  RopeConfig config = yarn(4.0);
  config.truncate = false;
  expect_frequency(config, 128, 23, 6.978305848598663e-03);
  expect_frequency(config, 128, 24, 5.5172704751341e-03);
  expect_frequency(config, 128, 30, 1.0792377416766e-03);
  expect_frequency(config, 128, 40, 4.4456985250973e-05);
  config.truncate = true;
  expect_frequency(config, 64, 12, 5.154795480912e-03);
  expect_frequency(config, 64, 15, 1.026617684040e-03);
  expect_frequency(config, 64, 31, 3.849816315149e-07);
}

TEST(Rope, YarnAttentionFactor) {
  EXPECT_NEAR(yarn(4.0).attention_factor, 1.138629436111989, 1e-14);
  const auto with = [](const std::string& keys) {
    return rope(R"({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64)" +
                keys + "}}")
        .attention_factor;
  };
  EXPECT_NEAR(with(""), 1.0693147180559945, 1e-14);
  EXPECT_DOUBLE_EQ(with(R"(, "attention_factor": 1.5)"), 1.5);
  EXPECT_NEAR(with(R"(, "attn_factor": 2.0)"), 2 * 1.0693147180559945, 1e-14);
  EXPECT_DOUBLE_EQ(with(R"(, "apply_yarn_scaling": false)"), 1.0);
  EXPECT_NEAR(with(R"(, "mscale": 0.5, "mscale_all_dim": 2.0)"), 1.0346573590279973 / 1.138629436111989, 1e-14);
  EXPECT_NEAR(with(R"(, "attention_factor": 2.138629436111989, "attn_factor": 2.0)"), 2.138629436111989, 1e-14);
  EXPECT_THAT(error(R"({"rope_scaling": {"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 64,
                        "attention_factor": 1.5, "attn_factor": 1.5}})"),
              HasSubstr("disagree"));
}

TEST(Rope, YarnTablesMultiplyTheAttentionFactorIn) {
  kernels::ThreadTeam team(2);
  const RopeTables tables = make_rope_tables(yarn(4.0), 128, 100001, team);
  const auto at = [](std::size_t position, std::size_t i) { return position * 64 + i; };
  EXPECT_NEAR(tables.cos[at(1, 0)], 0.615204110, 1e-7);
  EXPECT_NEAR(tables.sin[at(1, 0)], 0.958123633, 1e-7);
  EXPECT_NEAR(tables.cos[at(1000, 30)], 0.552307146, 1e-7);
  EXPECT_NEAR(tables.sin[at(1000, 30)], 0.995707693, 1e-7);
  EXPECT_NEAR(tables.cos[at(100000, 63)], 1.138081541, 1e-7);
  EXPECT_NEAR(tables.sin[at(100000, 63)], 0.035318541, 1e-7);
}

TEST(Rope, Llama3Frequencies) {
  const RopeConfig large = rope(R"({"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", "factor": 8.0,
      "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}})");
  expect_frequency(large, 128, 28, 3.211445995e-03);
  expect_frequency(large, 128, 29, 2.166570764e-03);
  expect_frequency(large, 128, 30, 1.371893568e-03);
  expect_frequency(large, 128, 35, 9.556212354e-05);
  expect_frequency(large, 128, 63, 3.068925989e-07);
  EXPECT_DOUBLE_EQ(large.attention_factor, 1.0);
  RopeConfig small = large;
  small.factor = 32.0;
  expect_frequency(small, 64, 15, 1.290547928e-03);
  expect_frequency(small, 64, 17, 9.708287803e-05);
  expect_frequency(small, 64, 18, 1.946163818e-05);
}

TEST(Rope, LinearDividesAndFactorsOfAFileDivideEachPair) {
  const RopeConfig linear = rope(R"({"rope_scaling": {"type": "linear", "factor": 4}})");
  expect_frequency(linear, 8, 1, 0.1 / 4);
  RopeConfig factors;
  factors.frequency_factors = {1.0F, 2.0F, 4.0F, 8.0F};
  expect_frequency(factors, 8, 2, 0.01 / 4);
  EXPECT_NE(rope_identity(factors, 8), rope_identity(RopeConfig(), 8));
}

TEST(Rope, ParametersOfTransformersFiveTakePrecedence) {
  const RopeConfig config = rope(R"({"rope_theta": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 2},
      "rope_parameters": {"rope_theta": 5e6, "rope_type": "default"}})");
  EXPECT_EQ(config.type, RopeType::kDefault);
  EXPECT_DOUBLE_EQ(config.theta, 5e6);
}

TEST(Rope, AnOverrideThatNamesATypeReplacesTheOldSettings) {
  const auto merged = merge_overrides(
      json::parse(R"({"rope_parameters": {"rope_theta": 5e6, "rope_type": "default", "type": "default"}})").as_object(),
      json::parse(R"({"rope_scaling": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 32768}})")
          .as_object());
  const auto parsed = parse_rope(merged);
  ASSERT_TRUE(parsed.has_value()) << parsed.error().message();
  EXPECT_EQ(parsed->type, RopeType::kYarn);
  EXPECT_DOUBLE_EQ(parsed->theta, 5e6);
  const auto changed =
      parse_rope(merge_overrides(merged, json::parse(R"({"rope_scaling": {"factor": 2}})").as_object()));
  ASSERT_TRUE(changed.has_value());
  EXPECT_DOUBLE_EQ(changed->factor, 2.0);
  const auto removed = parse_rope(merge_overrides(merged, json::parse(R"({"rope_scaling": null})").as_object()));
  ASSERT_TRUE(removed.has_value());
  EXPECT_EQ(removed->type, RopeType::kDefault);
  EXPECT_DOUBLE_EQ(removed->theta, 5e6);
}

TEST(Rope, BadSettingsAreNamed) {
  for (const char* type : {"dynamic", "longrope", "su", "mrope"})
    EXPECT_THAT(error(std::string(R"({"rope_scaling": {"rope_type": ")") + type + R"(", "factor": 2}})"),
                HasSubstr(type));
  EXPECT_THAT(error(R"({"rope_scaling": {"rope_type": "linear"}})"), HasSubstr("factor"));
  EXPECT_THAT(error(R"({"rope_scaling": {"rope_type": "linear", "factor": 0.5}})"), HasSubstr("factor"));
  EXPECT_THAT(error(R"({"rope_scaling": {"rope_type": "linear", "type": "yarn", "factor": 2}})"),
              HasSubstr("two types"));
  EXPECT_THAT(error(R"({"rope_scaling": "yarn"})"), HasSubstr("rope_scaling"));
  EXPECT_THAT(error(R"({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}})"), HasSubstr("full_attention"));
  EXPECT_THAT(error(R"({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4,
                        "high_freq_factor": 4, "original_max_position_embeddings": 8192}})"),
              HasSubstr("high_freq_factor"));
  EXPECT_THAT(error(R"({"rope_scaling": {"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 0}})"),
              HasSubstr("original_max_position_embeddings"));
}

}  // namespace
}  // namespace tandem::model
