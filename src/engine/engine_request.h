// SPDX-License-Identifier: Apache-2.0
// What the engine keeps of one request besides its scheduling state. Private to engine_core*.cc.
#pragma once

#include <algorithm>
#include <deque>

#include "engine/engine_core.h"

namespace tandem::engine {

struct EngineCore::Request {
  RequestHandle handle = 0;
  GenerationRequest request;  ///< its prompt has moved into the scheduler
  OutputSink sink;
  std::int64_t num_prompt = 0;
  std::int64_t num_output = 0;
  std::vector<std::int32_t> suppressed;                            ///< before min_tokens
  std::vector<std::vector<worker::TokenLogprob>> prompt_logprobs;  ///< by position; of steps so far

  bool wants_prompt_logprobs() const { return request.sampling->prompt_logprobs.has_value(); }
  std::optional<OutputText> text;  ///< none without a tokenizer
  /// Where the output is in its grammar. It goes with the output, so a preemption does not touch it.
  std::unique_ptr<text::GrammarMatcher> grammar;
  bool grammar_waits = false;                     ///< for the token grammar_after
  std::shared_ptr<worker::TokenMask> mask_ahead;  ///< of the step planned ahead; told by the token that comes before it

  bool holds_remote = false;  ///< hold() was called; we owe a drop() or a fetch()
  std::optional<transfer::FetchId> fetch;
  transfer::FetchStats fetch_stats;
  std::int64_t num_received = 0;  ///< prompt tokens whose KV was fetched

  // Layerwise push, D: a reception is a fetch that waits for an offer.
  std::optional<AnnouncementId> announcement;
  TimePoint offered{};                          ///< when a prefiller said where the KV is
  TimePoint offer_deadline = TimePoint::max();  ///< set once the metaserver has said ok
  Status load_error;                            ///< why the reception was given up
  // P:
  std::optional<transfer::LeaseId> push;  ///< the lease that grows while we compute

  // Unset (epoch) where it has not happened.
  TimePoint left_queue{};  ///< first scheduled, or its fetch started
  TimePoint scheduled{};
  TimePoint fetch_started{};
  TimePoint fetch_ended{};
  TimePoint first_token{};
  TimePoint last_token{};

  RequestTimes times() const {
    const auto span = [](TimePoint from, TimePoint to) {
      return from == TimePoint{} || to == TimePoint{} ? 0.0 : seconds(to - from);
    };
    RequestTimes times;
    times.templating = span(request.received, request.arrival);
    times.queue = span(request.arrival, left_queue) + span(fetch_ended, scheduled);
    // Copying and verifying overlap in a fetch: what is not accounted for otherwise is transfer.
    const double loading = span(fetch_started, fetch_ended);
    times.lease_wait = std::min(loading, span(fetch_started, offered) + fetch_stats.wait_seconds);
    times.verify = std::min(loading - times.lease_wait, fetch_stats.verify_seconds);
    times.transfer = loading - times.lease_wait - times.verify;
    (num_received > 0 ? times.first_step : times.prefill) = span(scheduled, first_token);
    times.decode = span(first_token, last_token);
    return times;
  }
};

struct EngineCore::StepInFlight {
  std::uint64_t step = 0;
  std::vector<ScheduledSequence> scheduled;
  std::int32_t num_tokens = 0;
};

/// What the log line tells.
struct EngineCore::ThroughputLog {
  void note_lookup(PrefixCacheCounts lookup);

  // Since the last line.
  TimePoint last{};
  std::int64_t prompt_tokens = 0;
  std::int64_t generation_tokens = 0;
  bool was_active = false;
  std::deque<PrefixCacheCounts> lookups;  ///< of the last requests, one each
  PrefixCacheCounts recent;               ///< their sum
};

}  // namespace tandem::engine
