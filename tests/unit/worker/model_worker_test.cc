// SPDX-License-Identifier: Apache-2.0
// Step plans over a tiny golden model (model_formats.md 8, T1): the greedy tokens are the published ones however the
// prompt is cut, wherever its blocks are and whatever else is in the batch.
#include "worker/model_worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <future>
#include <mutex>

#include "model/generator.h"

namespace tandem::worker {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

constexpr std::int32_t kBlockSize = 4;
const std::vector<std::int32_t> kP8{1, 5, 9, 42, 7, 3, 100, 11};
const std::vector<std::int32_t> kGreedyAfterP8{104, 193, 218, 218, 218, 99, 166, 166, 166, 166, 166, 166};

std::unique_ptr<model::Checkpoint> tiny_checkpoint() {
  const boost::json::object config{{"architectures", {"Qwen3ForCausalLM"}},
                                   {"model_type", "qwen3"},
                                   {"vocab_size", 257},
                                   {"hidden_size", 48},
                                   {"intermediate_size", 80},
                                   {"num_hidden_layers", 3},
                                   {"num_attention_heads", 6},
                                   {"num_key_value_heads", 2},
                                   {"head_dim", 32},
                                   {"rms_norm_eps", 1e-6},
                                   {"rope_theta", 1000000.0},
                                   {"tie_word_embeddings", true},
                                   {"max_position_embeddings", 512},
                                   {"hidden_act", "silu"}};
  auto parsed = model::parse_config(config, {});
  EXPECT_TRUE(parsed.has_value()) << parsed.error().to_string();
  return model::make_synthetic_checkpoint(*parsed, "39:");
}

ModelWorkerOptions options_for(model::ComputeType compute) {
  ModelWorkerOptions options;
  options.model.compute = compute;
  options.model.isa = kernels::detect_isa();
  options.model.max_positions = 256;
  options.block_size = kBlockSize;
  options.num_blocks = 200;
  options.num_threads = 2;
  options.max_num_batched_tokens = 64;
  return options;
}

std::unique_ptr<ModelWorker> make_worker(model::ComputeType compute) {
  auto worker = ModelWorker::create(*tiny_checkpoint(), options_for(compute));
  EXPECT_TRUE(worker.has_value()) << worker.error().to_string();
  return std::move(*worker);
}

Result<StepResult> run(Worker& worker, std::vector<SequencePlan> sequences) {
  auto plan = std::make_shared<StepPlan>();
  plan->step = 7;
  plan->sequences = std::move(sequences);
  auto promise = std::make_shared<std::promise<Result<StepResult>>>();
  auto future = promise->get_future();
  worker.submit(std::move(plan), [promise](Result<StepResult> result) { promise->set_value(std::move(result)); });
  if (future.wait_for(60s) != std::future_status::ready) return Status(Code::kDeadlineExceeded, "no answer");
  return future.get();
}

/// A sequence that plays the engine's part: it cuts its prompt into chunks and appends what was sampled.
struct Generation {
  std::vector<std::int32_t> context;
  std::vector<std::int64_t> chunks;  ///< sizes of the first prefill steps; the rest of the prompt follows in one
  std::vector<kv::BlockId> blocks;
  std::shared_ptr<const SamplingParams> params;
  std::int64_t computed = 0;
  std::size_t prompt_size = 0;
  std::size_t step = 0;

  SequencePlan next() {
    SequencePlan plan;
    plan.sequence = static_cast<std::uint64_t>(blocks.at(0));
    plan.first_position = computed;
    const auto all = static_cast<std::int64_t>(context.size());
    const std::int64_t end = step < chunks.size() ? std::min(computed + chunks[step], all) : all;
    ++step;
    plan.tokens.assign(context.begin() + computed, context.begin() + end);
    plan.block_table.assign(blocks.begin(), blocks.begin() + (end + kBlockSize - 1) / kBlockSize);
    plan.sample = end == all;
    if (plan.sample) plan.sampling = params;
    plan.num_output_tokens = static_cast<std::int32_t>(context.size() - prompt_size);
    computed = end;
    return plan;
  }
  std::vector<std::int32_t> output() const {
    return {context.begin() + static_cast<std::ptrdiff_t>(prompt_size), context.end()};
  }
};

Generation generation(std::vector<std::int32_t> prompt, std::vector<std::int64_t> chunks, kv::BlockId first_block,
                      std::shared_ptr<const SamplingParams> params) {
  Generation made;
  made.prompt_size = prompt.size();
  made.context = std::move(prompt);
  made.chunks = std::move(chunks);
  // Every second block, downwards: nothing may depend on blocks being neighbours.
  for (kv::BlockId i = 0; i < 40; ++i) made.blocks.push_back(first_block + 2 * (39 - i));
  made.params = std::move(params);
  return made;
}

/// Steps all generations together until each has `count` tokens.
void run_all(Worker& worker, std::vector<Generation*> generations, std::size_t count) {
  for (int step = 0; step < 100; ++step) {
    std::vector<SequencePlan> plans;
    std::vector<Generation*> sampling;
    for (auto* item : generations) {
      if (item->output().size() >= count) continue;
      plans.push_back(item->next());
      if (plans.back().sample) sampling.push_back(item);
    }
    if (plans.empty()) return;
    auto result = run(worker, std::move(plans));
    ASSERT_TRUE(result) << result.error().to_string();
    ASSERT_EQ(result->step, 7U);
    ASSERT_EQ(result->sampled.size(), sampling.size());
    for (std::size_t i = 0; i < sampling.size(); ++i) {
      ASSERT_TRUE(result->sampled[i].error.ok()) << result->sampled[i].error.to_string();
      ASSERT_EQ(result->sampled[i].sequence, static_cast<std::uint64_t>(sampling[i]->blocks[0]));
      sampling[i]->context.push_back(result->sampled[i].token);
    }
  }
  FAIL() << "generations did not end";
}

std::shared_ptr<const SamplingParams> greedy() {
  auto params = std::make_shared<SamplingParams>();
  params->temperature = 0.0;
  return params;
}

std::vector<std::int32_t> p100() {
  std::vector<std::int32_t> prompt;
  for (int i = 0; i < 100; ++i) prompt.push_back((37 * i + 11) % 257);
  return prompt;
}

TEST(ModelWorker, GreedyTokensAreTheGoldenOnes) {
  auto worker = make_worker(model::ComputeType::kFloat32);
  EXPECT_EQ(worker->vocab_size(), 257);
  EXPECT_EQ(worker->num_threads(), 2);
  auto whole = generation(kP8, {}, 0, greedy());
  run_all(*worker, {&whole}, kGreedyAfterP8.size());
  EXPECT_THAT(whole.output(), ElementsAreArray(kGreedyAfterP8));
  auto chunked = generation(kP8, {3, 1, 2}, 100, greedy());
  run_all(*worker, {&chunked}, kGreedyAfterP8.size());
  EXPECT_THAT(chunked.output(), ElementsAreArray(kGreedyAfterP8));
}

class EveryCompute : public ::testing::TestWithParam<model::ComputeType> {};
INSTANTIATE_TEST_SUITE_P(ModelWorker, EveryCompute,
                         ::testing::Values(model::ComputeType::kFloat32, model::ComputeType::kBf16,
                                           model::ComputeType::kW8A8),
                         [](const auto& instance) { return std::string(model::compute_name(instance.param)); });

TEST_P(EveryCompute, ABatchGivesTheTokensOfEachAlone) {
  auto worker = make_worker(GetParam());
  auto warm = std::make_shared<SamplingParams>();
  warm->temperature = 0.9;
  warm->top_p = 0.95;
  warm->seed = 1234;
  warm->logprobs = 3;
  const auto make_all = [&] {
    std::vector<Generation> all;
    all.push_back(generation(kP8, {}, 0, greedy()));
    all.push_back(generation(p100(), {}, 1, warm));
    all.push_back(generation({200, 3}, {}, 100, warm));
    return all;
  };
  auto alone = make_all();
  for (auto& one : alone) run_all(*worker, {&one}, 12);
  auto together = make_all();
  together[1].chunks = {7, 57, 1, 20};
  run_all(*worker, {&together[0], &together[1], &together[2]}, 12);
  for (std::size_t i = 0; i < alone.size(); ++i) EXPECT_EQ(together[i].output(), alone[i].output()) << "sequence " << i;
}

TEST_P(EveryCompute, RanksGiveTheTokensOfOne) {
  auto one = make_worker(GetParam());
  auto expected = generation(p100(), {}, 0, greedy());
  run_all(*one, {&expected}, 12);
  // Fewer threads than ranks, one each, and two each.
  for (const int threads : {1, 2, 4}) {
    auto options = options_for(GetParam());
    options.model.tensor_parallel_size = 2;
    options.num_threads = threads;
    auto worker = ModelWorker::create(*tiny_checkpoint(), options);
    ASSERT_TRUE(worker) << worker.error().to_string();
    ASSERT_EQ((*worker)->cache().ranks().size(), 2U);
    EXPECT_EQ((*worker)->cache().ranks()[1].first_kv_head, 1);
    auto split = generation(p100(), {7, 57}, 0, greedy());
    run_all(**worker, {&split}, 12);
    EXPECT_EQ(split.output(), expected.output()) << threads << " threads";
  }
}

TEST(ModelWorker, BindsItsThreads) {
  const int cpu = kernels::usable_cpus().front();
  auto options = options_for(model::ComputeType::kFloat32);
  options.cpus = {{cpu}, {cpu}};
  options.rank_nodes = {0};
  auto worker = ModelWorker::create(*tiny_checkpoint(), options);
  ASSERT_TRUE(worker) << worker.error().to_string();
  auto whole = generation(kP8, {}, 0, greedy());
  run_all(**worker, {&whole}, kGreedyAfterP8.size());
  EXPECT_THAT(whole.output(), ElementsAreArray(kGreedyAfterP8));
}

TEST(ModelWorker, HeadsThatCannotBeSplitAreRefused) {
  auto options = options_for(model::ComputeType::kBf16);
  options.model.tensor_parallel_size = 4;
  auto worker = ModelWorker::create(*tiny_checkpoint(), options);
  ASSERT_FALSE(worker);
  EXPECT_THAT(worker.error().message(), HasSubstr("6 attention heads"));
}

TEST(ModelWorker, ASequenceThatMayNotSampleFailsAlone) {
  auto worker = make_worker(model::ComputeType::kBf16);
  auto only_seven = std::make_shared<SamplingParams>();
  only_seven->allowed_token_ids = {7};
  auto blocked = generation(kP8, {}, 0, only_seven).next();
  blocked.suppressed = {7};
  auto fine = generation(kP8, {}, 1, only_seven).next();
  const auto result = run(*worker, {blocked, fine});
  ASSERT_TRUE(result);
  EXPECT_EQ(result->sampled[0].error.code(), Code::kInvalidArgument);
  EXPECT_EQ(result->sampled[0].token, -1);
  EXPECT_TRUE(result->sampled[1].error.ok());
  EXPECT_EQ(result->sampled[1].token, 7);
}

TEST(ModelWorker, ProgressReachesTheEnd) {
  std::mutex mutex;
  std::vector<double> shares;
  auto worker = ModelWorker::create(*tiny_checkpoint(), options_for(model::ComputeType::kW8A8), [&](double share) {
    const std::lock_guard lock(mutex);
    shares.push_back(share);
  });
  ASSERT_TRUE(worker);
  ASSERT_FALSE(shares.empty());
  EXPECT_TRUE(std::is_sorted(shares.begin(), shares.end()));
  EXPECT_EQ(shares.back(), 1.0);
}

TEST(ModelWorker, KvMemoryIsCountedInBlocks) {
  kv::Layout layout;
  layout.num_layers = 3;
  layout.num_blocks = 1;
  layout.block_size = 4;
  layout.num_kv_heads = 2;
  layout.head_dim = 32;
  layout.element = kv::ElementType::kBf16;
  const std::size_t block = std::size_t{3} * 2 * 2 * 4 * 32 * 2;
  const std::vector<kv::Layout> one{layout};
  EXPECT_EQ(blocks_for_bytes(one, block - 1), 0);
  EXPECT_EQ(blocks_for_bytes(one, block), 1);
  EXPECT_EQ(blocks_for_bytes(one, 10 * block + 5), 10);
  EXPECT_EQ(blocks_for_bytes(std::vector{layout, layout}, 10 * block + 5), 5);

  auto options = options_for(model::ComputeType::kBf16);
  options.num_blocks = 0;
  options.kv_bytes = 10 * block + 5;
  auto worker = ModelWorker::create(*tiny_checkpoint(), options);
  ASSERT_TRUE(worker) << worker.error().to_string();
  EXPECT_EQ((*worker)->cache().layout().num_blocks, 10);

  options.kv_bytes = 100;
  worker = ModelWorker::create(*tiny_checkpoint(), options);
  ASSERT_FALSE(worker);
  EXPECT_EQ(worker.error().code(), Code::kResourceExhausted);
  EXPECT_THAT(worker.error().message(), HasSubstr("KV memory of 100 bytes"));
}

/// The tiny checkpoint without one of its tensors.
class IncompleteCheckpoint final : public model::Checkpoint {
 public:
  const model::ModelConfig& config() const override { return whole_->config(); }
  Result<model::TensorView> tensor(std::string_view name, std::int64_t rows, std::int64_t cols) const override {
    if (name == "model.layers.2.mlp.up_proj.weight") return Status(Code::kNotFound, "tensor " + std::string(name));
    return whole_->tensor(name, rows, cols);
  }
  bool has_tensor(std::string_view name) const override { return whole_->has_tensor(name); }
  model::TokenizerSource tokenizer_source() const override { return {}; }
  Result<std::optional<std::string>> chat_template(bool) const override { return std::optional<std::string>(); }
  std::string special_token(std::string_view) const override { return {}; }
  model::GenerationDefaults generation_defaults() const override { return {}; }
  std::string fingerprint() const override { return whole_->fingerprint(); }

 private:
  std::unique_ptr<model::Checkpoint> whole_ = tiny_checkpoint();
};

TEST(ModelWorker, AnIncompleteCheckpointIsNamed) {
  auto worker = ModelWorker::create(IncompleteCheckpoint(), options_for(model::ComputeType::kBf16));
  ASSERT_FALSE(worker);
  EXPECT_THAT(worker.error().message(), HasSubstr("model.layers.2.mlp.up_proj.weight"));
}

}  // namespace
}  // namespace tandem::worker
