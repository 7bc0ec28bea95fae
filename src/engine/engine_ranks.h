// SPDX-License-Identifier: Apache-2.0
// The data-parallel ranks of this process, all on the engine thread. Each rank is an EngineCore with a scheduler,
// blocks and requests of its own; they share the worker, its weights and its threads, so what they have to compute is
// joined into one step plan and one forward pass, and the result is split again. A rank without work contributes
// nothing, and without any work no step runs.
//
// Ranks join step by step: who has work when a step is planned is in it. A step that fails fails the requests of all
// ranks that were in it; a sequence that gets no token fails alone.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <vector>

#include "engine/engine_core.h"

namespace tandem::engine {

/// What other threads may read of the engine without asking it.
struct EngineSnapshot {
  explicit EngineSnapshot(std::int32_t num_ranks) : ranks(static_cast<std::size_t>(num_ranks)) {}

  std::vector<RankSnapshot> ranks;
  std::atomic<bool> dead{false};  ///< a fatal worker error: nothing will run any more
  std::atomic<bool> stopped{false};
  std::atomic<TimePoint::rep> step_started{0};  ///< of the oldest step in flight; 0: none
};

class EngineRanks {
 public:
  EngineRanks(const EngineOptions& options, const EngineCore::Environment& environment,
              std::shared_ptr<EngineSnapshot> snapshot);

  void handle(Command command);
  /// Starts steps as long as there is something to run and the worker takes one.
  void start_steps();
  void check_deadlines();
  /// Brings snapshot and gauges up to date.
  void publish();
  void maybe_log(TimePoint now);
  bool stopping() const { return stopping_; }
  /// After StopCommand: nothing is in flight any more.
  bool drained() const;

 private:
  struct StepInFlight {
    std::uint64_t step = 0;
    TimePoint started{};
    struct Part {
      std::size_t rank = 0;
      std::size_t num_samples = 0;
    };
    std::vector<Part> parts;  ///< in the plan's order
  };

  /// Commands that name a request go to its rank.
  template <class CommandType>
    requires requires(CommandType command) { command.handle; }
  void route(CommandType command) {
    cores_[command.handle % cores_.size()]->handle(std::move(command));
  }
  void route(const ReleaseLeaseCommand& command);
  void route(const LeaseEndedCommand& command);
  void route(StepEndedCommand command);
  void route(const ResetPrefixCacheCommand& command);
  void route(const StopCommand& command);

  bool start_step();
  void split(const StepInFlight& step, Result<worker::StepResult> result);
  bool reset_prefix_caches();

  const EngineOptions options_;
  EngineCore::Environment env_;
  std::shared_ptr<EngineSnapshot> snapshot_;
  std::vector<std::unique_ptr<EngineCore>> cores_;  ///< one a rank
  std::deque<StepInFlight> steps_;                  ///< oldest first
  /// Of the steps in flight, by step number; as many as the worker takes.
  const std::array<std::shared_ptr<worker::StepPlan>, 2> plans_{std::make_shared<worker::StepPlan>(),
                                                                std::make_shared<worker::StepPlan>()};
  std::uint64_t next_step_ = 1;
  bool stopping_ = false;
  bool stall_reported_ = false;
};

}  // namespace tandem::engine
