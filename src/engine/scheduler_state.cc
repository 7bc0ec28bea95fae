// SPDX-License-Identifier: Apache-2.0
// The scheduler's events and bookkeeping: sequences come, progress, end; block tables and the prefix index follow.
#include <algorithm>
#include <tuple>

#include "engine/scheduler.h"
#include "engine/scheduler_sequence.h"

namespace tandem::engine {

Scheduler::Scheduler(const SchedulerOptions& options, kv::BlockPool& pool) : options_(options), pool_(pool) {
  TANDEM_ASSERT(options.block_size > 0 && options.max_num_seqs > 0 && options.max_num_batched_tokens > 0,
                "scheduler limits are positive");
}
Scheduler::~Scheduler() = default;

Scheduler::Sequence& Scheduler::at(SequenceId id) const {
  const auto found = sequences_.find(id);
  TANDEM_ASSERT(found != sequences_.end(), "no such sequence");
  return *found->second;
}
bool Scheduler::contains(SequenceId id) const {
  const auto found = sequences_.find(id);
  return found != sequences_.end() && found->second->state != State::kDraining;
}
const std::vector<std::int32_t>& Scheduler::tokens(SequenceId id) const { return at(id).all_tokens; }
const std::vector<kv::BlockId>& Scheduler::block_table(SequenceId id) const { return at(id).blocks; }
std::int32_t Scheduler::num_cached_tokens(SequenceId id) const { return at(id).num_cached_tokens; }

std::int32_t Scheduler::blocks_for(std::int64_t num_tokens) const {
  return static_cast<std::int32_t>((num_tokens + options_.block_size - 1) / options_.block_size);
}

bool Scheduler::more_urgent(const Sequence& a, const Sequence& b) {
  return std::tie(a.priority, a.arrival, a.id) < std::tie(b.priority, b.arrival, b.id);
}

void Scheduler::add(NewSequence sequence) {
  TANDEM_ASSERT(!sequence.prompt.empty(), "a prompt has at least one token");
  auto entry = std::make_unique<Sequence>();
  entry->id = sequence.id;
  entry->priority = sequence.priority;
  entry->arrival = sequence.arrival;
  entry->cache_salt = std::move(sequence.cache_salt);
  entry->remote_prefill = sequence.remote_prefill;
  entry->whole_prompt = sequence.whole_prompt;
  const bool may_hit =
      options_.enable_prefix_caching && !sequence.whole_prompt && std::ssize(sequence.prompt) > options_.block_size;
  if (may_hit) entry->sibling = sequence.sibling;
  entry->pinned = sequence.pinned;
  entry->max_tokens = sequence.max_tokens;
  entry->num_prompt = std::ssize(sequence.prompt);
  entry->all_tokens = std::move(sequence.prompt);
  Sequence& added = *entry;
  const bool fresh = sequences_.emplace(added.id, std::move(entry)).second;
  TANDEM_ASSERT(fresh, "sequence ids are unique");
  put_in_queue(added, /*at_front=*/false);
}

void Scheduler::advance(SequenceId id, std::int64_t end_position, std::optional<std::int32_t> token) {
  Sequence& sequence = at(id);
  TANDEM_ASSERT(sequence.steps_in_flight > 0, "the sequence is in no step");
  --sequence.steps_in_flight;
  --num_in_steps_;
  if (sequence.state == State::kDraining) return erase_if_drained(sequence);
  TANDEM_ASSERT(end_position > sequence.num_computed && end_position <= std::ssize(sequence.all_tokens),
                "progress goes forward");
  sequence.num_computed = end_position;
  file_full_blocks(sequence);
  if (!token) return;
  sequence.all_tokens.push_back(*token);
  --sequence.num_sampling;
}

void Scheduler::step_failed(SequenceId id) {
  Sequence& sequence = at(id);
  TANDEM_ASSERT(sequence.steps_in_flight > 0, "the sequence is in no step");
  --sequence.steps_in_flight;
  --num_in_steps_;
  if (sequence.state == State::kDraining) erase_if_drained(sequence);
}

void Scheduler::fetch_done(SequenceId id, bool succeeded) {
  Sequence& sequence = at(id);
  TANDEM_ASSERT(sequence.fetch_in_flight, "the sequence fetches nothing");
  sequence.fetch_in_flight = false;
  if (sequence.state == State::kDraining) return erase_if_drained(sequence);
  --num_fetching_;
  sequence.state = State::kWaiting;
  if (!succeeded) return free_blocks(sequence);
  sequence.num_computed = sequence.num_scheduled = sequence.num_prompt - 1;
  file_full_blocks(sequence);
  sequence.fetched = true;
  ++num_fetched_;
}

void Scheduler::forget_remote(SequenceId id) { at(id).remote_prefill = false; }

void Scheduler::finish(SequenceId id) {
  Sequence& sequence = at(id);
  TANDEM_ASSERT(sequence.state != State::kDraining, "finished twice");
  take_from_queues(sequence);
  sequence.state = State::kDraining;
  ++num_draining_;
  erase_if_drained(sequence);
}

std::vector<kv::BlockId> Scheduler::finish_and_keep(SequenceId id, std::int32_t count) {
  Sequence& sequence = at(id);
  TANDEM_ASSERT(sequence.steps_in_flight == 0 && !sequence.fetch_in_flight, "blocks are handed over at rest");
  TANDEM_ASSERT(count <= std::ssize(sequence.blocks), "more blocks than the sequence has");
  std::vector<kv::BlockId> kept(sequence.blocks.begin(), sequence.blocks.begin() + count);
  sequence.blocks.erase(sequence.blocks.begin(), sequence.blocks.begin() + count);
  finish(id);
  return kept;
}

void Scheduler::erase_if_drained(Sequence& sequence) {
  if (sequence.steps_in_flight > 0 || sequence.fetch_in_flight) return;
  free_blocks(sequence);
  --num_draining_;
  sequences_.erase(sequence.id);
}

void Scheduler::take_from_queues(Sequence& sequence) {
  if (std::exchange(sequence.fetched, false)) --num_fetched_;
  if (sequence.state == State::kFetching) --num_fetching_;
  if (sequence.state == State::kRunning) {
    std::erase(running_, &sequence);
  } else {
    waiting_.erase(std::find(waiting_.begin(), waiting_.end(), &sequence));
  }
}

void Scheduler::put_in_queue(Sequence& sequence, bool at_front) {
  if (options_.policy == SchedulingPolicy::kPriority) {
    const auto place = std::upper_bound(waiting_.begin(), waiting_.end(), &sequence,
                                        [](const Sequence* a, const Sequence* b) { return more_urgent(*a, *b); });
    waiting_.insert(place, &sequence);
  } else if (at_front) {
    waiting_.push_front(&sequence);
  } else {
    waiting_.push_back(&sequence);
  }
}

void Scheduler::extend_hashes(Sequence& sequence) const {
  const std::span<const std::int32_t> tokens(sequence.all_tokens);
  const auto step = static_cast<std::size_t>(options_.block_size);
  auto& hashes = sequence.hashes;
  while ((hashes.size() + 1) * step <= tokens.size()) {
    const kv::BlockHash* parent = hashes.empty() ? nullptr : &hashes.back();
    const auto hash = kv::next_block_hash(parent, tokens.subspan(hashes.size() * step, step), sequence.cache_salt);
    hashes.push_back(hash);
  }
}

void Scheduler::take_prefix_hit(Sequence& sequence) {
  TANDEM_ASSERT(sequence.blocks.empty() && sequence.num_computed == 0, "a look-up comes first");
  if (!options_.enable_prefix_caching || sequence.whole_prompt) return;
  extend_hashes(sequence);
  const std::int64_t most = (sequence.num_tokens() - 1) / options_.block_size;  // the last token is always computed
  for (std::int64_t index = 0; index < most; ++index) {
    const auto block = pool_.find(sequence.hashes[static_cast<std::size_t>(index)]);
    if (!block) break;
    pool_.acquire(*block);
    sequence.blocks.push_back(*block);
  }
  sequence.num_filed = std::ssize(sequence.blocks);
  sequence.num_computed = sequence.num_scheduled = sequence.num_filed * options_.block_size;
}

void Scheduler::count_first_admission(Sequence& sequence) {
  if (std::exchange(sequence.admitted_before, true) || !options_.enable_prefix_caching || sequence.whole_prompt) return;
  prefix_cache_.queries += sequence.num_tokens();
  prefix_cache_.hits += sequence.num_computed;
  sequence.num_cached_tokens = static_cast<std::int32_t>(sequence.num_computed);
}

void Scheduler::file_full_blocks(Sequence& sequence) {
  if (!options_.enable_prefix_caching) return;
  extend_hashes(sequence);
  for (; (sequence.num_filed + 1) * options_.block_size <= sequence.num_computed; ++sequence.num_filed) {
    const auto index = static_cast<std::size_t>(sequence.num_filed);
    pool_.insert(sequence.blocks[index], sequence.hashes[index]);
  }
}

void Scheduler::free_blocks(Sequence& sequence) {
  pool_.release(sequence.blocks);
  sequence.blocks.clear();
  sequence.num_computed = sequence.num_scheduled = 0;
  sequence.num_filed = 0;
}

}  // namespace tandem::engine
