// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_metrics.h"

#include <fmt/format.h>

namespace tandem::engine {
namespace {

const std::vector<double> kFirstTokenBuckets = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,  0.25,  0.5,   0.75,
                                                1.0,   2.5,   5.0,  7.5,  10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0};
const std::vector<double> kInterTokenBuckets = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2,  0.3,  0.4, 0.5,
                                                0.75, 1.0,   2.5,  5.0,   7.5, 10.0, 20.0, 40.0, 80.0};
const std::vector<double> kRequestBuckets = {0.3,  0.5,  0.8,  1.0,  1.5,   2.0,   2.5,   5.0,   10.0,   15.0,  20.0,
                                             30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0};
const std::vector<double> kIterationBuckets = {1.0,   8.0,    16.0,   32.0,   64.0,   128.0,  256.0,
                                               512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0};
const std::vector<double> kFetchBuckets = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                           0.5,   1.0,    2.5,   5.0,  10.0,  30.0, 60.0};

constexpr std::string_view kQueriesHelp = "Prefix cache queries, in terms of number of queried tokens.";
constexpr std::string_view kHitsHelp = "Prefix cache hits, in terms of number of cached tokens.";
constexpr std::string_view kSuccessHelp = "Count of successfully processed requests.";
constexpr std::string_view kUsageHelp = "KV-cache usage. 1 means 100 percent usage.";
constexpr std::string_view kBlocksHelp = "Blocks of the KV cache by state: used, cached (idle, reusable) or free.";
constexpr std::string_view kSourceHelp = "Number of prompt tokens by source.";
constexpr std::string_view kWaitingHelp =
    "Number of requests waiting to be processed by reason. 'capacity' means waiting for capacity, 'deferred' for KV of "
    "another instance.";
constexpr std::string_view kSleepHelp =
    "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; weights_offloaded = 1 "
    "means sleep level 1; discard_all = 1 means sleep level 2.";

/// The labels that routers read, with Python's spellings, as vLLM prints its cache configuration.
obs::Labels cache_config_labels(const EngineOptions& options, const kv::Layout& layout, const std::string& rank) {
  obs::Labels labels = options.cache_labels;
  labels.merge(obs::Labels{{"block_size", std::to_string(layout.block_size)},
                           {"cache_dtype", std::string(kv::element_name(layout.element))},
                           {"enable_prefix_caching", options.enable_prefix_caching ? "True" : "False"},
                           {"engine", rank},
                           {"num_cpu_blocks", "None"},
                           {"num_gpu_blocks", std::to_string(blocks_per_rank(options, layout))},
                           {"prefix_caching_hash_algo", "builtin"},
                           {"sliding_window", "None"},
                           {"swap_space", "0"}});
  return labels;
}

}  // namespace

std::vector<double> buckets_1_2_5(std::int64_t largest) {
  std::vector<double> buckets;
  for (std::int64_t decade = 1; decade <= largest; decade *= 10) {
    for (const std::int64_t step : {1, 2, 5}) {
      if (step * decade <= largest) buckets.push_back(static_cast<double>(step * decade));
    }
    if (decade > largest / 10) break;
  }
  return buckets;
}

EngineMetrics::EngineMetrics(obs::Registry& registry, const EngineOptions& options, const kv::Layout& layout,
                             std::int32_t rank) {
  const std::string engine = std::to_string(rank);
  const auto gauge = [&](std::string_view name, std::string_view help, obs::Labels labels = {}) {
    labels.emplace("engine", engine);
    return registry.gauge(name, help, std::move(labels));
  };
  const auto counter = [&](std::string_view name, std::string_view help, obs::Labels labels = {}) {
    labels.emplace("engine", engine);
    return registry.counter(name, help, std::move(labels));
  };
  const auto histogram = [&](std::string_view name, std::string_view help, const std::vector<double>& buckets) {
    return registry.histogram(name, help, buckets, {{"engine", engine}});
  };

  num_requests_running = gauge("vllm:num_requests_running", "Number of requests in model execution batches.");
  num_requests_waiting = gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.");
  waiting_for_capacity = gauge("vllm:num_requests_waiting_by_reason", kWaitingHelp, {{"reason", "capacity"}});
  waiting_deferred = gauge("vllm:num_requests_waiting_by_reason", kWaitingHelp, {{"reason", "deferred"}});
  gauge("vllm:engine_sleep_state", kSleepHelp, {{"sleep_state", "awake"}}).set(1.0);
  for (const char* state : {"weights_offloaded", "discard_all"})
    gauge("vllm:engine_sleep_state", kSleepHelp, {{"sleep_state", state}});
  kv_cache_usage = gauge("vllm:kv_cache_usage_perc", kUsageHelp);
  gpu_cache_usage = gauge("vllm:gpu_cache_usage_perc", "GPU KV-cache usage. 1 means 100 percent usage.");
  prefix_queries = counter("vllm:prefix_cache_queries_total", kQueriesHelp);
  prefix_hits = counter("vllm:prefix_cache_hits_total", kHitsHelp);
  gpu_prefix_queries = counter("vllm:gpu_prefix_cache_queries_total", kQueriesHelp);
  gpu_prefix_hits = counter("vllm:gpu_prefix_cache_hits_total", kHitsHelp);
  external_queries = counter("vllm:external_prefix_cache_queries_total",
                             "External prefix cache queries from KV connector cross-instance cache sharing, in terms "
                             "of number of queried tokens.");
  external_hits = counter("vllm:external_prefix_cache_hits_total",
                          "External prefix cache hits from KV connector cross-instance cache sharing, in terms of "
                          "number of cached tokens.");
  preemptions = counter("vllm:num_preemptions_total", "Cumulative number of preemption from the engine.");
  prompt_tokens = counter("vllm:prompt_tokens_total", "Number of prefill tokens processed.");
  generation_tokens = counter("vllm:generation_tokens_total", "Number of generation tokens processed.");
  success_stop = counter("vllm:request_success_total", kSuccessHelp, {{"finished_reason", "stop"}});
  success_length = counter("vllm:request_success_total", kSuccessHelp, {{"finished_reason", "length"}});
  success_abort = counter("vllm:request_success_total", kSuccessHelp, {{"finished_reason", "abort"}});
  success_error = counter("vllm:request_success_total", kSuccessHelp, {{"finished_reason", "error"}});
  prompt_computed = counter("vllm:prompt_tokens_by_source_total", kSourceHelp, {{"source", "local_compute"}});
  prompt_cached = counter("vllm:prompt_tokens_by_source_total", kSourceHelp, {{"source", "local_cache_hit"}});
  prompt_received = counter("vllm:prompt_tokens_by_source_total", kSourceHelp, {{"source", "external_kv_transfer"}});
  prompt_not_computed =
      counter("vllm:prompt_tokens_cached_total", "Number of cached prompt tokens (local + external).");

  iteration_tokens =
      histogram("vllm:iteration_tokens_total", "Histogram of number of tokens per engine_step.", kIterationBuckets);
  time_to_first_token =
      histogram("vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.", kFirstTokenBuckets);
  inter_token_latency =
      histogram("vllm:inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", kInterTokenBuckets);
  time_per_output_token = histogram("vllm:time_per_output_token_seconds",
                                    "Histogram of time per output token in seconds.DEPRECATED: Use "
                                    "vllm:inter_token_latency_seconds instead.",
                                    kInterTokenBuckets);
  request_time_per_output_token =
      histogram("vllm:request_time_per_output_token_seconds", "Histogram of time_per_output_token_seconds per request.",
                kInterTokenBuckets);
  e2e = histogram("vllm:e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", kRequestBuckets);
  queue = histogram("vllm:request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.",
                    kRequestBuckets);
  inference = histogram("vllm:request_inference_time_seconds", "Histogram of time spent in RUNNING phase for request.",
                        kRequestBuckets);
  prefill = histogram("vllm:request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request.",
                      kRequestBuckets);
  decode = histogram("vllm:request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.",
                     kRequestBuckets);

  const std::vector<double> lengths = buckets_1_2_5(options.max_model_len);
  request_prompt_tokens = histogram("vllm:request_prompt_tokens", "Number of prefill tokens processed.", lengths);
  request_generation_tokens =
      histogram("vllm:request_generation_tokens", "Number of generation tokens processed.", lengths);
  request_max_num_generation_tokens = histogram("vllm:request_max_num_generation_tokens",
                                                "Histogram of maximum number of requested generation tokens.", lengths);
  request_params_max_tokens =
      histogram("vllm:request_params_max_tokens", "Histogram of the max_tokens request parameter.", lengths);
  request_params_n =
      histogram("vllm:request_params_n", "Histogram of the n request parameter.", {1.0, 2.0, 5.0, 10.0, 20.0});
  request_prefill_kv_computed =
      histogram("vllm:request_prefill_kv_computed_tokens",
                "Histogram of new KV tokens computed during prefill (excluding cached tokens).", lengths);

  obs::Gauge config = registry.gauge("vllm:cache_config_info", "Information of the LLMEngine CacheConfig",
                                     cache_config_labels(options, layout, engine), /*with_common=*/false);
  config.set(1.0);

  waiting_for_remote_kv =
      gauge("tandem:requests_waiting_for_remote_kv", "Requests whose KV is being fetched from a prefiller.");
  leased_blocks = gauge("tandem:leased_blocks", "Blocks that are kept for a decoder.");
  blocks_used = gauge("tandem:kv_blocks", kBlocksHelp, {{"state", "used"}});
  blocks_cached = gauge("tandem:kv_blocks", kBlocksHelp, {{"state", "cached"}});
  blocks_free = gauge("tandem:kv_blocks", kBlocksHelp, {{"state", "free"}});
  load_failures = counter("tandem:kv_load_failures_total", "Hand-overs whose KV could not be used or fetched.");
  load_recomputes = counter("tandem:kv_load_recomputes_total",
                            "Requests prefilled here because their KV could not be used or fetched.");
  const auto part = [&](std::string_view name, std::string_view help) {
    return histogram(fmt::format("tandem:request_{}_seconds", name), help, kFirstTokenBuckets);
  };
  part_template = part("template", "Time to first token, part: chat template and tokenizer.");
  part_queue = part("queue", "Time to first token, part: waiting for a seat or for KV blocks.");
  part_lease_wait = part("lease_wait", "Time to first token, part: until a prefiller granted or offered its KV.");
  part_transfer = part("transfer", "Time to first token, part: KV on its way.");
  part_verify = part("verify", "Time to first token, part: checking received KV.");
  part_prefill = part("prefill", "Time to first token, part: computing the prompt here.");
  part_first_step = part("first_step", "Time to first token, part: the step after the KV had been received.");
  fetch_seconds = histogram("tandem:kv_fetch_seconds",
                            "Time from the start of a KV fetch until its blocks are verified.", kFetchBuckets);
}

obs::Counter& EngineMetrics::success(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return success_stop;
    case FinishReason::kLength:
      return success_length;
    case FinishReason::kAbort:
      break;
  }
  return success_abort;
}

}  // namespace tandem::engine
