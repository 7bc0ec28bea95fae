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
#include "obs/metrics.h"
#include "text/tokenizer.h"
#include "transfer/handover.h"
#include "transfer/transfer_engine.h"
#include "worker/sampling_params.h"
#include "worker/worker.h"

namespace tandem::engine {

enum class SchedulingPolicy { kFcfs, kPriority };
enum class LoadFailurePolicy { kFail, kRecompute };

struct EngineOptions {
  std::int64_t max_model_len = 0;
  std::int32_t max_num_seqs = 128;
  std::int32_t max_num_batched_tokens = 512;
  std::int32_t long_prefill_token_threshold = 0;  ///< 0: none
  bool enable_prefix_caching = true;
  SchedulingPolicy policy = SchedulingPolicy::kFcfs;
  LoadFailurePolicy load_failure_policy = LoadFailurePolicy::kFail;
  std::int32_t max_waiting = 4096;            ///< over it: resource_exhausted
  std::vector<std::int32_t> eos_token_ids{};  ///< the first is the primary one (stop_reason null)
  /// A step that takes longer makes healthy() false until it ends: alive is who makes progress.
  std::chrono::seconds step_timeout{300};
  /// How long stop() waits for steps, fetches and leases in flight.
  std::chrono::milliseconds stop_timeout{10'000};
};

struct GenerationRequest {
  std::string id;  ///< for logs, "cmpl-...-0"
  std::vector<std::int32_t> prompt;
  std::shared_ptr<const worker::SamplingParams> sampling;
  std::int32_t priority = 0;  ///< lower first
  std::string cache_salt{};
  std::int32_t num_choices = 1;                        ///< n of the client request that this belongs to; for metrics
  bool remote_decode = false;                          ///< P: keep the KV under a lease and hand it over
  std::optional<transfer::Handover> remote_prefill{};  ///< D: fetch the KV. Several requests (n > 1) may share one.
  std::chrono::steady_clock::time_point arrival = std::chrono::steady_clock::now();
};

enum class FinishReason { kStop, kLength, kAbort };
std::string_view finish_reason_name(FinishReason reason);  ///< "stop", "length", "abort"

/// What a request went through, in seconds; 0 where it did not happen.
struct RequestTimes {
  double queue = 0.0;     ///< arrival to first scheduled (or fetch started)
  double transfer = 0.0;  ///< D: fetch started to verified
  double prefill = 0.0;   ///< scheduled to first token
  double decode = 0.0;    ///< first to last token
};

/// One step's news of one request.
struct Output {
  std::vector<std::int32_t> tokens;                         ///< normally one
  std::string text;                                         ///< newly complete text, held back for stop strings
  std::vector<std::vector<worker::TokenLogprob>> logprobs;  ///< one list a token, if asked for
  std::optional<FinishReason> finish;                       ///< set in the last output
  std::variant<std::monostate, std::int32_t, std::string> stop_reason;
  Status error;                                ///< not ok: the request failed; the last output
  std::optional<transfer::Handover> handover;  ///< P, last output
  std::int32_t num_cached_tokens = 0;          ///< prompt tokens found in the local prefix cache at first scheduling
  RequestTimes times;                          ///< complete in the last output
  bool last() const { return finish.has_value() || !error.ok(); }
};
/// Called on the engine thread, in order; the last output has last(). Must not block: post to your own executor.
using OutputSink = std::function<void(Output)>;

using RequestHandle = std::uint64_t;

struct EngineStats {
  std::int32_t num_running = 0;
  std::int32_t num_waiting = 0;  ///< also those waiting for remote KV
  std::int32_t num_leased = 0;   ///< finished here, blocks kept for a decoder
  std::int32_t num_blocks = 0;
  std::int32_t num_free_blocks = 0;
  std::int32_t num_cached_blocks = 0;
};

class Engine {
 public:
  /// Everything passed in must outlive the engine. `transfer` may be nullptr (no connector). `tokenizer` may be nullptr
  /// (no text, only ids).
  static std::unique_ptr<Engine> start(const EngineOptions& options, worker::Worker& worker,
                                       std::shared_ptr<const text::Tokenizer> tokenizer,
                                       transfer::TransferEngine* transfer, obs::Registry& metrics);
  virtual ~Engine() = default;

  /// Checks what only the engine knows (length, ids in vocabulary, queue bound), then queues. An error means that the
  /// sink will not be called (and a remote_prefill lease was dropped). Thread-safe.
  virtual Result<RequestHandle> submit(GenerationRequest request, OutputSink sink) = 0;
  /// Ends a request; its sink gets one last output with kAbort unless it was finished already. Thread-safe.
  virtual void abort(RequestHandle request) = 0;
  /// P: gives up a hand-over that no decoder will fetch. Unknown leases are ignored. Thread-safe.
  virtual void release_lease(transfer::LeaseId lease) = 0;
  /// Answers from the engine thread; thread-safe. False if blocks were in use.
  virtual bool reset_prefix_cache() = 0;
  virtual EngineStats stats() const = 0;
  virtual bool healthy() const = 0;
  virtual const EngineOptions& options() const = 0;
  /// Aborts everything and joins the thread.
  virtual void stop() = 0;
};

}  // namespace tandem::engine
