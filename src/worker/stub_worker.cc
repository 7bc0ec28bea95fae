// SPDX-License-Identifier: Apache-2.0
#include "worker/stub_worker.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <utility>

namespace tandem::worker {
namespace {

constexpr std::int32_t kLayers = 2;
constexpr std::int32_t kHeads = 2;
constexpr std::int32_t kHeadDim = 4;  // floats: one Slot
constexpr std::int32_t kPlanes = kLayers * 2 * kHeads;

/// The finaliser of SplitMix64: every input bit reaches every output bit.
std::uint64_t mix(std::uint64_t value) {
  value += 0x9E3779B97F4A7C15U;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9U;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBU;
  return value ^ (value >> 31);
}

std::uint64_t chain(std::uint64_t hash, std::int32_t token) { return mix(hash ^ static_cast<std::uint32_t>(token)); }

struct Slot {
  std::int32_t token = 0;
  std::int32_t position = 0;
  std::int32_t plane = 0;
  std::uint32_t check = 0;
  friend bool operator==(const Slot&, const Slot&) = default;
};
static_assert(sizeof(Slot) == kHeadDim * sizeof(float));

Slot slot_of(std::int32_t token, std::int64_t position, std::int32_t plane) {
  const auto place = (static_cast<std::uint64_t>(position) << 8) | static_cast<std::uint32_t>(plane);
  return {token, static_cast<std::int32_t>(position), plane, static_cast<std::uint32_t>(chain(mix(place), token))};
}

/// Waits, but not past a stop request. True if the whole time went by.
bool sleep_for(double seconds, const std::stop_token& stop) {
  if (seconds <= 0.0) return true;
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  never.wait_for(lock, stop, std::chrono::duration<double>(seconds), [] { return false; });
  return !stop.stop_requested();
}

}  // namespace

Result<std::unique_ptr<StubWorker>> StubWorker::create(StubOptions options) {
  TANDEM_ASSERT(options.vocab_size > 0 && options.block_size > 0 && options.num_blocks > 0,
                "a stub worker has a vocabulary and blocks");
  std::unique_ptr<StubWorker> worker(new StubWorker(std::move(options)));
  TANDEM_ASSIGN(worker->cache_, kv::CacheMemory::create(layout(worker->options_)));
  const kv::Layout& layout = worker->cache_->layout();
  for (std::int32_t plane = 0; plane < kPlanes; ++plane)
    worker->plane_offsets_.push_back(layout.offset(plane / (2 * kHeads), 0, plane / kHeads % 2, plane % kHeads, 0));
  worker->block_bytes_ = layout.offset(0, 1, 0, 0, 0) - layout.offset(0, 0, 0, 0, 0);
  worker->slot_bytes_ = layout.offset(0, 0, 0, 0, 1) - layout.offset(0, 0, 0, 0, 0);
  auto* self = worker.get();
  TANDEM_TRY(worker->runner_.launch(
      [] { return Result<void>(); },
      [self](const StepPlan& plan, const std::stop_token& stop) { return self->step(plan, stop); }));
  return worker;
}

kv::Layout StubWorker::layout(const StubOptions& options) {
  kv::Layout layout;
  layout.num_layers = kLayers;
  layout.num_blocks = options.num_blocks;
  layout.block_size = options.block_size;
  layout.total_kv_heads = kHeads;
  layout.num_kv_heads = kHeads;
  layout.head_dim = kHeadDim;
  layout.element = kv::ElementType::kF32;
  layout.fingerprint = options.fingerprint;
  return layout;
}

void StubWorker::submit(std::shared_ptr<StepPlan> plan, std::function<void(Result<StepResult>)> done) {
  runner_.submit(std::move(plan), std::move(done));
}

std::uint64_t StubWorker::context_hash(std::span<const std::int32_t> tokens) {
  std::uint64_t hash = 0;
  for (const std::int32_t token : tokens) hash = chain(hash, token);
  return hash;
}

std::vector<float> StubWorker::logits(std::uint64_t context_hash, std::int32_t vocab_size) {
  std::vector<float> logits(static_cast<std::size_t>(vocab_size));
  for (std::size_t id = 0; id < logits.size(); ++id) {
    logits[id] = static_cast<float>(mix(context_hash + id) >> 40) * 0x1.0p-20F;  // 24 bits
  }
  return logits;
}

std::vector<std::int32_t> StubWorker::greedy(std::vector<std::int32_t> context, std::int32_t vocab_size,
                                             std::int32_t num_tokens) {
  std::vector<std::int32_t> output;
  std::uint64_t hash = context_hash(context);
  for (std::int32_t i = 0; i < num_tokens; ++i) {
    const std::vector<float> row = logits(hash, vocab_size);
    output.push_back(static_cast<std::int32_t>(std::max_element(row.begin(), row.end()) - row.begin()));
    hash = chain(hash, output.back());
  }
  return output;
}

double StubWorker::scripted_seconds(const StepPlan& plan) const {
  double seconds = options_.seconds_per_step;
  for (const auto& sequence : plan.sequences) {
    const auto count = static_cast<double>(sequence.tokens.size());
    seconds +=
        count * (sequence.tokens.size() > 1 ? options_.seconds_per_prefill_token : options_.seconds_per_decode_token);
  }
  return seconds;
}

Result<StepResult> StubWorker::step(const StepPlan& plan, const std::stop_token& stop) {
  if (options_.before_step) {
    if (Status status = options_.before_step(plan); !status.ok()) return status;
  }
  const double seconds_per_layer = scripted_seconds(plan) / kLayers;
  for (std::int32_t layer = 0; layer < kLayers; ++layer) {
    if (!sleep_for(seconds_per_layer, stop)) return Status(Code::kCancelled, "the worker is stopping");
    for (const auto& sequence : plan.sequences) write_slots(sequence, layer);
    if (plan.on_layer) plan.on_layer(layer);
  }
  StepResult result;
  result.step = plan.step;
  for (const auto& sequence : plan.sequences) {
    if (!sequence.next_tokens.empty()) result.prompts.push_back(score(sequence));
    if (!sequence.sample) continue;
    auto sampled = sampler_.sample(logits_after(sequence), sequence);
    if (sampled) {
      result.sampled.push_back(std::move(*sampled));
    } else {
      result.sampled.push_back({sequence.sequence, -1, {}, sampled.error()});
    }
  }
  return result;
}

std::vector<float> StubWorker::logits_after(const SequencePlan& sequence) const {
  return logits(read_slots(sequence), options_.sampled_ids > 0 ? options_.sampled_ids : options_.vocab_size);
}

PromptLogprobs StubWorker::score(const SequencePlan& sequence) {
  std::vector<float> rows;
  SequencePlan beginning = sequence;
  for (std::size_t count = 1; count <= sequence.next_tokens.size(); ++count) {
    beginning.tokens.assign(sequence.tokens.begin(), sequence.tokens.begin() + static_cast<std::ptrdiff_t>(count));
    const std::vector<float> row = logits(read_slots(beginning), options_.vocab_size);
    rows.insert(rows.end(), row.begin(), row.end());
  }
  return sampler_.score_prompt(rows, static_cast<std::size_t>(options_.vocab_size), sequence);
}

std::byte* StubWorker::slots(const SequencePlan& sequence, std::int64_t position) const {
  const std::int32_t block_size = options_.block_size;
  const auto index = static_cast<std::size_t>(position / block_size);
  TANDEM_ASSERT(index < sequence.block_table.size(), "the block table covers all positions of the plan");
  const kv::BlockId block = sequence.block_table[index];
  TANDEM_ASSERT(block >= 0 && block < options_.num_blocks, "block ids are below num_blocks");
  return cache_->data() + static_cast<std::size_t>(block) * block_bytes_ +
         static_cast<std::size_t>(position % block_size) * slot_bytes_;
}

void StubWorker::write_slots(const SequencePlan& sequence, std::int32_t layer) {
  for (std::size_t i = 0; i < sequence.tokens.size(); ++i) {
    const std::int64_t position = sequence.first_position + static_cast<std::int64_t>(i);
    std::byte* const begin = slots(sequence, position);
    for (std::int32_t plane = layer * 2 * kHeads; plane < (layer + 1) * 2 * kHeads; ++plane) {
      const Slot record = slot_of(sequence.tokens[i], position, plane);
      std::memcpy(begin + plane_offsets_[static_cast<std::size_t>(plane)], &record, sizeof record);
    }
  }
}

std::uint64_t StubWorker::read_slots(const SequencePlan& sequence) const {
  const std::int64_t end = sequence.first_position + static_cast<std::int64_t>(sequence.tokens.size());
  std::uint64_t hash = 0;
  for (std::int64_t position = 0; position < end; ++position) {
    const std::byte* const begin = slots(sequence, position);
    Slot first;
    std::memcpy(&first, begin + plane_offsets_.front(), sizeof first);
    hash = chain(hash, first.token);
    for (std::int32_t plane = 0; plane < kPlanes; ++plane) {
      Slot found;
      std::memcpy(&found, begin + plane_offsets_[static_cast<std::size_t>(plane)], sizeof found);
      // A wrong slot leads the hash away for good, differently for each kind of wrong.
      if (found != slot_of(first.token, position, plane)) hash = mix(hash ^ found.check ^ 0x5bd1e995U);
    }
  }
  return hash;
}

}  // namespace tandem::worker
