// SPDX-License-Identifier: Apache-2.0
// What EngineCore tells about itself: snapshot, gauges, histograms of finished requests, the periodic log line.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "engine/engine_core.h"
#include "engine/engine_request.h"

namespace tandem::engine {
namespace {

constexpr std::chrono::seconds kLogInterval{10};

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
  metrics_.prompt_tokens.add(num_prompt);
  metrics_.prompt_cached.add(static_cast<double>(num_cached));
  metrics_.prompt_received.add(static_cast<double>(request.num_received));
  metrics_.prompt_computed.add(static_cast<double>(request.num_prompt - num_cached - request.num_received));
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
  log_->prompt_tokens += request.num_prompt;
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
  metrics_.request_max_num_generation_tokens.observe(num_output);
  metrics_.request_params_max_tokens.observe(request.request.sampling->max_tokens);
  metrics_.request_params_n.observe(request.request.num_choices);
}

void EngineCore::maybe_log(TimePoint now) {
  const Duration passed = now - log_->last;
  if (passed < kLogInterval) return;
  const bool active = log_->prompt_tokens > 0 || log_->generation_tokens > 0 || !requests_.empty();
  // One more line after the last activity, so that the log ends with zeros and not with the last load.
  if (active || log_->was_active) {
    const PrefixCacheCounts& counts = scheduler_.prefix_cache_counts();
    log::info(
        "Engine {:03}: Avg prompt throughput: {:.1f} tokens/s, Avg generation throughput: {:.1f} tokens/s, "
        "Running: {} reqs, Waiting: {} reqs, KV cache usage: {:.1f}%, Prefix cache hit rate: {:.1f}%",
        rank_, static_cast<double>(log_->prompt_tokens) / seconds(passed),
        static_cast<double>(log_->generation_tokens) / seconds(passed), scheduler_.num_running(),
        scheduler_.num_waiting(), 100.0 * ratio(pool_.num_used(), pool_.num_blocks()),
        100.0 * ratio(counts.hits, counts.queries));
  }
  log_->was_active = active;
  log_->last = now;
  log_->prompt_tokens = 0;
  log_->generation_tokens = 0;
}

}  // namespace tandem::engine
