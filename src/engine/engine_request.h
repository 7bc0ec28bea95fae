// SPDX-License-Identifier: Apache-2.0
// What the engine keeps of one request besides its scheduling state. Private to engine_core*.cc.
#pragma once

#include "engine/engine_core.h"

namespace tandem::engine {

struct EngineCore::Request {
  RequestHandle handle = 0;
  GenerationRequest request;  ///< its prompt has moved into the scheduler
  OutputSink sink;
  std::int64_t num_prompt = 0;
  std::int64_t num_output = 0;
  std::vector<std::int32_t> suppressed;  ///< before min_tokens
  std::optional<OutputText> text;        ///< none without a tokenizer

  bool holds_remote = false;  ///< hold() was called; we owe a drop() or a fetch()
  std::optional<transfer::FetchId> fetch;
  std::int64_t num_received = 0;  ///< prompt tokens whose KV was fetched

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
    return {.queue = span(request.arrival, left_queue),
            .transfer = span(fetch_started, fetch_ended),
            .prefill = span(scheduled, first_token),
            .decode = span(first_token, last_token)};
  }
};

struct EngineCore::StepInFlight {
  std::uint64_t step = 0;
  std::vector<ScheduledSequence> scheduled;
  std::int32_t num_tokens = 0;
  TimePoint started{};
};

/// Totals at the last log line.
struct EngineCore::ThroughputLog {
  TimePoint last{};
  std::int64_t prompt_tokens = 0;
  std::int64_t generation_tokens = 0;
  bool was_active = false;
  bool stall_reported = false;
};

}  // namespace tandem::engine
