// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_ranks.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/log.h"

namespace tandem::engine {

EngineRanks::EngineRanks(const EngineOptions& options, const EngineCore::Environment& environment,
                         std::shared_ptr<EngineSnapshot> snapshot)
    : options_(options), env_(environment), snapshot_(std::move(snapshot)) {
  for (std::int32_t rank = 0; rank < options.num_ranks; ++rank) {
    RankSnapshot& seen = snapshot_->ranks[static_cast<std::size_t>(rank)];
    cores_.push_back(std::make_unique<EngineCore>(options, rank, env_, seen));
  }
}

void EngineRanks::handle(Command command) {
  std::visit([this](auto& each) { route(std::move(each)); }, command);
}

void EngineRanks::route(const ReleaseLeaseCommand& command) {
  for (const auto& core : cores_) core->handle(command);
}

void EngineRanks::route(const LeaseEndedCommand& command) {
  for (const auto& core : cores_) core->handle(command);
}

void EngineRanks::route(const ResetPrefixCacheCommand& command) { command.answer->set_value(reset_prefix_caches()); }

bool EngineRanks::reset_prefix_caches() {
  std::int32_t num_used = 0;
  for (const auto& core : cores_) num_used += core->num_used_blocks();
  if (num_used > 0) {
    log::warning("prefix cache not reset: {} blocks are in use; try again when the engine is idle", num_used);
    return false;
  }
  for (const auto& core : cores_) core->reset_prefix_cache();
  log::info("prefix cache reset");
  return true;
}

void EngineRanks::route(const StopCommand& /*command*/) {
  stopping_ = true;
  for (const auto& core : cores_) core->stop();
}

bool EngineRanks::drained() const {
  return steps_.empty() && std::all_of(cores_.begin(), cores_.end(), [](const auto& core) { return core->drained(); });
}

void EngineRanks::start_steps() {
  if (stopping_ || snapshot_->dead.load()) return;
  const std::size_t most = options_.async_scheduling ? plans_.size() : 1;
  while (steps_.size() < most && start_step()) {
  }
}

bool EngineRanks::start_step() {
  StepInFlight step{.step = next_step_, .started = env_.clock.now(), .parts = {}};
  const auto& plan = plans_[step.step % plans_.size()];
  plan->step = step.step;
  plan->on_layer = nullptr;
  PlanInWork in_work(*plan);
  std::vector<std::function<void(std::int32_t)>> on_layer;
  for (std::size_t rank = 0; rank < cores_.size(); ++rank) {
    std::optional<EngineCore::Share> share = cores_[rank]->begin_step(step.step, in_work);
    if (!share) continue;
    step.parts.push_back({rank, share->num_samples});
    if (share->on_layer) on_layer.push_back(std::move(share->on_layer));
  }
  if (step.parts.empty()) return false;
  in_work.close();
  if (!on_layer.empty()) {
    plan->on_layer = [on_layer = std::move(on_layer)](std::int32_t layer) {
      for (const auto& each : on_layer) each(layer);
    };
  }
  ++next_step_;
  steps_.push_back(std::move(step));
  env_.worker.submit(plan, [queue = env_.queue, number = plan->step](Result<worker::StepResult> result) {
    queue->push(StepEndedCommand{number, std::move(result)});
  });
  for (const auto& core : cores_) core->tell_masks();
  return true;
}

void EngineRanks::route(StepEndedCommand command) {
  TANDEM_ASSERT(!steps_.empty() && steps_.front().step == command.step, "a worker reports every step once, in order");
  const StepInFlight step = std::move(steps_.front());
  steps_.pop_front();
  if (!steps_.empty()) steps_.front().started = env_.clock.now();
  split(step, std::move(command.result));
}

void EngineRanks::split(const StepInFlight& step, Result<worker::StepResult> result) {
  std::size_t expected = 0;
  for (const StepInFlight::Part& part : step.parts) expected += part.num_samples;
  if (result && result->sampled.size() != expected) {
    result = Status(Code::kInternal, fmt::format("step {}: the worker sampled {} tokens, expected {}", step.step,
                                                 result->sampled.size(), expected));
  }
  if (!result) {
    for (const StepInFlight::Part& part : step.parts) cores_[part.rank]->fail_step(step.step, result.error());
    const Scope scope = result.error().scope();
    if (scope != Scope::kProcess && scope != Scope::kDevice) return;
    snapshot_->dead.store(true);
    for (const auto& core : cores_) core->die(result.error());
    return;
  }
  for (worker::PromptLogprobs& prompt : result->prompts)
    cores_[prompt.sequence % cores_.size()]->take_prompt(std::move(prompt));
  std::span<worker::SampledToken> rest(result->sampled);
  for (const StepInFlight::Part& part : step.parts) {
    cores_[part.rank]->end_step(step.step, rest.first(part.num_samples));
    rest = rest.subspan(part.num_samples);
  }
}

void EngineRanks::check_deadlines() {
  for (const auto& core : cores_) core->check_deadlines();
}

void EngineRanks::publish() {
  snapshot_->step_started.store(steps_.empty() ? 0 : steps_.front().started.time_since_epoch().count());
  for (const auto& core : cores_) core->publish();
}

void EngineRanks::maybe_log(TimePoint now) {
  const double step_seconds = steps_.empty() ? 0.0 : seconds(now - steps_.front().started);
  const bool stalled = step_seconds > seconds(options_.step_timeout);
  if (stalled && !stall_reported_) {
    log::error("step {} has been running for {:.0f} s (limit {} s): the engine reports itself unhealthy",
               steps_.front().step, step_seconds, options_.step_timeout.count());
  }
  stall_reported_ = stalled;
  for (const auto& core : cores_) core->maybe_log(now);
}

}  // namespace tandem::engine
