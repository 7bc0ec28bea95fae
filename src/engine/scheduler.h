// SPDX-License-Identifier: Apache-2.0
// The scheduler: a pure state machine, (state, events, budget) -> decision. It owns the sequences' tokens, progress and
// block tables and works on a block pool; it does no I/O, takes no lock, reads no clock and calls nobody back, so that
// tests and simulators run this very object. What it decides, the engine carries out and reports back as events.
//
//            add()                  schedule()                    advance()
//   -> waiting ------------------> running ----------------------> running ... finish()
//       |  ^ ^                        |
//       |  | +---- preemption --------+
//       |  +-- fetch_done(ok or not)
//       +--> fetching (holds its blocks; stepped over until the fetch is done)
//
// A finished sequence whose blocks a step or a fetch in flight still uses is kept aside until that is done.
//
// Running ahead. While a step computes, the next one may be planned: prompts go on with their next chunk, and a
// sequence whose token is being sampled runs that token, which is not known yet (ScheduledSequence::sampled_before).
// Nobody runs past its last possible token, and nobody is preempted for a step ahead: if blocks are short, nothing is
// planned until all that is in flight is done, so that preemption sees the same state with and without running ahead.
// The KV of a token that turns out to be behind the end of its sequence is never filed: a finished sequence files
// nothing.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "engine/engine.h"
#include "kv/block_pool.h"

namespace tandem::engine {

using SequenceId = std::uint64_t;

struct SchedulerOptions {
  std::int32_t block_size = 16;
  std::int32_t max_num_seqs = 128;
  std::int32_t max_num_batched_tokens = 512;      ///< budget of one step, over all sequences
  std::int32_t long_prefill_token_threshold = 0;  ///< largest chunk of one prompt; 0: none
  bool enable_prefix_caching = true;
  SchedulingPolicy policy = SchedulingPolicy::kFcfs;
  bool run_ahead = false;  ///< schedule() while a step is in flight goes on with the sequences in it
};

struct NewSequence {
  SequenceId id = 0;
  std::vector<std::int32_t> prompt;  ///< at least one token
  std::int32_t priority = 0;         ///< lower first; only with SchedulingPolicy::kPriority
  TimePoint arrival{};
  std::string cache_salt{};
  bool remote_prefill = false;  ///< the KV of all but the last prompt token can be fetched
  /// One with the same prompt that came before. While its fetch is to come or under way, this one waits: what the other
  /// has then is in the prefix cache. May be one that is not here (any more).
  std::optional<SequenceId> sibling{};
  /// All of the prompt is computed, for its log-probabilities: nothing is taken from the prefix cache, and a step
  /// computes a bounded number of such tokens.
  bool whole_prompt = false;
  /// Prompt and output: who has so many tokens ends. It is not run ahead past that.
  std::int64_t max_tokens = std::numeric_limits<std::int64_t>::max();
  bool pinned = false;  ///< preempted only when nobody else can be: somebody reads its blocks as they fill
};

/// One sequence's share of a step: it runs tokens [first_position, first_position + num_tokens).
struct ScheduledSequence {
  SequenceId id = 0;
  std::int64_t first_position = 0;
  std::int32_t num_tokens = 0;
  bool sample = false;          ///< the step reaches the last token, so a new one comes out
  bool sampled_before = false;  ///< its one token is what the step before samples for it, unknown until that is done
};

/// A fetch to start: tokens [first_token, end_token) go into `destination`, whose first block is block
/// first_token / block_size of the sequence.
struct FetchOrder {
  SequenceId id = 0;
  std::int64_t first_token = 0;
  std::int64_t end_token = 0;
  std::vector<kv::BlockId> destination;
};

struct Decision {
  std::vector<ScheduledSequence> scheduled;
  std::vector<FetchOrder> fetches;
  std::vector<SequenceId> unneeded_remote;  ///< everything but the last token is here already: drop the hand-over
  std::vector<SequenceId> preempted;
  std::int32_t num_tokens = 0;  ///< sum over `scheduled`
  std::int32_t num_scored = 0;  ///< of these, tokens of prompts that are computed whole; bounded
};

/// Prefix cache look-ups since the start, in tokens, counted when a sequence is admitted for the first time.
struct PrefixCacheCounts {
  std::int64_t queries = 0;
  std::int64_t hits = 0;
};

class Scheduler {
 public:
  /// `pool` must outlive the scheduler.
  Scheduler(const SchedulerOptions& options, kv::BlockPool& pool);
  ~Scheduler();

  // Events.
  /// The prompt must fit in the pool with one token to spare; the caller refuses others.
  void add(NewSequence sequence);
  /// A step that ran this sequence is done: its KV is valid up to `end_position`, and `token` (if the step sampled) is
  /// its newest token. No effect but freeing blocks if the sequence was finished meanwhile.
  void advance(SequenceId id, std::int64_t end_position, std::optional<std::int32_t> token);
  /// A step that ran this sequence failed. The caller finishes the sequence too.
  void step_failed(SequenceId id);
  /// A fetch ended. If it succeeded, the sequence will be scheduled like one with a prefix hit; if not, its blocks are
  /// freed and it will be prefilled here (unless the caller finishes it).
  void fetch_done(SequenceId id, bool succeeded);
  /// There is no remote KV for this waiting sequence after all: it will be prefilled here.
  void forget_remote(SequenceId id);
  /// Ends a sequence in any state. Its blocks are freed now, or when the step or fetch that uses them is done.
  void finish(SequenceId id);
  /// Ends a sequence that is in no step and gives the caller its first `count` blocks, with their references.
  std::vector<kv::BlockId> finish_and_keep(SequenceId id, std::int32_t count);

  /// What to do next. Events in between may come in any order, but steps end in the order in which they were scheduled.
  /// A sequence that is in a step is not scheduled again before advance(), unless it may run ahead; then at most one
  /// step may be in flight here.
  Decision schedule();

  // What a caller may look at.
  bool contains(SequenceId id) const;
  /// Prompt and generated tokens.
  const std::vector<std::int32_t>& tokens(SequenceId id) const;
  const std::vector<kv::BlockId>& block_table(SequenceId id) const;
  /// Prompt tokens found in the local prefix cache when the sequence was first admitted.
  std::int32_t num_cached_tokens(SequenceId id) const;
  std::int32_t num_running() const { return static_cast<std::int32_t>(running_.size()); }
  /// Also those whose remote KV is on its way.
  std::int32_t num_waiting() const { return static_cast<std::int32_t>(waiting_.size()); }
  std::int32_t num_fetching() const { return num_fetching_; }
  /// Finished sequences whose blocks are still in use by a step or fetch.
  std::int32_t num_draining() const { return num_draining_; }
  const PrefixCacheCounts& prefix_cache_counts() const { return prefix_cache_; }

 private:
  enum class State { kWaiting, kFetching, kRunning, kDraining };
  struct Sequence;
  using Entry = std::unique_ptr<Sequence>;

  Sequence& at(SequenceId id) const;
  std::int32_t blocks_for(std::int64_t num_tokens) const;
  /// Whether `a` comes before `b` in the waiting queue of the priority policy.
  static bool more_urgent(const Sequence& a, const Sequence& b);

  /// False: nothing can be planned until what is in flight is done.
  bool schedule_running(Decision& decision, std::int32_t& budget);
  void schedule_waiting(Decision& decision, std::int32_t& budget);
  /// Whether a waiting sequence is to be stepped over because its prompt's KV is still on its way, to it or a sibling.
  bool waits_for_kv(const Sequence& sequence) const;
  enum class FetchStart { kStarted, kNotNeeded, kNoRoom };
  FetchStart start_fetch(Sequence& sequence, Decision& decision);
  /// Moves a waiting sequence to the running ones, if there is room for it.
  bool admit(Sequence& sequence, Decision& decision, std::int32_t& budget);
  /// Whether a running sequence may be in the next step.
  bool can_run(const Sequence& sequence) const;
  static void put_in_step(const Sequence& sequence, std::int32_t count, Decision& decision, std::int32_t& budget);
  /// How many tokens the sequence runs in the step; 0 if it has to wait for the next one.
  std::int32_t chunk(const Sequence& sequence, std::int32_t budget, const Decision& decision) const;
  /// Whether log-probabilities are wanted of the tokens that it runs next.
  static bool is_scored(const Sequence& sequence);
  bool has_room(std::int32_t missing_blocks) const;

  enum class Growth { kDone, kPreempted, kMustWait };
  /// Makes the block table cover `num_tokens`, preempting others, or at last the sequence itself, if it must. Nobody is
  /// preempted while steps are in flight.
  Growth grow(Sequence& sequence, std::int64_t num_tokens, Decision& decision, std::int32_t& budget);
  Sequence& pick_victim(Sequence& claimant) const;
  void preempt(Sequence& victim, Decision& decision);

  /// Shares the cached blocks of the sequence's prefix, at most all tokens but the last. The sequence has no blocks.
  void take_prefix_hit(Sequence& sequence);
  void count_first_admission(Sequence& sequence);
  void extend_hashes(Sequence& sequence) const;
  void file_full_blocks(Sequence& sequence);
  void free_blocks(Sequence& sequence);
  void put_in_queue(Sequence& sequence, bool at_front);
  void take_from_queues(Sequence& sequence);
  void erase_if_drained(Sequence& sequence);

  SchedulerOptions options_;
  kv::BlockPool& pool_;
  std::unordered_map<SequenceId, Entry> sequences_;
  std::deque<Sequence*> waiting_;              ///< queue order; fetching ones keep their place
  std::vector<Sequence*> running_;             ///< admission order
  std::vector<Sequence*> in_admission_order_;  ///< schedule_running()'s, kept for its memory
  std::int32_t num_fetching_ = 0;
  std::int32_t num_fetched_ = 0;  ///< waiting with their remote KV in place
  std::int32_t num_draining_ = 0;
  std::int32_t num_in_steps_ = 0;  ///< sequences in steps in flight, also finished ones; twice who is in two
  PrefixCacheCounts prefix_cache_;
};

}  // namespace tandem::engine
