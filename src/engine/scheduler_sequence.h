// SPDX-License-Identifier: Apache-2.0
// What the scheduler knows of one sequence. Private to scheduler*.cc.
#pragma once

#include <utility>

#include "engine/scheduler.h"

namespace tandem::engine {

struct Scheduler::Sequence {
  SequenceId id = 0;
  std::int32_t priority = 0;
  TimePoint arrival{};
  std::string cache_salt;
  State state = State::kWaiting;
  bool remote_prefill = false;        ///< a fetch is possible and has not been made
  std::optional<SequenceId> sibling;  ///< whose fetch this one waits for; none if there is nothing to gain
  bool whole_prompt = false;          ///< nothing is taken from the prefix cache
  bool pinned = false;                ///< the last resort of a preemption
  bool fetch_in_flight = false;       ///< somebody else writes to our blocks
  bool fetched = false;               ///< waiting, with its remote KV in place: starting it takes no blocks from others
  bool admitted_before = false;
  std::int32_t steps_in_flight = 0;

  std::vector<std::int32_t> all_tokens;  ///< prompt, then generated
  std::int64_t num_prompt = 0;
  std::int64_t num_computed = 0;   ///< tokens whose KV is in `blocks`
  std::int64_t num_scheduled = 0;  ///< the same, when all steps in flight are done
  std::int64_t num_sampling = 0;   ///< tokens that steps in flight sample
  std::int64_t max_tokens = 0;
  std::vector<kv::BlockId> blocks;    ///< block table; we hold one reference to each
  std::vector<kv::BlockHash> hashes;  ///< of the full blocks of all_tokens, grown on demand
  std::int64_t num_filed = 0;         ///< leading blocks that are in the prefix index
  std::int32_t num_cached_tokens = 0;

  /// Tokens, also those that are being sampled.
  std::int64_t num_tokens() const { return std::ssize(all_tokens) + num_sampling; }
};

}  // namespace tandem::engine
