// SPDX-License-Identifier: Apache-2.0
// The engine's series: vLLM's names, help texts and buckets (vllm_api.md 16), and Tandem's own under tandem:.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/engine.h"
#include "kv/layout.h"
#include "obs/metrics.h"

namespace tandem::engine {

/// 1, 2, 5, 10, 20, ... up to `largest`.
std::vector<double> buckets_1_2_5(std::int64_t largest);

struct EngineMetrics {
  /// `rank`: value of the label `engine`, as in vLLM.
  EngineMetrics(obs::Registry& registry, const EngineOptions& options, const kv::Layout& layout, std::int32_t rank);

  // State, set after every round of the engine thread.
  obs::Gauge num_requests_running, num_requests_waiting, waiting_for_capacity, waiting_deferred;
  obs::Gauge kv_cache_usage, gpu_cache_usage;
  obs::Gauge waiting_for_remote_kv, leased_blocks;
  obs::Gauge blocks_free, blocks_cached, blocks_used;

  obs::Counter prefix_queries, prefix_hits, gpu_prefix_queries, gpu_prefix_hits;
  obs::Counter external_queries, external_hits;  ///< of the KV connector, in tokens
  obs::Counter preemptions, prompt_tokens, generation_tokens;
  obs::Counter success_stop, success_length, success_abort, success_error;
  obs::Counter prompt_computed, prompt_cached, prompt_received;  ///< by source
  obs::Counter prompt_not_computed;                              ///< the last two together
  obs::Counter load_failures, load_recomputes;

  obs::Histogram iteration_tokens;
  obs::Histogram time_to_first_token, inter_token_latency, time_per_output_token;
  obs::Histogram request_time_per_output_token;
  obs::Histogram e2e, queue, inference, prefill, decode;
  obs::Histogram request_prompt_tokens, request_generation_tokens, request_max_num_generation_tokens;
  obs::Histogram request_params_max_tokens, request_params_n, request_prefill_kv_computed;
  obs::Histogram fetch_seconds;
  /// The parts of the time to first token; each of those that the request had.
  obs::Histogram part_template, part_queue, part_lease_wait, part_transfer, part_verify, part_prefill, part_first_step;

  obs::Counter& success(FinishReason reason);
};

}  // namespace tandem::engine
