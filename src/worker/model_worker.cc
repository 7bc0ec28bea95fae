// SPDX-License-Identifier: Apache-2.0
#include "worker/model_worker.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "base/log.h"

namespace tandem::worker {
namespace {

/// A budget of 32k tokens is common; computing them all would make a start wait for half a minute and warm nothing
/// more.
constexpr std::int64_t kWarmUpTokens = 2048;
/// Long enough that a lone sequence's attention is shared between threads.
constexpr std::int64_t kLongPosition = 4096;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

std::int32_t blocks_for_bytes(std::span<const kv::Layout> one_block, std::size_t bytes) {
  const std::size_t block = kv::total_bytes(one_block);
  TANDEM_ASSERT(block > 0, "a layout has layers, heads and a block size");
  constexpr std::size_t kMost = std::numeric_limits<std::int32_t>::max();
  return static_cast<std::int32_t>(std::min(bytes / block, kMost));
}

Result<std::unique_ptr<ModelWorker>> ModelWorker::create(const model::Checkpoint& checkpoint,
                                                         ModelWorkerOptions options,
                                                         const std::function<void(double)>& progress) {
  std::unique_ptr<ModelWorker> worker(new ModelWorker(std::move(options)));
  ModelWorker* self = worker.get();
  TANDEM_TRY(worker->runner_.launch([&] { return self->start(checkpoint, progress); },
                                    [self](const StepPlan& plan, const std::stop_token&) { return self->step(plan); },
                                    self->options_.model.experts.group));
  return worker;
}

void ModelWorker::submit(std::shared_ptr<StepPlan> plan, std::function<void(Result<StepResult>)> done) {
  runner_.submit(std::move(plan), std::move(done));
}

Result<void> ModelWorker::start(const model::Checkpoint& checkpoint, const std::function<void(double)>& progress) {
  const std::size_t num_threads =
      options_.num_threads > 0 ? static_cast<std::size_t>(options_.num_threads) : kernels::usable_cpus().size();
  team_ = std::make_unique<kernels::ThreadTeam>(static_cast<int>(num_threads), options_.cpus);
  samplers_.assign(num_threads, Sampler(options_.logprobs_mode));
  TANDEM_ASSIGN(model_, model::Model::load(checkpoint, options_.model, *team_, progress));
  TANDEM_TRY(make_cache());
  return warm_up_together();
}

/// Every step is one of all processes, the warm-up's too: processes that have none of it now take part in it as in any
/// other.
Result<void> ModelWorker::warm_up_together() {
  if (options_.model.experts.group == nullptr) return warm_up();
  while (true) {
    TANDEM_TRY(options_.enter_group());
    Result<void> warm = warm_up();
    if (warm || warm.error().scope() != Scope::kPeer) return warm;
    log::warning("warm-up is begun again: {}", warm.error().message());
  }
}

Result<void> ModelWorker::make_cache() {
  const std::vector<kv::Layout> one_block = model_->kv_layouts(options_.block_size, 1);
  if (options_.num_blocks == 0) options_.num_blocks = blocks_for_bytes(one_block, options_.kv_bytes);
  if (options_.num_blocks < 1) {
    return Status(Code::kResourceExhausted,
                  fmt::format("KV memory of {} bytes is less than one block of {} tokens ({} bytes); give it more",
                              options_.kv_bytes, options_.block_size, kv::total_bytes(one_block)),
                  Scope::kProcess);
  }
  TANDEM_ASSIGN(cache_, kv::CacheMemory::create(model_->kv_layouts(options_.block_size, options_.num_blocks)));
  for (std::size_t rank = 0; rank < options_.rank_nodes.size(); ++rank)
    cache_->prefer_node(rank, options_.rank_nodes[rank]);
  return {};
}

/// One prefill of a large size and one decode row: weights, KV pages, buffers and the kernels' own caches are then
/// warm, and a damaged checkpoint is found before the first request. Writes to blocks that nobody owns yet.
Result<void> ModelWorker::warm_up() {
  const auto start = std::chrono::steady_clock::now();
  const kv::Layout& layout = cache_->layout();
  const std::int64_t capacity = static_cast<std::int64_t>(layout.num_blocks) * layout.block_size;
  const std::int64_t count = std::min({std::int64_t{options_.max_num_batched_tokens}, kWarmUpTokens, capacity,
                                       options_.model.max_positions > 0 ? options_.model.max_positions : capacity});
  StepPlan plan;
  plan.sequences.resize(1);
  SequencePlan& sequence = plan.sequences[0];
  sequence.sample = true;
  auto params = std::make_shared<SamplingParams>();
  params->temperature = 0.0;
  sequence.sampling = std::move(params);
  sequence.block_table.resize(static_cast<std::size_t>((count + layout.block_size - 1) / layout.block_size));
  std::iota(sequence.block_table.begin(), sequence.block_table.end(), 0);
  for (const std::int64_t tokens : {count, std::int64_t{1}}) {
    sequence.tokens.clear();
    for (std::int64_t i = 0; i < tokens; ++i) {
      sequence.tokens.push_back(static_cast<std::int32_t>(i % model_->config().vocab_size));
    }
    TANDEM_ASSIGN(const StepResult result, step(plan));
    if (!result.sampled[0].error.ok()) {
      return result.sampled[0].error.with_scope(Scope::kProcess).context("warm-up");
    }
  }
  TANDEM_TRY(plan_decodes());
  log::debug("warm-up with {} tokens took {:.2f} s", count, seconds_since(start));
  return {};
}

/// Takes the memory of the largest planned step: the lists of sequences, logits, the samplers' scratch, and what the
/// kernels need for a context that threads share.
Result<void> ModelWorker::plan_decodes() {
  const kv::Layout& layout = cache_->layout();
  const std::int32_t count = std::min(options_.planned_decodes, layout.num_blocks);
  if (count <= 0) return {};
  runner_.reserve(static_cast<std::size_t>(count));
  for (Sampler& sampler : samplers_) sampler.reserve(static_cast<std::size_t>(vocab_size()));
  const auto params = std::make_shared<SamplingParams>();
  StepPlan plan;
  const auto add = [&](kv::BlockId block, std::int64_t position) {
    SequencePlan& sequence = plan.sequences.emplace_back();
    sequence.tokens = {0};
    sequence.first_position = position;
    // One block stands for all: what it holds does not matter here.
    sequence.block_table.assign(static_cast<std::size_t>(position / layout.block_size + 1), block);
    sequence.sample = true;
    sequence.sampling = params;
  };
  const std::int64_t positions =
      options_.model.max_positions > 0 ? options_.model.max_positions : model_->config().max_context;
  add(0, std::min(positions, kLongPosition) - 1);
  TANDEM_TRY(step(plan));
  plan.sequences.clear();
  for (std::int32_t i = 0; i < count; ++i) add(i, 0);
  TANDEM_TRY(step(plan));
  return {};
}

Result<StepResult> ModelWorker::step(const StepPlan& plan) {
  if (options_.model.experts.group != nullptr) TANDEM_TRY(options_.model.experts.group->start_step());
  inputs_.clear();
  rows_.clear();
  std::size_t num_rows = 0;
  std::size_t num_prompts = 0;
  for (const auto& sequence : plan.sequences) {
    const bool scores = !sequence.next_tokens.empty();
    const auto wanted = scores            ? model::LogitsOf::kAll
                        : sequence.sample ? model::LogitsOf::kLast
                                          : model::LogitsOf::kNone;
    inputs_.push_back({sequence.tokens, sequence.first_position, sequence.block_table, wanted});
    const std::size_t first = num_rows;
    num_rows += scores ? sequence.tokens.size() : sequence.sample ? 1 : 0;
    if (scores) rows_.push_back({&sequence, first, num_prompts++, true});
    if (sequence.sample) rows_.push_back({&sequence, num_rows - 1, rows_.size() - num_prompts, false});
  }
  const std::size_t needed = num_rows * static_cast<std::size_t>(vocab_size());
  if (logits_.size() < needed) logits_.resize(needed);
  TANDEM_TRY(model_->forward(inputs_, *cache_, std::span(logits_.data(), needed), plan.on_layer));

  StepResult result;
  result.step = plan.step;
  result.prompts.resize(num_prompts);
  result.sampled.resize(rows_.size() - num_prompts);
  read_logits(result);
  // Whole prompts' logits are large and rare: their memory is not kept.
  if (num_prompts > 0) std::vector<float>().swap(logits_);
  return result;
}

void ModelWorker::read_logits(StepResult& result) {
  const auto vocab = static_cast<std::size_t>(vocab_size());
  const auto read = [&](const Rows& rows, Sampler& sampler) {
    const std::span<const float> logits = std::span<const float>(logits_).subspan(rows.first * vocab);
    if (rows.scores) {
      result.prompts[rows.place] = sampler.score_prompt(logits, vocab, *rows.sequence);
      return;
    }
    auto sampled = sampler.sample(logits.first(vocab), *rows.sequence);
    if (sampled) {
      result.sampled[rows.place] = std::move(*sampled);
    } else {
      result.sampled[rows.place] = {rows.sequence->sequence, -1, {}, sampled.error()};
    }
  };
  if (rows_.size() < 2 || team_->size() < 2) {
    for (const Rows& rows : rows_) read(rows, samplers_[0]);
    return;
  }
  const auto stride = static_cast<std::size_t>(team_->size());
  team_->run([&](int thread) {
    const auto first = static_cast<std::size_t>(thread);
    for (std::size_t i = first; i < rows_.size(); i += stride) read(rows_[i], samplers_[first]);
  });
}

}  // namespace tandem::worker
