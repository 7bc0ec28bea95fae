// SPDX-License-Identifier: Apache-2.0
// EngineCore's layerwise push (pd_protocol.md 7): the decoder is asked first.
//
//   D  scheduler orders a fetch   receive(), then announce() to the metaserver; the blocks are ours until the end
//      an offer comes             the reception goes on by itself
//      metaserver says ok         the prefill is over: an offer must be there within offer_grace
//      metaserver says no         the reception is given up with that error
//   P  first scheduled            open_growing_lease(), offer(); the local prefix hit is published in all layers
//      scheduled                  extend() by the new blocks, each with a reference of the lease's own
//      a layer is computed        publish(), on the worker's thread
//      the lease ends             its references go; a request that still runs fails unless the decoder has all
//      the request fails          revoke(): the decoder hears of it at once
#include <algorithm>
#include <boost/json.hpp>
#include <utility>

#include "base/log.h"
#include "engine/engine_core.h"
#include "engine/engine_request.h"

namespace tandem::engine {

// Prefiller.

Status EngineCore::check_delivery(const Request& request) const {
  const transfer::Delivery& to = *request.request.push_to;
  const auto mismatch = [&](const std::string& what) {
    return Status(Code::kFailedPrecondition,
                  fmt::format("request {}: its KV cannot be pushed to engine {}: {}; both instances must see the same "
                              "prompt (model, tokenizer, chat template)",
                              request.request.id, to.engine_id, what),
                  Scope::kTransfer);
  };
  if (to.num_tokens != request.num_prompt) {
    return mismatch(
        fmt::format("it wants the KV of {} tokens, the prompt has {} here", to.num_tokens, request.num_prompt));
  }
  if (to.first_token < 0 || to.first_token >= to.num_tokens) {
    return mismatch(fmt::format("it wants tokens from {} on, the prompt has {}", to.first_token, to.num_tokens));
  }
  if (const std::uint64_t ours = hash_of_first(request, to.num_tokens); to.prompt_hash != ours) {
    return mismatch(fmt::format("it wants the KV of another prompt of {} tokens (hash {:016x}, ours {:016x})",
                                to.num_tokens, to.prompt_hash, ours));
  }
  return {};
}

void EngineCore::begin_push(Request& request, std::int64_t num_cached) {
  const transfer::Delivery& to = *request.request.push_to;
  const transfer::Handover source = env_.transfer->open_growing_lease(request.num_prompt, to.prompt_hash);
  const bool fresh = leases_.emplace(source.lease, Lease{.blocks = {}, .pusher = request.handle}).second;
  TANDEM_ASSERT(fresh, "lease ids are unique");
  request.push = source.lease;
  extend_push(request);
  if (num_cached > 0) {
    env_.transfer->publish(source.lease, 0, env_.worker.cache().layout().num_layers, num_cached);
  }
  env_.transfer->offer(to, source,
                       [queue = env_.queue, handle = request.handle, lease = source.lease](const Status& result) {
                         queue->push(OfferAnsweredCommand{handle, lease, result});
                       });
}

void EngineCore::extend_push(Request& request) {
  if (!request.push) return;
  Lease& lease = leases_.at(*request.push);
  const std::vector<kv::BlockId>& table = scheduler_.block_table(request.handle);
  // The last block of the prompt may get output too; blocks behind it are not the decoder's.
  const std::int64_t end =
      std::min<std::int64_t>(std::ssize(table), (request.num_prompt + block_size_ - 1) / block_size_);
  const std::int64_t known = std::ssize(lease.blocks);
  if (known >= end) return;
  std::vector<kv::BlockId> added(table.begin() + known, table.begin() + end);
  for (const kv::BlockId block : added) pool_.acquire(block);
  lease.blocks.insert(lease.blocks.end(), added.begin(), added.end());
  num_leased_blocks_ += static_cast<std::int32_t>(added.size());
  env_.transfer->extend(*request.push, std::move(added));
}

std::function<void(std::int32_t)> EngineCore::publisher(const std::vector<ScheduledSequence>& scheduled) const {
  std::vector<std::pair<transfer::LeaseId, std::int64_t>> reached;  // tokens whose KV the step completes
  for (const ScheduledSequence& share : scheduled) {
    const Request& request = *requests_.at(share.id);
    if (!request.push || share.first_position >= request.num_prompt) continue;
    reached.emplace_back(*request.push, std::min(share.first_position + share.num_tokens, request.num_prompt));
  }
  if (reached.empty()) return {};
  return [transfer = env_.transfer, reached = std::move(reached)](std::int32_t layer) {
    for (const auto& [lease, end] : reached) transfer->publish(lease, layer, layer + 1, end);
  };
}

void EngineCore::on(const OfferAnsweredCommand& command) {
  if (command.result.ok()) return;
  env_.transfer->revoke(command.lease);
  const auto found = requests_.find(command.handle);
  if (found == requests_.end()) {
    log::warning("the KV of a finished request was not taken: {}", command.result.to_string());
    return;
  }
  log::error("request {} fails, its KV could not be offered: {}", found->second->request.id,
             command.result.to_string());
  fail(*found->second, command.result);
}

void EngineCore::push_ended(RequestHandle handle, transfer::LeaseEnd how) {
  const auto found = requests_.find(handle);
  if (found == requests_.end()) return;
  Request& request = *found->second;
  request.push.reset();
  request.request.push_to.reset();  // no second lease
  if (how == transfer::LeaseEnd::kDone) return;
  const bool unwanted = how == transfer::LeaseEnd::kDropped;
  fail(request, Status(unwanted ? Code::kCancelled : Code::kUnavailable,
                       fmt::format("request {}: the decoder did not take its KV to the end (lease {})",
                                   request.request.id, transfer::lease_end_name(how)),
                       Scope::kTransfer));
}

// Decoder.

void EngineCore::start_reception(Request& request, const FetchOrder& order) {
  transfer::Reception reception;
  reception.destination = order.destination;
  reception.first_token = order.first_token;
  reception.end_token = order.end_token;
  reception.num_tokens = request.num_prompt;
  reception.prompt_hash = hash_of_first(request, request.num_prompt);
  reception.offered = [queue = env_.queue, handle = order.id] { queue->push(OfferArrivedCommand{handle}); };
  auto [id, delivery] = env_.transfer->receive(std::move(reception), fetch_done(order.id));
  request.fetch = id;
  announce(request, delivery);
}

void EngineCore::announce(Request& request, const transfer::Delivery& delivery) {
  const Metaserver& where = *request.request.metaserver;
  boost::json::object body = transfer::to_json(delivery);
  body["token_ids"] = boost::json::array();
  body["request_id"] = where.request_id;
  body["do_remote_prefill"] = false;
  body["do_remote_decode"] = true;
  body["remote_block_size"] = block_size_;
  body["remote_tp_size"] = static_cast<std::int64_t>(env_.worker.cache().ranks().size());
  body["remote_pcp_size"] = 1;
  body["remote_dcp_size"] = 1;
  body["remote_cached_tokens"] = delivery.first_token;
  request.announcement = env_.announcer->announce({.host = where.host,
                                                   .port = where.port,
                                                   .tls = where.tls,
                                                   .target = where.target,
                                                   .body = boost::json::serialize(body),
                                                   .traceparent = request.request.traceparent},
                                                  [queue = env_.queue, handle = request.handle](const Status& result) {
                                                    queue->push(AnnouncedCommand{handle, result});
                                                  });
}

void EngineCore::on(const OfferArrivedCommand& command) {
  const auto found = requests_.find(command.handle);
  if (found != requests_.end()) found->second->offered = env_.clock.now();
}

void EngineCore::on(const AnnouncedCommand& command) {
  const auto found = requests_.find(command.handle);
  if (found == requests_.end()) return;
  Request& request = *found->second;
  request.announcement.reset();
  if (!request.fetch) return;  // all has come, or the reception failed by itself
  if (!command.result.ok()) return give_up_reception(request, command.result);
  request.offer_deadline = env_.clock.now() + options_.offer_grace;
}

void EngineCore::give_up_reception(Request& request, Status why) {
  request.load_error = std::move(why);
  request.offer_deadline = TimePoint::max();
  env_.transfer->cancel(*request.fetch);  // its end goes on with load_failed()
}

void EngineCore::check_deadlines() {
  const TimePoint now = env_.clock.now();
  for (const auto& [handle, request] : requests_) {
    if (now < request->offer_deadline || !request->fetch || request->offered != TimePoint{}) continue;
    give_up_reception(
        *request,
        Status(Code::kUnavailable,
               fmt::format("the metaserver said that the prefill is over, but no prefiller offered its KV within {} ms",
                           options_.offer_grace.count()),
               Scope::kTransfer));
  }
}

}  // namespace tandem::engine
