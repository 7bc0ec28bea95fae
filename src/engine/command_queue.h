// SPDX-License-Identifier: Apache-2.0
// The engine thread's inbox: many producers, one consumer, one condition variable. API threads, the worker thread and
// the transfer thread put commands in; only the engine thread takes them out, all at once.
//
// Bound: requests are bounded where they are submitted (engine.cc), and everything else is at most a few commands a
// request or lease. What outsiders could repeat without end (offer()) is refused when the queue is long.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "engine/engine.h"

namespace tandem::engine {

// What names a request is for its rank (EngineRanks::route).

struct SubmitCommand {
  RequestHandle handle = 0;
  GenerationRequest request;
  OutputSink sink;
};
struct AbortCommand {
  RequestHandle handle = 0;
};
struct ReleaseLeaseCommand {
  transfer::LeaseId lease;
};
struct LeaseEndedCommand {
  transfer::LeaseId lease;
  transfer::LeaseEnd how = transfer::LeaseEnd::kDone;
};
struct FetchEndedCommand {
  RequestHandle handle = 0;
  Result<transfer::FetchStats> result;
};
/// D: a prefiller has offered its KV for a reception.
struct OfferArrivedCommand {
  RequestHandle handle = 0;
};
/// D: what the metaserver said.
struct AnnouncedCommand {
  RequestHandle handle = 0;
  Status result;
};
/// P: what the decoder said to our offer.
struct OfferAnsweredCommand {
  RequestHandle handle = 0;
  transfer::LeaseId lease;
  Status result;
};
struct StepEndedCommand {
  std::uint64_t step = 0;
  Result<worker::StepResult> result;
};
struct ResetPrefixCacheCommand {
  std::shared_ptr<std::promise<bool>> answer;
};
struct StopCommand {};

using Command = std::variant<SubmitCommand, AbortCommand, ReleaseLeaseCommand, LeaseEndedCommand, FetchEndedCommand,
                             OfferArrivedCommand, AnnouncedCommand, OfferAnsweredCommand, StepEndedCommand,
                             ResetPrefixCacheCommand, StopCommand>;

class CommandQueue {
 public:
  explicit CommandQueue(std::size_t bound) : bound_(bound) {}

  /// Takes the command whatever the length; false, and the command is dropped, only once closed.
  bool push(Command command);
  /// False, and nothing queued, if the queue is over its bound or closed.
  bool offer(Command command);
  /// All commands, oldest first; waits for one until `deadline`. Engine thread only.
  std::vector<Command> take(TimePoint deadline);
  /// Nothing is taken any more; returns what was left.
  std::vector<Command> close();

 private:
  const std::size_t bound_;
  std::mutex mutex_;
  std::condition_variable filled_;
  std::vector<Command> commands_;
  bool closed_ = false;
};

}  // namespace tandem::engine
