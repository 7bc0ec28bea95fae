// SPDX-License-Identifier: Apache-2.0
// What EngineCore tells about itself: snapshot, gauges, histograms of finished requests, the periodic log line.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "engine/engine_core.h"
#include "engine/engine_request.h"

namespace tandem::engine {
namespace {

constexpr std::size_t kHitRateRequests = 1000;

double ratio(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

void EngineCore::publish() {
  if (std::exchange(changed_, false)) publish_now();
}

void EngineCore::publish_now() {
  snapshot_.num_running.store(scheduler_.num_running());
  snapshot_.num_waiting.store(scheduler_.num_waiting());
  snapshot_.num_leased.store(static_cast<std::int32_t>(leases_.size()));
  snapshot_.num_free_blocks.store(pool_.num_free());
  snapshot_.num_cached_blocks.store(pool_.num_cached());
  publish_metrics();
}

void EngineCore::publish_metrics() {
  metrics_.num_requests_running.set(scheduler_.num_running());
  metrics_.num_requests_waiting.set(scheduler_.num_waiting());
  metrics_.waiting_for_capacity.set(scheduler_.num_waiting() - scheduler_.num_fetching());
  metrics_.waiting_deferred.set(scheduler_.num_fetching());
  const double usage = ratio(pool_.num_used(), pool_.num_blocks());
  metrics_.kv_cache_usage.set(usage);
  metrics_.gpu_cache_usage.set(usage);
  metrics_.waiting_for_remote_kv.set(scheduler_.num_fetching());
  metrics_.leased_blocks.set(num_leased_blocks_);
  metrics_.blocks_used.set(pool_.num_used());
  metrics_.blocks_cached.set(pool_.num_cached());
  metrics_.blocks_free.set(pool_.num_free());

  const PrefixCacheCounts& counts = scheduler_.prefix_cache_counts();
  const auto queries = static_cast<double>(counts.queries - published_prefix_.queries);
  const auto hits = static_cast<double>(counts.hits - published_prefix_.hits);
  metrics_.prefix_queries.add(queries);
  metrics_.gpu_prefix_queries.add(queries);
  metrics_.prefix_hits.add(hits);
  metrics_.gpu_prefix_hits.add(hits);
  published_prefix_ = counts;
}

void EngineCore::note_first_token(const Request& request) {
  const auto num_prompt = static_cast<double>(request.num_prompt);
  const std::int64_t num_cached = scheduler_.num_cached_tokens(request.handle);
  const std::int64_t num_computed = request.num_prompt - num_cached - request.num_received;
  metrics_.prompt_tokens.add(num_prompt);
  metrics_.prompt_cached.add(static_cast<double>(num_cached));
  metrics_.prompt_received.add(static_cast<double>(request.num_received));
  metrics_.prompt_computed.add(static_cast<double>(num_computed));
  metrics_.prompt_not_computed.add(static_cast<double>(num_cached + request.num_received));
  if (env_.transfer != nullptr) {
    metrics_.external_queries.add(num_prompt);
    metrics_.external_hits.add(static_cast<double>(request.num_received));
  }
  metrics_.time_to_first_token.observe(seconds(request.first_token - request.request.arrival));
  const RequestTimes times = request.times();
  metrics_.part_template.observe(times.templating);
  metrics_.part_queue.observe(times.queue);
  if (request.fetch_started != TimePoint{}) {
    metrics_.part_lease_wait.observe(times.lease_wait);
    metrics_.part_transfer.observe(times.transfer);
    metrics_.part_verify.observe(times.verify);
  }
  (request.num_received > 0 ? metrics_.part_first_step : metrics_.part_prefill)
      .observe(request.num_received > 0 ? times.first_step : times.prefill);
  // Tokens that were cached or came from a prefiller are no throughput of this instance.
  log_->prompt_tokens += num_computed;
  if (options_.enable_prefix_caching && !request.wants_prompt_logprobs())
    log_->note_lookup({request.num_prompt, num_cached});
}

void EngineCore::record_finished(const Request& request, FinishReason reason, TimePoint now) {
  const RequestTimes times = request.times();
  const auto num_output = static_cast<double>(request.num_output);
  metrics_.success(reason).add();
  metrics_.e2e.observe(seconds(now - request.request.arrival));
  metrics_.queue.observe(times.queue);
  metrics_.prefill.observe(times.prefill + times.first_step);
  metrics_.decode.observe(times.decode);
  metrics_.inference.observe(seconds(request.last_token - request.scheduled));
  metrics_.request_time_per_output_token.observe(request.num_output > 1 ? times.decode / (num_output - 1.0) : 0.0);
  metrics_.request_prompt_tokens.observe(static_cast<double>(request.num_prompt));
  metrics_.request_generation_tokens.observe(num_output);
  metrics_.request_params_max_tokens.observe(request.request.sampling->max_tokens);
  metrics_.request_prefill_kv_computed.observe(
      static_cast<double>(request.num_prompt - scheduler_.num_cached_tokens(request.handle) - request.num_received));
  ChoiceGroup only(1);
  ChoiceGroup& group = request.request.group ? *request.request.group : only;
  group.longest = std::max(group.longest, request.num_output);
  if (--group.unfinished > 0) return;
  metrics_.request_max_num_generation_tokens.observe(static_cast<double>(group.longest));
  metrics_.request_params_n.observe(group.size);
}

void EngineCore::ThroughputLog::note_lookup(PrefixCacheCounts lookup) {
  lookups.push_back(lookup);
  recent.queries += lookup.queries;
  recent.hits += lookup.hits;
  if (lookups.size() <= kHitRateRequests) return;
  recent.queries -= lookups.front().queries;
  recent.hits -= lookups.front().hits;
  lookups.pop_front();
}

void EngineCore::maybe_log(TimePoint now) {
  const Duration passed = now - log_->last;
  if (options_.log_interval.count() == 0 || passed < options_.log_interval) return;
  const bool active = log_->prompt_tokens > 0 || log_->generation_tokens > 0;
  const std::string line = fmt::format(
      "Engine {:03}: Avg prompt throughput: {:.1f} tokens/s, Avg generation throughput: {:.1f} tokens/s, "
      "Running: {} reqs, Waiting: {} reqs, GPU KV cache usage: {:.1f}%, Prefix cache hit rate: {:.1f}%",
      rank_, static_cast<double>(log_->prompt_tokens) / seconds(passed),
      static_cast<double>(log_->generation_tokens) / seconds(passed), scheduler_.num_running(),
      scheduler_.num_waiting(), 100.0 * ratio(pool_.num_used(), pool_.num_blocks()),
      100.0 * ratio(log_->recent.hits, log_->recent.queries));
  // One more line after the last activity, so that the log ends with zeros and not with the last load.
  if (active || log_->was_active || !requests_.empty())
    log::info("{}", line);
  else
    log::debug("{}", line);
  log_->was_active = active;
  log_->last = now;
  log_->prompt_tokens = 0;
  log_->generation_tokens = 0;
}

}  // namespace tandem::engine
