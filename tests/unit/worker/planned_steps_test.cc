// SPDX-License-Identifier: Apache-2.0
// Planned decode steps allocate nothing: every malloc of the worker's threads is counted while steps run.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <future>
#include <utility>

#include "model/generator.h"
#include "support/count_allocations.h"
#include "worker/model_worker.h"

namespace tandem::worker {
namespace {

using namespace std::chrono_literals;

constexpr std::int32_t kSequences = 6;
constexpr std::int32_t kBlockSize = 16;
constexpr std::int32_t kBlocksEach = 64;

std::unique_ptr<model::Checkpoint> tiny_checkpoint(bool with_experts) {
  boost::json::object config{{"model_type", "qwen3"},       {"vocab_size", 2570},
                             {"hidden_size", 48},           {"intermediate_size", 80},
                             {"num_hidden_layers", 3},      {"num_attention_heads", 6},
                             {"num_key_value_heads", 2},    {"head_dim", 32},
                             {"rms_norm_eps", 1e-6},        {"rope_theta", 1000000.0},
                             {"tie_word_embeddings", true}, {"max_position_embeddings", 1024}};
  if (with_experts) {
    config["model_type"] = "qwen3_moe";
    config["num_experts"] = 10;
    config["num_experts_per_tok"] = 3;
    config["moe_intermediate_size"] = 32;
  }
  auto parsed = model::parse_config(config, {});
  EXPECT_TRUE(parsed.has_value()) << parsed.error().to_string();
  return model::make_synthetic_checkpoint(*parsed, "39:");
}

class PlannedSteps : public ::testing::TestWithParam<std::pair<model::ComputeType, bool>> {
 protected:
  std::unique_ptr<ModelWorker> make_worker(std::int32_t planned_decodes) {
    ModelWorkerOptions options;
    options.model.compute = GetParam().first;
    options.model.isa = kernels::detect_isa();
    options.model.max_positions = 1024;
    options.block_size = kBlockSize;
    options.num_blocks = kSequences * kBlocksEach;
    options.num_threads = 2;
    options.max_num_batched_tokens = 8;
    options.planned_decodes = planned_decodes;
    auto worker = ModelWorker::create(*checkpoint_, options);
    EXPECT_TRUE(worker.has_value()) << worker.error().to_string();
    return std::move(*worker);
  }

  /// One token each for `count` sequences at `position`: greedy, drawn, and with penalties in turn.
  static std::shared_ptr<StepPlan> decode_plan(std::int32_t count, std::int64_t position) {
    auto plan = std::make_shared<StepPlan>();
    for (std::int32_t i = 0; i < count; ++i) {
      auto params = std::make_shared<SamplingParams>();
      params->temperature = i % 3 == 0 ? 0.0 : 1.0;
      params->seed = 7;
      params->top_k = i % 3 == 1 ? 40 : 0;
      params->top_p = i % 3 == 1 ? 0.9 : 1.0;
      params->repetition_penalty = i % 3 == 2 ? 1.1 : 1.0;
      SequencePlan& sequence = plan->sequences.emplace_back();
      sequence.sequence = static_cast<std::uint64_t>(i);
      sequence.tokens = {i + 1};
      sequence.first_position = position;
      sequence.sample = true;
      sequence.sampling = params;
      sequence.output_tokens = {3, 4, 5};
      for (std::int32_t block = 0; block < kBlocksEach; ++block)
        sequence.block_table.push_back(i * kBlocksEach + block);
    }
    return plan;
  }

  /// Allocations of the worker's threads in a step, without those of the answer.
  static int allocations_of(ModelWorker& worker, std::shared_ptr<StepPlan> plan) {
    std::promise<void> done;
    auto ended = done.get_future();
    std::optional<Result<StepResult>> answer;
    int allocations = 0;
    test::begin_counting_allocations();
    worker.submit(plan, [&](Result<StepResult> result) {
      allocations = test::end_counting_allocations();
      answer.emplace(std::move(result));
      done.set_value();
    });
    EXPECT_EQ(ended.wait_for(60s), std::future_status::ready);
    EXPECT_TRUE(answer->has_value());
    EXPECT_EQ((*answer)->sampled.size(), plan->sequences.size());
    constexpr int kAnswer = 1;  // StepResult::sampled, which the caller keeps
    return allocations - kAnswer;
  }

  void SetUp() override {
    test::leave_out_this_thread();
    if (!test::can_count_allocations()) GTEST_SKIP() << "a sanitizer has replaced malloc";
  }

  std::unique_ptr<model::Checkpoint> checkpoint_ = tiny_checkpoint(GetParam().second);
};

TEST_P(PlannedSteps, AllocateNothingFromTheFirstOneOn) {
  const auto worker = make_worker(kSequences);
  // From short contexts to long ones, for every size up to the planned one.
  for (std::int64_t position = 0; position < kBlocksEach * kBlockSize; position += 93)
    for (const std::int32_t count : {kSequences, 1, 3})
      EXPECT_EQ(allocations_of(*worker, decode_plan(count, position)), 0) << count << " sequences at " << position;
}

TEST_P(PlannedSteps, WithoutAPlanTheFirstStepsAllocate) {
  const auto worker = make_worker(0);
  EXPECT_GT(allocations_of(*worker, decode_plan(kSequences, 600)), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Types, PlannedSteps,
    ::testing::Values(std::pair(model::ComputeType::kFloat32, false), std::pair(model::ComputeType::kBf16, false),
                      std::pair(model::ComputeType::kW8A8, false), std::pair(model::ComputeType::kBf16, true),
                      std::pair(model::ComputeType::kW8A8, true)),
    [](const auto& type) {
      return std::string(model::compute_name(type.param.first)) + (type.param.second ? "WithExperts" : "");
    });

}  // namespace
}  // namespace tandem::worker
