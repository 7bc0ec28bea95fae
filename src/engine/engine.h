// SPDX-License-Identifier: Apache-2.0
// An instance's brain: requests, scheduler, blocks, connectors' scheduler side, detokenising. One thread owns all
// state; the functions here post to its bounded queue. docs/architecture.md, "The engine thread".
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/status.h"
#include "engine/announcer.h"
#include "engine/rank_choice.h"
#include "obs/metrics.h"
#include "text/grammar.h"
#include "text/tokenizer.h"
#include "transfer/delivery.h"
#include "transfer/handover.h"
#include "transfer/transfer_engine.h"
#include "worker/sampling_params.h"
#include "worker/worker.h"

namespace tandem::engine {

enum class SchedulingPolicy { kFcfs, kPriority };
enum class LoadFailurePolicy { kFail, kRecompute };

struct EngineOptions {
  /// Data-parallel ranks in this process. Each has a scheduler, an equal share of the cache's blocks and its own
  /// requests; the limits below are each rank's. What they have to compute is joined into one step.
  std::int32_t num_ranks = 1;
  std::int32_t first_rank = 0;  ///< number of the first one, counted over all processes of the instance
  std::int64_t max_model_len = 0;
  std::int32_t max_num_seqs = 128;
  std::int32_t max_num_batched_tokens = 512;
  std::int32_t long_prefill_token_threshold = 0;  ///< 0: none
  bool enable_prefix_caching = true;
  SchedulingPolicy policy = SchedulingPolicy::kFcfs;
  LoadFailurePolicy load_failure_policy = LoadFailurePolicy::kFail;
  /// The next step is planned while this one computes, with the tokens that it samples still to be filled in: the same
  /// tokens come out, without the gap between steps. What ends a sequence is then noticed one step late (that step's
  /// token is thrown away), and who arrives waits for a step more.
  bool async_scheduling = false;
  std::int32_t max_waiting = 4096;            ///< over all ranks; over it: resource_exhausted
  std::vector<std::int32_t> eos_token_ids{};  ///< the first is the primary one (stop_reason null)
  /// A step that takes longer makes healthy() false until it ends: alive is who makes progress.
  std::chrono::seconds step_timeout{300};
  /// Layerwise push, D: how long after the metaserver's ok a prefiller may take to say where the KV is. Some
  /// metaservers answer ok although the prefill failed.
  std::chrono::milliseconds offer_grace{5'000};
  /// How long stop() waits for steps, fetches and leases in flight.
  std::chrono::milliseconds stop_timeout{10'000};
  std::chrono::milliseconds log_interval{10'000};  ///< of the line with throughput and load; 0: never
  obs::Labels cache_labels{};  ///< more of vllm:cache_config_info, for what only the command line knows
};

/// The choices of one prompt (n > 1). Some metrics are taken of all together: once, when the last one has finished. And
/// the prompt's KV comes from a prefiller to one of them; the others wait and find it in the prefix cache.
/// Belongs to the engine thread once the first choice is submitted.
struct ChoiceGroup {
  explicit ChoiceGroup(std::int32_t num_choices) : size(num_choices), unfinished(num_choices) {}
  std::int32_t size;
  std::int32_t unfinished;
  std::int64_t longest = 0;                  ///< output tokens of those that have finished
  std::optional<std::uint64_t> kv_comes_to;  ///< the handle of that one
};

/// Layerwise push, D: where to say that the KV of a prompt is wanted.
struct Metaserver {
  std::string host;
  std::uint16_t port = 0;
  bool tls = false;        ///< https
  std::string target;      ///< path and query
  std::string request_id;  ///< by which the metaserver knows the request: "cmpl-...-0", "chatcmpl-..."
};

/// At most one of remote_decode, remote_prefill, push_to and metaserver is set.
struct GenerationRequest {
  std::string id;  ///< for logs, "cmpl-...-0"
  std::vector<std::int32_t> prompt;
  std::shared_ptr<const worker::SamplingParams> sampling;
  std::shared_ptr<const text::Grammar> grammar{};  ///< what the output must match; nullptr: anything
  std::int32_t grammar_after = -1;                 ///< the token behind which it must; -1: from the beginning
  std::int32_t priority = 0;                       ///< lower first
  std::string cache_salt{};
  std::shared_ptr<ChoiceGroup> group{};                ///< nullptr: the only choice of its prompt
  bool remote_decode = false;                          ///< P: keep the KV under a lease and hand it over
  std::optional<transfer::Handover> remote_prefill{};  ///< D: fetch the KV. Several requests (n > 1) may share one.
  std::optional<transfer::Delivery> push_to{};         ///< P: push the KV there, layer by layer, as it is computed
  std::optional<Metaserver> metaserver{};              ///< D: have the KV pushed here
  std::optional<std::int32_t> rank{};  ///< the data-parallel rank, counted as first_rank; nullopt: see rank_choice.h
  std::string traceparent{};           ///< of the HTTP request, passed on to the metaserver
  std::chrono::steady_clock::time_point arrival = std::chrono::steady_clock::now();
  /// When the HTTP request was there; before `arrival` by the time that template and tokenizer took.
  std::chrono::steady_clock::time_point received = arrival;
};

enum class FinishReason { kStop, kLength, kAbort };
std::string_view finish_reason_name(FinishReason reason);  ///< "stop", "length", "abort"

/// What a request went through, in seconds; 0 where it did not happen. All but the last are the time to first token:
/// they add up to it exactly.
struct RequestTimes {
  double templating = 0.0;  ///< chat template and tokenizer: HTTP request received to arrival here
  double queue = 0.0;       ///< waiting for a seat or blocks, before the fetch and between fetch and first step
  double lease_wait = 0.0;  ///< D: until the prefiller granted (pull) or offered (push) its KV
  double transfer = 0.0;    ///< D: moving it; in a push also waiting for layers that were not yet computed
  double verify = 0.0;      ///< D: checking it
  double prefill = 0.0;     ///< first step scheduled to first token, if the prompt was computed here
  double first_step = 0.0;  ///< the same if its KV came from a prefiller: one token
  double decode = 0.0;      ///< first to last token

  double to_first_token() const { return templating + queue + lease_wait + transfer + verify + prefill + first_step; }
};

/// One step's news of one request.
struct Output {
  std::vector<std::int32_t> tokens;                         ///< normally one
  std::string text;                                         ///< newly complete text, held back for stop strings
  std::vector<std::vector<worker::TokenLogprob>> logprobs;  ///< one list a token, if asked for
  /// In the first output, if asked for: one list for each token of the prompt, the first one empty.
  std::vector<std::vector<worker::TokenLogprob>> prompt_logprobs;
  std::optional<FinishReason> finish;  ///< set in the last output
  std::variant<std::monostate, std::int32_t, std::string> stop_reason;
  Status error;                                ///< not ok: the request failed; the last output
  std::optional<transfer::Handover> handover;  ///< P, last output
  std::int32_t num_cached_tokens = 0;          ///< prompt tokens found in the local prefix cache at first scheduling
  RequestTimes times;                          ///< in the first output (but decode) and in the last one
  bool last() const { return finish.has_value() || !error.ok(); }
};
/// Called on the engine thread, in order; the last output has last(). Must not block: post to your own executor.
using OutputSink = std::function<void(Output)>;

/// A multiple of num_ranks, plus the rank's place in this process.
using RequestHandle = std::uint64_t;

/// Sums over the ranks.
struct EngineStats {
  std::int32_t num_running = 0;
  std::int32_t num_waiting = 0;  ///< also those waiting for remote KV
  std::int32_t num_leased = 0;   ///< prompts whose blocks are kept for a decoder
  std::int32_t num_blocks = 0;
  std::int32_t num_free_blocks = 0;
  std::int32_t num_cached_blocks = 0;
};

/// An equal share of the cache's blocks; a remainder that the ranks do not divide stays unused.
std::int32_t blocks_per_rank(const EngineOptions& options, const kv::Layout& layout);

class Engine {
 public:
  /// Everything passed in must outlive the engine. `transfer` may be nullptr (no connector). `tokenizer` may be nullptr
  /// (no text, only ids). Without `announcer` a request's metaserver is ignored and its prompt computed here.
  static std::unique_ptr<Engine> start(const EngineOptions& options, worker::Worker& worker,
                                       std::shared_ptr<const text::Tokenizer> tokenizer,
                                       transfer::TransferEngine* transfer, obs::Registry& metrics,
                                       Announcer* announcer = nullptr);
  virtual ~Engine() = default;

  /// Checks what only the engine knows (length, ids in vocabulary, queue bound), then queues. An error means that the
  /// sink will not be called (and a remote_prefill lease was dropped). Thread-safe.
  virtual Result<RequestHandle> submit(GenerationRequest request, OutputSink sink) = 0;
  /// Keeps a hand-over alive between requests that share it: hold it before the first one is submitted, drop it after
  /// the last, or the first may have fetched and ended it before the second comes. Counted, thread-safe, never block.
  virtual void hold(const transfer::Handover& handover) = 0;
  virtual void drop(const transfer::Handover& handover) = 0;
  /// Ends a request; its sink gets one last output with kAbort unless it was finished already. Thread-safe.
  virtual void abort(RequestHandle request) = 0;
  /// P: gives up a hand-over that no decoder will fetch. Unknown leases are ignored. Thread-safe.
  virtual void release_lease(transfer::LeaseId lease) = 0;
  /// Answers from the engine thread; thread-safe. False, and nothing is reset, if a rank's blocks were in use.
  virtual bool reset_prefix_cache() = 0;
  /// One entry for each rank of this process, with all that was submitted; thread-safe.
  virtual std::vector<RankLoad> rank_loads() const = 0;
  virtual EngineStats stats() const = 0;
  virtual bool healthy() const = 0;
  virtual const EngineOptions& options() const = 0;
  /// Aborts everything and joins the thread.
  virtual void stop() = 0;
};

}  // namespace tandem::engine
