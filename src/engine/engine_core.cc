// SPDX-License-Identifier: Apache-2.0
// EngineCore: requests come, run in steps, and end. Hand-overs between instances are in engine_core_kv.cc, what the
// engine tells about itself in engine_core_report.cc.
#include "engine/engine_core.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "engine/engine_request.h"

namespace tandem::engine {
namespace {

SchedulerOptions scheduler_options(const EngineOptions& options, std::int32_t block_size) {
  return {.block_size = block_size,
          .max_num_seqs = options.max_num_seqs,
          .max_num_batched_tokens = options.max_num_batched_tokens,
          .long_prefill_token_threshold = options.long_prefill_token_threshold,
          .enable_prefix_caching = options.enable_prefix_caching,
          .policy = options.policy,
          .run_ahead = options.async_scheduling};
}

/// One counter for each block of the rank's share.
std::span<std::atomic<std::uint32_t>> share_of_generations(kv::CacheMemory& memory, std::int32_t rank,
                                                           std::int32_t num_blocks) {
  const auto count = static_cast<std::size_t>(num_blocks);
  return memory.generations().subspan(static_cast<std::size_t>(rank) * count, count);
}

}  // namespace

EngineCore::EngineCore(const EngineOptions& options, std::int32_t rank, const Environment& environment,
                       RankSnapshot& snapshot)
    : options_(options),
      env_(environment),
      snapshot_(snapshot),
      rank_(options.first_rank + rank),
      block_size_(environment.worker.cache().layout().block_size),
      num_blocks_(blocks_per_rank(options, environment.worker.cache().layout())),
      // A sequence alone that fills the pool ends with "length": the last token needs no KV, hence the one more.
      max_total_tokens_(std::min(options.max_model_len, std::int64_t{num_blocks_} * block_size_ + 1)),
      metrics_(environment.registry, options, environment.worker.cache().layout(), rank_),
      pool_(num_blocks_, share_of_generations(environment.worker.cache(), rank, num_blocks_), rank * num_blocks_),
      scheduler_(scheduler_options(options, block_size_), pool_),
      log_(std::make_unique<ThroughputLog>()) {
  log_->last = env_.clock.now();
  publish();
}

EngineCore::~EngineCore() = default;

void EngineCore::on(SubmitCommand command) {
  auto owned = std::make_unique<Request>();
  Request& request = *owned;
  request.handle = command.handle;
  request.request = std::move(command.request);
  request.sink = std::move(command.sink);
  std::vector<std::int32_t> prompt = std::exchange(request.request.prompt, {});
  request.num_prompt = std::ssize(prompt);
  request.holds_remote = env_.transfer != nullptr && request.request.remote_prefill.has_value();
  // Sized before any token is scored: a prompt of one token has no other place to be told from one that nobody asks
  // for.
  if (request.wants_prompt_logprobs()) request.prompt_logprobs.resize(prompt.size());
  request.suppressed = ids_suppressed_before_min_tokens(*request.request.sampling, options_.eos_token_ids);
  if (env_.tokenizer) request.text.emplace(env_.tokenizer, request.request.sampling, prompt);
  requests_.emplace(request.handle, std::move(owned));
  const bool remote_prefill = kv_comes(request);
  scheduler_.add({.id = request.handle,
                  .prompt = std::move(prompt),
                  .priority = request.request.priority,
                  .arrival = request.request.arrival,
                  .cache_salt = request.request.cache_salt,
                  .remote_prefill = remote_prefill,
                  .sibling = sibling_of(request, remote_prefill),
                  .whole_prompt = request.wants_prompt_logprobs(),
                  .max_tokens = std::min(request.num_prompt + request.request.sampling->max_tokens, max_total_tokens_),
                  .pinned = env_.transfer != nullptr && request.request.push_to.has_value()});
  if (stopping_) return end_aborted(request, /*by_server=*/true);
  if (!death_.ok()) return fail(request, death_);
  if (const Status begun = begin_grammar(request); !begun.ok()) return fail(request, begun);
  if (env_.transfer == nullptr && (request.request.remote_prefill || request.request.remote_decode ||
                                   request.request.push_to || request.request.metaserver)) {
    log::warning("request {}: kv_transfer_params ignored, this instance has no KV connector (--kv-transfer-config)",
                 request.request.id);
  }
  if (env_.transfer != nullptr && request.request.push_to) {
    if (const Status fits = check_delivery(request); !fits.ok()) return fail(request, fits);
  }
  if (!request.holds_remote) return;
  // KV that comes has no logits with it.
  if (request.wants_prompt_logprobs()) return drop_hold(request);
  if (const Status fits = check_handover(request); !fits.ok()) {
    drop_hold(request);
    load_failed(request, fits);
  }
}

void EngineCore::on(AbortCommand command) {
  const auto found = requests_.find(command.handle);
  if (found != requests_.end()) end_aborted(*found->second, /*by_server=*/false);
}

void EngineCore::reset_prefix_cache() {
  changed_ = true;
  const bool reset = pool_.reset_prefix_cache();
  TANDEM_ASSERT(reset, "no block is in use");
  publish();  // before the answer, so that who has it sees the blocks free
}

void EngineCore::stop() {
  changed_ = true;
  stopping_ = true;
  while (!requests_.empty()) end_aborted(*requests_.begin()->second, /*by_server=*/true);
  if (env_.transfer == nullptr) return;
  for (const auto& [lease, blocks] : leases_) env_.transfer->revoke(lease);
}

bool EngineCore::drained() const { return steps_.empty() && num_fetches_ == 0 && leases_.empty(); }

std::optional<EngineCore::Share> EngineCore::begin_step(std::uint64_t step, PlanInWork& plan) {
  if (stopping_ || requests_.empty()) return std::nullopt;
  changed_ = true;
  Decision decision = scheduler_.schedule();
  const TimePoint now = env_.clock.now();
  for (const SequenceId id : decision.unneeded_remote) drop_hold(*requests_.at(id));
  for (const FetchOrder& order : decision.fetches) start_fetch(order, now);
  metrics_.preemptions.add(static_cast<double>(decision.preempted.size()));
  for (const SequenceId id : decision.preempted) {
    Request& request = *requests_.at(id);
    log::debug("request {} preempted: no free KV block; it will be recomputed", request.request.id);
    // Its blocks go to others, so the decoder cannot go on reading; what is recomputed would lie elsewhere.
    if (request.push) {
      fail(request, Status(Code::kResourceExhausted,
                           "no free KV block: the request was preempted while its KV was pushed to a decoder"));
    }
  }
  if (decision.scheduled.empty()) {
    // Whoever ran has given way, so that those may go on whose remote KV has come meanwhile. No event would wake us for
    // them, and with nobody running nobody can give way again.
    return decision.preempted.empty() ? std::nullopt : begin_step(step, plan);
  }
  Share share = share_of(decision, plan);
  steps_.push_back({step, std::move(decision.scheduled), decision.num_tokens});
  return share;
}

EngineCore::Share EngineCore::share_of(const Decision& decision, PlanInWork& plan) {
  const TimePoint now = env_.clock.now();
  Share share;
  for (const ScheduledSequence& scheduled : decision.scheduled) {
    Request& request = *requests_.at(scheduled.id);
    if (request.scheduled == TimePoint{}) request.scheduled = now;
    if (request.left_queue == TimePoint{}) request.left_queue = now;
    if (request.request.push_to && env_.transfer != nullptr) {
      if (request.num_output == 0 && !request.push) begin_push(request, scheduled.first_position);
      extend_push(request);
    }
    plan_for(scheduled, request, plan.next());
    share.num_samples += scheduled.sample ? 1 : 0;
  }
  share.on_layer = publisher(decision.scheduled);
  return share;
}

void EngineCore::plan_for(const ScheduledSequence& scheduled, Request& request, worker::SequencePlan& plan) {
  const std::vector<std::int32_t>& tokens = scheduler_.tokens(scheduled.id);
  plan.sequence = scheduled.id;
  if (scheduled.sampled_before) {
    plan.tokens.assign(1, worker::kSampledBefore);
  } else {
    const auto first = tokens.begin() + scheduled.first_position;
    plan.tokens.assign(first, first + scheduled.num_tokens);
  }
  plan.first_position = scheduled.first_position;
  plan.block_table = scheduler_.block_table(scheduled.id);
  plan.sample = scheduled.sample;
  plan.num_output_tokens = static_cast<std::int32_t>(request.num_output) + (scheduled.sampled_before ? 1 : 0);
  if (request.wants_prompt_logprobs() && request.num_output == 0) {
    plan.sampling = request.request.sampling;
    const std::int64_t from = scheduled.first_position + 1;
    const std::int64_t to = std::min(from + scheduled.num_tokens, request.num_prompt);
    plan.next_tokens.assign(tokens.begin() + std::min(from, to), tokens.begin() + to);
  }
  if (!scheduled.sample) return;
  plan.sampling = request.request.sampling;
  plan.mask = mask_for(request, scheduled.sampled_before);
  const bool below_minimum = plan.num_output_tokens < request.request.sampling->min_tokens;
  if (below_minimum) plan.suppressed = request.suppressed;
  const bool penalised = below_minimum || plan.sampling->penalises();
  if (penalised) plan.prompt_tokens.assign(tokens.begin(), tokens.begin() + request.num_prompt);
  if (penalised || !plan.sampling->bad_words.empty())
    plan.output_tokens.assign(tokens.begin() + request.num_prompt, tokens.end());
}

EngineCore::StepInFlight EngineCore::take_step(std::uint64_t step) {
  TANDEM_ASSERT(!steps_.empty() && steps_.front().step == step, "steps end in the order in which they began, once");
  changed_ = true;
  StepInFlight taken = std::move(steps_.front());
  steps_.erase(steps_.begin());
  return taken;
}

void EngineCore::end_step(std::uint64_t number, std::span<worker::SampledToken> sampled) {
  if (const Status error = check_result(steps_.front(), sampled); !error.ok()) return fail_step(number, error);
  const StepInFlight step = take_step(number);
  const TimePoint now = env_.clock.now();
  metrics_.iteration_tokens.observe(step.num_tokens);
  auto next = sampled.begin();
  for (const ScheduledSequence& scheduled : step.scheduled) {
    worker::SampledToken* token = scheduled.sample ? &*next++ : nullptr;
    const auto request = requests_.find(scheduled.id);  // gone if aborted meanwhile
    if (token != nullptr && !token->error.ok()) {
      scheduler_.step_failed(scheduled.id);
      if (request != requests_.end()) fail(*request->second, token->error);
      continue;
    }
    scheduler_.advance(scheduled.id, scheduled.first_position + scheduled.num_tokens,
                       token != nullptr ? std::optional(token->token) : std::nullopt);
    if (token != nullptr && request != requests_.end()) on_token(*request->second, std::move(*token), now);
  }
}

void EngineCore::take_prompt(worker::PromptLogprobs prompt) {
  const auto found = requests_.find(prompt.sequence);
  if (found == requests_.end()) return;
  Request& request = *found->second;
  if (!prompt.error.ok()) return fail(request, prompt.error);
  auto place = request.prompt_logprobs.begin() + prompt.first_position + 1;
  for (auto& list : prompt.tokens) *place++ = std::move(list);
}

Status EngineCore::check_result(const StepInFlight& step, std::span<const worker::SampledToken> sampled) const {
  std::size_t next = 0;
  for (const ScheduledSequence& scheduled : step.scheduled) {
    if (!scheduled.sample) continue;
    if (next >= sampled.size() || sampled[next].sequence != scheduled.id) {
      return {Code::kInternal, fmt::format("step {}: the worker's result has no token for sequence {} at place {}",
                                           step.step, scheduled.id, next)};
    }
    const worker::SampledToken& token = sampled[next++];
    if (token.error.ok() && (token.token < 0 || token.token >= env_.worker.vocab_size())) {
      return {Code::kInternal, fmt::format("step {}: the worker sampled id {}, the vocabulary has {} ids", step.step,
                                           token.token, env_.worker.vocab_size())};
    }
  }
  return {};
}

void EngineCore::fail_step(std::uint64_t number, const Status& error) {
  const StepInFlight step = take_step(number);
  log::error("step {} with {} sequences of rank {} failed ({} unusable): {}", step.step, step.scheduled.size(), rank_,
             scope_name(error.scope()), error.to_string());
  for (const ScheduledSequence& scheduled : step.scheduled) {
    scheduler_.step_failed(scheduled.id);
    const auto request = requests_.find(scheduled.id);
    if (request != requests_.end()) fail(*request->second, error);
  }
}

void EngineCore::die(const Status& error) {
  changed_ = true;
  death_ = Status(Code::kInternal, "the engine is dead, restart it: " + error.message(), error.scope());
  while (!requests_.empty()) fail(*requests_.begin()->second, death_);
}

void EngineCore::on_token(Request& request, worker::SampledToken sampled, TimePoint now) {
  const std::int32_t token = sampled.token;
  ++request.num_output;
  metrics_.generation_tokens.add();
  ++log_->generation_tokens;
  if (request.num_output == 1) {
    request.first_token = now;
    note_first_token(request);
  } else {
    metrics_.inter_token_latency.observe(seconds(now - request.last_token));
    metrics_.time_per_output_token.observe(seconds(now - request.last_token));
  }
  request.last_token = now;

  auto end = finish_after_token(token, request.num_output, request.num_prompt + request.num_output, max_total_tokens_,
                                *request.request.sampling, options_.eos_token_ids);
  if (const Status followed = follow_grammar(request, token, end); !followed.ok()) return fail(request, followed);
  Output output;
  if (request.num_output == 1) {
    output.times = request.times();
    output.prompt_logprobs = std::move(request.prompt_logprobs);
  }
  output.tokens = {token};
  output.num_cached_tokens = scheduler_.num_cached_tokens(request.handle);
  if (request.request.sampling->logprobs) output.logprobs.push_back(std::move(sampled.logprobs));
  if (request.text) {
    OutputText::Piece piece = request.text->append(token, end && end->by_token);
    output.text = std::move(piece.text);
    if (piece.stop_matched) {
      end = Finish{FinishReason::kStop, std::move(*piece.stop_matched), false};
    } else if (end) {
      output.text += request.text->flush();
    }
  }
  if (!end) {
    tell_mask_ahead(request);
    return request.sink(std::move(output));
  }
  output.finish = end->reason;
  output.stop_reason = std::move(end->stop_reason);
  finish(request, std::move(output));
}

void EngineCore::finish(Request& request, Output output) {
  record_finished(request, *output.finish, env_.clock.now());
  output.handover = open_lease(request, *output.finish);
  if (!output.handover) scheduler_.finish(request.handle);
  send_last(request, std::move(output));
}

void EngineCore::fail(Request& request, Status error) {
  metrics_.success_error.add();
  stop_transfers(request);
  const std::int32_t num_cached_tokens = scheduler_.num_cached_tokens(request.handle);
  scheduler_.finish(request.handle);
  Output output;
  output.error = std::move(error);
  output.num_cached_tokens = num_cached_tokens;
  send_last(request, std::move(output));
}

void EngineCore::end_aborted(Request& request, bool by_server) {
  // A client that left is not a finished request; one that the server ended is.
  if (by_server) metrics_.success(FinishReason::kAbort).add();
  stop_transfers(request);
  Output output;
  output.num_cached_tokens = scheduler_.num_cached_tokens(request.handle);
  scheduler_.finish(request.handle);
  if (request.text) output.text = request.text->flush();
  output.finish = FinishReason::kAbort;
  send_last(request, std::move(output));
}

void EngineCore::send_last(Request& request, Output output) {
  cancel_mask_ahead(request);
  output.times = request.times();
  const OutputSink sink = std::move(request.sink);
  requests_.erase(request.handle);
  snapshot_.num_live.fetch_sub(1);
  // Before the sink, so that who has the last output sees the blocks back. What led here may change more afterwards.
  publish_now();
  changed_ = true;
  sink(std::move(output));
}

}  // namespace tandem::engine
