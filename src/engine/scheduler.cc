// SPDX-License-Identifier: Apache-2.0
// Scheduling: what runs in the next step. Events and bookkeeping of sequences are in scheduler_state.cc.
#include "engine/scheduler.h"

#include <algorithm>

#include "engine/scheduler_sequence.h"

namespace tandem::engine {

/// Each scored token has a row of logits in memory, of the vocabulary's length: half a megabyte.
constexpr std::int32_t kMostScored = 512;

bool Scheduler::is_scored(const Sequence& sequence) {
  return sequence.whole_prompt && sequence.num_scheduled < sequence.num_prompt;
}

Decision Scheduler::schedule() {
  Decision decision;
  std::int32_t budget = options_.max_num_batched_tokens;
  if (!schedule_running(decision, budget)) {
    decision.scheduled.clear();
    return decision;
  }
  // Blocks that a preemption freed belong to those who run; new sequences would only take them away again.
  if (decision.preempted.empty()) schedule_waiting(decision, budget);
  for (const ScheduledSequence& scheduled : decision.scheduled) {
    Sequence& sequence = at(scheduled.id);
    ++sequence.steps_in_flight;
    ++num_in_steps_;
    sequence.num_scheduled += scheduled.num_tokens;
    if (scheduled.sample) ++sequence.num_sampling;
    decision.num_tokens += scheduled.num_tokens;
  }
  return decision;
}

std::int32_t Scheduler::chunk(const Sequence& sequence, std::int32_t budget, const Decision& decision) const {
  std::int64_t count = std::min<std::int64_t>(sequence.num_tokens() - sequence.num_scheduled, budget);
  if (options_.long_prefill_token_threshold > 0) {
    count = std::min<std::int64_t>(count, options_.long_prefill_token_threshold);
  }
  TANDEM_ASSERT(count > 0, "a sequence always has a token to compute");
  if (is_scored(sequence)) count = std::min<std::int64_t>(count, kMostScored - decision.num_scored);
  return static_cast<std::int32_t>(count);
}

bool Scheduler::can_run(const Sequence& sequence) const {
  if (sequence.state != State::kRunning) return false;
  if (sequence.steps_in_flight == 0) return true;
  if (!options_.run_ahead) return false;
  return sequence.num_sampling == 0 || sequence.num_tokens() < sequence.max_tokens;
}

bool Scheduler::schedule_running(Decision& decision, std::int32_t& budget) {
  in_admission_order_ = running_;  // preemption changes running_ under way
  decision.scheduled.reserve(running_.size());
  for (Sequence* sequence : in_admission_order_) {
    if (budget == 0) break;
    if (!can_run(*sequence)) continue;
    const std::int32_t count = chunk(*sequence, budget, decision);
    if (count == 0) continue;
    const Growth growth = grow(*sequence, sequence->num_scheduled + count, decision, budget);
    if (growth == Growth::kMustWait) return false;
    if (growth == Growth::kDone) put_in_step(*sequence, count, decision, budget);
  }
  return true;
}

void Scheduler::put_in_step(const Sequence& sequence, std::int32_t count, Decision& decision, std::int32_t& budget) {
  decision.scheduled.push_back({.id = sequence.id,
                                .first_position = sequence.num_scheduled,
                                .num_tokens = count,
                                .sample = sequence.num_scheduled + count == sequence.num_tokens(),
                                .sampled_before = sequence.num_sampling > 0});
  budget -= count;
  if (is_scored(sequence)) decision.num_scored += count;
}

Scheduler::Growth Scheduler::grow(Sequence& sequence, std::int64_t num_tokens, Decision& decision,
                                  std::int32_t& budget) {
  const std::int32_t missing = blocks_for(num_tokens) - static_cast<std::int32_t>(sequence.blocks.size());
  if (missing <= 0) return Growth::kDone;
  while (true) {
    if (auto blocks = pool_.allocate(missing)) {
      sequence.blocks.insert(sequence.blocks.end(), blocks->begin(), blocks->end());
      return Growth::kDone;
    }
    if (num_in_steps_ > 0) return Growth::kMustWait;
    Sequence& victim = pick_victim(sequence);
    // Under the priority policy the victim may have its place in this step already.
    const auto planned = std::find_if(decision.scheduled.begin(), decision.scheduled.end(),
                                      [&](const ScheduledSequence& other) { return other.id == victim.id; });
    if (planned != decision.scheduled.end()) {
      budget += planned->num_tokens;
      decision.scheduled.erase(planned);
    }
    preempt(victim, decision);
    if (&victim == &sequence) return Growth::kPreempted;
  }
}

Scheduler::Sequence& Scheduler::pick_victim(Sequence& claimant) const {
  Sequence* victim = &claimant;
  for (Sequence* candidate : running_) {
    if (candidate->pinned && !victim->pinned) continue;
    const bool last = options_.policy == SchedulingPolicy::kFcfs || more_urgent(*victim, *candidate);
    if (last || (victim->pinned && !candidate->pinned)) victim = candidate;
  }
  return *victim;
}

void Scheduler::preempt(Sequence& victim, Decision& decision) {
  take_from_queues(victim);
  free_blocks(victim);
  victim.state = State::kWaiting;
  put_in_queue(victim, /*at_front=*/true);
  decision.preempted.push_back(victim.id);
}

void Scheduler::schedule_waiting(Decision& decision, std::int32_t& budget) {
  // Once one has found no room, those behind it may not take the blocks it waits for; only sequences that hold their
  // blocks already (their remote KV has come) may pass. Without that, they and the head would wait for each other.
  bool blocked = false;
  std::int32_t fetched_left = num_fetched_;
  for (std::size_t index = 0; index < waiting_.size() && !(blocked && fetched_left == 0);) {
    Sequence& sequence = *waiting_[index];
    const bool fetched = sequence.fetched;
    if (waits_for_kv(sequence) || (blocked && !fetched)) {
      ++index;
      continue;
    }
    if (fetched) --fetched_left;
    if (sequence.remote_prefill) {
      const FetchStart start = start_fetch(sequence, decision);
      blocked = start == FetchStart::kNoRoom;
      if (start != FetchStart::kNotNeeded) {
        ++index;
        continue;
      }
    }
    if (budget == 0 || num_running() >= options_.max_num_seqs) break;
    if (admit(sequence, decision, budget)) continue;  // waiting_[index] is the next one now
    blocked = true;
    ++index;
  }
}

bool Scheduler::waits_for_kv(const Sequence& sequence) const {
  if (sequence.state == State::kFetching) return true;
  if (!sequence.sibling) return false;
  const auto found = sequences_.find(*sequence.sibling);
  if (found == sequences_.end()) return false;
  const Sequence& sibling = *found->second;
  return sibling.state == State::kFetching || (sibling.state == State::kWaiting && sibling.remote_prefill);
}

bool Scheduler::has_room(std::int32_t missing_blocks) const {
  // Sequences that run were promised room for all the tokens they know; only what they generate may cost a preemption.
  std::int32_t promised = 0;
  for (const Sequence* running : running_) {
    promised += std::max(0, blocks_for(running->num_tokens()) - static_cast<std::int32_t>(running->blocks.size()));
  }
  return missing_blocks + promised <= pool_.num_available();
}

Scheduler::FetchStart Scheduler::start_fetch(Sequence& sequence, Decision& decision) {
  take_prefix_hit(sequence);
  const std::int64_t first = sequence.num_computed;
  const std::int64_t end = sequence.num_prompt - 1;  // the last prompt token is computed here, for its logits
  const auto num_hit_blocks = static_cast<std::int32_t>(sequence.blocks.size());
  const std::int32_t missing = blocks_for(sequence.num_prompt) - num_hit_blocks;
  const bool needed = first < end;
  // A fetch takes a seat in advance: KV that cannot run soon would only keep blocks from those who can.
  if (!needed || num_running() + num_fetching_ + num_fetched_ >= options_.max_num_seqs || !has_room(missing)) {
    free_blocks(sequence);
    return needed ? FetchStart::kNoRoom : FetchStart::kNotNeeded;
  }
  const auto blocks = pool_.allocate(missing);
  TANDEM_ASSERT(blocks.has_value(), "there was room");
  sequence.blocks.insert(sequence.blocks.end(), blocks->begin(), blocks->end());
  count_first_admission(sequence);
  sequence.state = State::kFetching;
  sequence.remote_prefill = false;
  sequence.fetch_in_flight = true;
  ++num_fetching_;
  decision.fetches.push_back(
      {.id = sequence.id,
       .first_token = first,
       .end_token = end,
       .destination = {sequence.blocks.begin() + num_hit_blocks, sequence.blocks.begin() + blocks_for(end)}});
  return FetchStart::kStarted;
}

bool Scheduler::admit(Sequence& sequence, Decision& decision, std::int32_t& budget) {
  const bool fetched = sequence.fetched;
  if (chunk(sequence, budget, decision) == 0) return false;
  if (!fetched) {
    take_prefix_hit(sequence);
    if (!has_room(blocks_for(sequence.num_tokens()) - static_cast<std::int32_t>(sequence.blocks.size()))) {
      free_blocks(sequence);
      return false;
    }
    count_first_admission(sequence);
    if (std::exchange(sequence.remote_prefill, false)) decision.unneeded_remote.push_back(sequence.id);
  }
  take_from_queues(sequence);
  sequence.state = State::kRunning;
  const std::int32_t count = chunk(sequence, budget, decision);
  const std::int32_t missing =
      blocks_for(sequence.num_scheduled + count) - static_cast<std::int32_t>(sequence.blocks.size());
  if (missing > 0) {
    const auto blocks = pool_.allocate(missing);
    TANDEM_ASSERT(blocks.has_value(), "there was room");
    sequence.blocks.insert(sequence.blocks.end(), blocks->begin(), blocks->end());
  }
  running_.push_back(&sequence);
  put_in_step(sequence, count, decision, budget);
  return true;
}

}  // namespace tandem::engine
