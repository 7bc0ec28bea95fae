// SPDX-License-Identifier: Apache-2.0
// What is kept of one request, and how it comes about from the events of a streamed answer. Definitions are those of
// `vllm bench serve` (vllm_api.md 17.2), whatever other tools call by the same names:
//  * TTFT: from just before the POST to the first event with non-empty `choices` (of chat: the one with the role).
//  * ITL samples: between consecutive events with non-empty `choices`.
//  * Latency (E2EL): completions: to the last event with `choices`; chat: to the last event before [DONE].
//  * Output tokens: `usage.completion_tokens` of an event without choices.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "config/bench_config.h"

namespace tandem::bench {

struct StreamRecord {
  bool success = false;
  std::string error;  ///< "" if success
  int status = 0;     ///< of HTTP; 0: no answer came
  TimePoint start{};  ///< just before the request was sent
  double ttft = 0.0;  ///< seconds, as all here
  double latency = 0.0;
  std::vector<float> itls;
  std::int64_t prompt_tokens = 0;  ///< of the dataset's text, by our tokenizer
  std::int64_t output_tokens = 0;  ///< as the server counts; 0: it did not say
  std::string text;                ///< kept only if asked for, or if output_tokens is 0
};

/// Fills one record from the events' data, in order.
class StreamAccount {
 public:
  StreamAccount(config::BenchBackend backend, StreamRecord& record) : backend_(backend), record_(record) {}

  /// `when` is the time at which the bytes came. An error is an event that is not what a server may send: not JSON, or
  /// an error object, whose message it then has.
  Result<void> on_event(std::string_view data, TimePoint when);
  /// The answer's body is over. Sets `success`, or an error if the answer was not whole.
  Result<void> finish();

 private:
  void on_choices(TimePoint when);

  config::BenchBackend backend_;
  StreamRecord& record_;
  TimePoint last_token_{};
  bool any_token_ = false;
  bool done_ = false;
};

}  // namespace tandem::bench
