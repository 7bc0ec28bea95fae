// SPDX-License-Identifier: Apache-2.0
// EngineCore's hand-overs: a prefiller's leases on the blocks of finished prompts, a decoder's fetches.
#include <span>
#include <utility>

#include "base/log.h"
#include "engine/engine_core.h"
#include "engine/engine_request.h"

namespace tandem::engine {

std::uint64_t EngineCore::hash_of_first(const Request& request, std::int64_t count) const {
  return kv::token_hash(std::span(scheduler_.tokens(request.handle)).first(static_cast<std::size_t>(count)));
}

bool EngineCore::kv_comes(const Request& request) const {
  if (request.wants_prompt_logprobs()) return false;
  return request.holds_remote ||
         (env_.transfer != nullptr && env_.announcer != nullptr && request.request.metaserver.has_value());
}

std::optional<SequenceId> EngineCore::sibling_of(const Request& request, bool remote_prefill) {
  ChoiceGroup* const group = request.request.group.get();
  if (group == nullptr) return std::nullopt;
  if (group->kv_comes_to) return group->kv_comes_to;
  if (remote_prefill) group->kv_comes_to = request.handle;
  return std::nullopt;
}

void EngineCore::stop_transfers(Request& request) {
  drop_hold(request);
  if (request.fetch) env_.transfer->cancel(*request.fetch);
  if (request.announcement) env_.announcer->cancel(*request.announcement);
  if (request.push) env_.transfer->revoke(*request.push);
}

// Prefiller.

std::optional<transfer::Handover> EngineCore::open_lease(Request& request, FinishReason reason) {
  // Only a prompt whose decoding is still to come is handed over: "stop" means that there is nothing to decode.
  const bool wanted = request.request.remote_decode && env_.transfer != nullptr && reason == FinishReason::kLength;
  const std::int64_t num_blocks = (request.num_prompt + block_size_ - 1) / block_size_;
  if (!wanted || stopping_) return std::nullopt;
  const std::vector<std::int32_t>& tokens = scheduler_.tokens(request.handle);  // gone once the blocks are kept
  const std::int32_t last_token = tokens.back();
  const std::uint64_t prompt_hash = hash_of_first(request, request.num_prompt);
  std::vector<kv::BlockId> blocks = scheduler_.finish_and_keep(request.handle, static_cast<std::int32_t>(num_blocks));
  transfer::Handover handover = env_.transfer->open_lease(blocks, request.num_prompt, last_token);
  handover.prompt_hash = prompt_hash;
  num_leased_blocks_ += static_cast<std::int32_t>(num_blocks);
  const bool fresh = leases_.emplace(handover.lease, Lease{.blocks = std::move(blocks)}).second;
  TANDEM_ASSERT(fresh, "lease ids are unique");
  return handover;
}

void EngineCore::on(const ReleaseLeaseCommand& command) {
  if (env_.transfer != nullptr && leases_.contains(command.lease)) env_.transfer->revoke(command.lease);
}

void EngineCore::on(const LeaseEndedCommand& command) {
  const auto found = leases_.find(command.lease);
  if (found == leases_.end()) return;
  const Lease lease = std::move(found->second);
  leases_.erase(found);
  num_leased_blocks_ -= static_cast<std::int32_t>(lease.blocks.size());
  pool_.release(lease.blocks);
  const bool expected = command.how == transfer::LeaseEnd::kDone || command.how == transfer::LeaseEnd::kDropped ||
                        command.how == transfer::LeaseEnd::kRevoked;
  if (!expected) {
    log::warning("lease {:016x} ended without its KV being fetched: {}", command.lease.id,
                 transfer::lease_end_name(command.how));
  }
  if (lease.pusher != 0) push_ended(lease.pusher, command.how);
}

// Decoder.

Status EngineCore::check_handover(const Request& request) const {
  const transfer::Handover& handover = *request.request.remote_prefill;
  const auto mismatch = [&](const std::string& what) {
    return Status(Code::kFailedPrecondition,
                  fmt::format("request {}: hand-over from engine {} cannot be used: {}", request.request.id,
                              handover.engine_id, what),
                  Scope::kTransfer);
  };
  if (handover.num_tokens < request.num_prompt - 1 || handover.num_tokens > request.num_prompt) {
    return mismatch(
        fmt::format("it holds the KV of {} tokens, the prompt has {}; both instances must see the same "
                    "prompt (model, tokenizer, chat template)",
                    handover.num_tokens, request.num_prompt));
  }
  const std::int64_t capacity = std::ssize(handover.blocks) * handover.block_size;
  if (capacity < request.num_prompt - 1) {
    return mismatch(fmt::format("it lists {} blocks of {} tokens, the prompt needs the KV of {} tokens",
                                handover.blocks.size(), handover.block_size, request.num_prompt - 1));
  }
  const std::uint64_t ours = hash_of_first(request, handover.num_tokens);
  if (handover.prompt_hash != ours) {
    return mismatch(
        fmt::format("it holds the KV of another prompt of {} tokens (hash {:016x}, ours {:016x}); both instances must "
                    "see the same prompt (model, tokenizer, chat template)",
                    handover.num_tokens, handover.prompt_hash, ours));
  }
  return {};
}

void EngineCore::load_failed(Request& request, const Status& error) {
  metrics_.load_failures.add();
  if (options_.load_failure_policy == LoadFailurePolicy::kFail) {
    log::error("request {} fails, its KV could not be loaded: {}", request.request.id, error.to_string());
    return fail(request, error);
  }
  log::warning("request {}: its KV could not be loaded and is recomputed here: {}", request.request.id,
               error.to_string());
  metrics_.load_recomputes.add();
  scheduler_.forget_remote(request.handle);
}

void EngineCore::start_fetch(const FetchOrder& order, TimePoint now) {
  Request& request = *requests_.at(order.id);
  request.left_queue = now;
  request.fetch_started = now;
  request.num_received = order.end_token - order.first_token;
  ++num_fetches_;
  if (request.request.metaserver) return start_reception(request, order);
  TANDEM_ASSERT(request.holds_remote, "a fetch needs a hold");
  request.holds_remote = false;  // the fetch ends it
  request.fetch = env_.transfer->fetch({.source = *request.request.remote_prefill,
                                        .destination = order.destination,
                                        .first_token = order.first_token,
                                        .end_token = order.end_token},
                                       fetch_done(order.id));
}

transfer::FetchDone EngineCore::fetch_done(RequestHandle handle) const {
  return [queue = env_.queue, handle](transfer::FetchId /*fetch*/, Result<transfer::FetchStats> result) {
    queue->push(FetchEndedCommand{handle, std::move(result)});
  };
}

void EngineCore::on(FetchEndedCommand command) {
  --num_fetches_;
  const bool succeeded = command.result.has_value();
  scheduler_.fetch_done(command.handle, succeeded);
  const auto found = requests_.find(command.handle);
  if (found == requests_.end()) return;  // aborted meanwhile; its blocks are free now
  Request& request = *found->second;
  request.fetch.reset();
  request.fetch_ended = env_.clock.now();
  if (succeeded) {
    request.fetch_stats = *command.result;
    metrics_.fetch_seconds.observe(seconds(request.fetch_ended - request.fetch_started));
    return;
  }
  if (request.announcement) env_.announcer->cancel(*request.announcement);
  request.num_received = 0;
  load_failed(request, request.load_error.ok() ? command.result.error() : request.load_error);
}

void EngineCore::drop_hold(Request& request) {
  if (std::exchange(request.holds_remote, false)) env_.transfer->drop(*request.request.remote_prefill);
}

}  // namespace tandem::engine
