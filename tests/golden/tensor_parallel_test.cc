// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism and KV types over the golden models: TP n gives the very bits of TP 1 in each compute type, with
// KV heads split, replicated, and shared between neighbouring ranks; sizes that cannot be split are refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>

#include "model/generator.h"
#include "support/model_support.h"

namespace tandem::testing {
namespace {

using kv::ElementType;
using model::ComputeType;
using ::testing::HasSubstr;

model::ModelOptions options_for(ComputeType compute, kernels::Isa isa, std::int32_t tp_size = 1) {
  model::ModelOptions options;
  options.compute = compute;
  options.isa = isa;
  options.max_positions = 256;
  options.tensor_parallel_size = tp_size;
  return options;
}

using Parameter = std::tuple<std::string, ComputeType, kernels::Isa>;

class TensorParallel : public ::testing::TestWithParam<Parameter> {
 protected:
  TensorParallel()
      : golden_(load_golden(std::get<0>(GetParam()))),
        checkpoint_(model::make_synthetic_checkpoint(golden_.config, golden_.salt)) {}

  model::ModelOptions options(std::int32_t tp_size = 1) const {
    return options_for(std::get<1>(GetParam()), std::get<2>(GetParam()), tp_size);
  }
  /// The sizes from 1 to the number of heads that the model can be split into.
  std::vector<std::int32_t> tp_sizes() const {
    std::vector<std::int32_t> sizes;
    for (std::int32_t size = 2; size <= golden_.config.num_heads; ++size)
      if (model::kv_layouts(golden_.config, options(size), 16, 1)) sizes.push_back(size);
    return sizes;
  }
  const Tokens& prompt() const { return golden_.prompts.at("P100"); }

  GoldenModel golden_;
  std::unique_ptr<model::Checkpoint> checkpoint_;
};

TEST_P(TensorParallel, EverySizeGivesTheBitsOfOneRank) {
  for (const auto element : {std::optional<ElementType>(), std::optional(ElementType::kInt8)}) {
    model::ModelOptions one = options();
    one.kv_element = element;
    const std::vector<Logits> expected = ModelRunner(*checkpoint_, one).all_logits(prompt());
    ASSERT_FALSE(tp_sizes().empty());
    for (const std::int32_t size : tp_sizes()) {
      for (const int threads : {1, 2, 3, 4}) {
        model::ModelOptions split = options(size);
        split.kv_element = element;
        ModelRunner runner(*checkpoint_, split, threads);
        EXPECT_EQ(runner.cache().ranks().size(), static_cast<std::size_t>(size));
        EXPECT_EQ(runner.all_logits(prompt()), expected) << "TP " << size << ", " << threads << " threads";
        EXPECT_EQ(runner.all_logits(prompt(), 7), expected) << "TP " << size << ", chunks, " << threads << " threads";
      }
    }
  }
}

TEST_P(TensorParallel, KvTypesChangeTheLogitsLittle) {
  if (golden_.config.num_experts > 0)
    GTEST_SKIP() << "roundings tip the choice of experts, and then logits change much";
  // With W8A8 any rounding of KV turns the last bit of some int8 activation, and that weighs more.
  const double most = std::get<1>(GetParam()) == ComputeType::kW8A8 ? 0.06 : 0.02;
  const Logits reference = ModelRunner(*checkpoint_, options()).all_logits(prompt()).back();
  for (const auto element : {ElementType::kBf16, ElementType::kF32, ElementType::kInt8}) {
    model::ModelOptions other = options();
    other.kv_element = element;
    ModelRunner runner(*checkpoint_, other);
    EXPECT_EQ(runner.cache().layout().element, element);
    const double error = relative_l2(runner.all_logits(prompt()).back(), reference);
    RecordProperty(std::string(kv::element_name(element)), std::to_string(error));
    EXPECT_LE(error, most) << kv::element_name(element);
    const bool same =
        element == (std::get<1>(GetParam()) == ComputeType::kFloat32 ? ElementType::kF32 : ElementType::kBf16);
    EXPECT_EQ(error == 0.0, same) << kv::element_name(element);
  }
}

TEST_P(TensorParallel, FingerprintsAllowExchange) {
  const auto fingerprint = [&](std::int32_t size, std::optional<ElementType> element) {
    model::ModelOptions other = options(size);
    other.kv_element = element;
    return ModelRunner(*checkpoint_, other).cache().layout().fingerprint;
  };
  const std::string one = fingerprint(1, std::nullopt);
  EXPECT_EQ(fingerprint(tp_sizes().front(), std::nullopt), one);
  EXPECT_EQ(fingerprint(1, ElementType::kInt8), one);
}

INSTANTIATE_TEST_SUITE_P(
    Models, TensorParallel,
    ::testing::Combine(::testing::Values("T1-qwen3", "T2-qwen3moe", "T4-llama", "T6-qwen3-12kv", "T7-qwen3-2kv"),
                       ::testing::Values(ComputeType::kFloat32, ComputeType::kBf16, ComputeType::kW8A8),
                       ::testing::ValuesIn(available_isas())),
    [](const ::testing::TestParamInfo<Parameter>& parameter) {
      std::string name = std::get<0>(parameter.param) + "_" +
                         std::string(model::compute_name(std::get<1>(parameter.param))) + "_" +
                         std::string(kernels::isa_name(std::get<2>(parameter.param)));
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });

// model_formats.md 8.3.
TEST(TensorParallelSizes, WhatCannotBeSplitIsRefusedBeforeTheWeightsAreRead) {
  const auto error = [](const std::string& name, std::int32_t size, std::int32_t expert_size = 0,
                        std::int32_t expert_ranks = 1) {
    GoldenModel golden = load_golden(name);
    if (expert_size > 0) golden.config.moe_intermediate_size = expert_size;
    kernels::ThreadTeam team(1);
    const auto checkpoint = model::make_synthetic_checkpoint(golden.config, golden.salt);
    bool started = false;
    model::ModelOptions options = options_for(ComputeType::kBf16, kernels::Isa::kPortable, size);
    options.experts.num_ranks = expert_ranks;
    const auto loaded = model::Model::load(*checkpoint, options, team, [&](double) { started = true; });
    EXPECT_EQ(started, loaded.has_value());
    return loaded ? std::string() : loaded.error().message();
  };
  EXPECT_THAT(error("T1-qwen3", 3),
              HasSubstr("tensor parallel size 3 does not divide the model's intermediate size 80"));
  EXPECT_THAT(error("T1-qwen3", 4), HasSubstr("tensor parallel size 4 does not divide the model's 6 attention heads"));
  EXPECT_THAT(error("T3-qwen2", 7), HasSubstr("intermediate size 100"));
  EXPECT_THAT(error("T4-llama", 9), HasSubstr("intermediate size 96"));
  // A rank has a share of every expert, or whole experts.
  EXPECT_THAT(error("T2-qwen3moe", 4, 22),
              HasSubstr("tensor parallel size 4 does not divide the model's expert intermediate size 22; with "
                        "--enable-expert-parallel it need not"));
  EXPECT_EQ(error("T2-qwen3moe", 4, 22, 4), "");
  EXPECT_THAT(error("T2-qwen3moe", 3), HasSubstr("4 attention heads"));
}

}  // namespace
}  // namespace tandem::testing
