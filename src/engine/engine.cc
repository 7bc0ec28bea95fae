// SPDX-License-Identifier: Apache-2.0
// The engine's thread and its public face: checks requests on the caller's thread, posts them to the engine thread, and
// runs EngineCore there until it is stopped.
#include "engine/engine.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/log.h"
#include "engine/command_queue.h"
#include "engine/engine_core.h"

namespace tandem::engine {
namespace {

using namespace std::chrono_literals;

/// The engine thread looks around at least this often (log line, stalled steps).
constexpr Duration kIdleWait = 1s;
constexpr Duration kAnswerWait = 10s;

// Looked through at every token, by the threads that all requests share: a client may not make that slow for others.
constexpr std::size_t kMaxStopStrings = 1024;
constexpr std::size_t kMaxStopBytes = std::size_t{64} << 10;

Status too_long_lists(const worker::SamplingParams& params, std::int32_t vocab_size) {
  std::size_t stop_bytes = 0;
  for (const std::string& stop : params.stop) stop_bytes += stop.size();
  if (params.stop.size() > kMaxStopStrings || stop_bytes > kMaxStopBytes) {
    return {Code::kInvalidArgument, fmt::format("stop has {} strings of {} bytes together, at most {} strings of {} "
                                                "bytes are allowed",
                                                params.stop.size(), stop_bytes, kMaxStopStrings, kMaxStopBytes)};
  }
  const std::pair<std::string_view, std::size_t> lists[] = {{"stop_token_ids", params.stop_token_ids.size()},
                                                            {"logit_bias", params.logit_bias.size()},
                                                            {"allowed_token_ids", params.allowed_token_ids.size()}};
  for (const auto& [what, size] : lists) {
    if (size <= static_cast<std::size_t>(vocab_size)) continue;
    return {Code::kInvalidArgument,
            fmt::format("{} has {} entries, more than the model's vocabulary of {} ids", what, size, vocab_size)};
  }
  return {};
}

Status not_ok_ids(const GenerationRequest& request, std::int32_t vocab_size) {
  const auto check = [&](std::int32_t id, std::string_view what) -> Status {
    if (id >= 0 && id < vocab_size) return {};
    return {Code::kInvalidArgument, fmt::format("{} contains token id {}, but the model's vocabulary has ids 0 to {}",
                                                what, id, vocab_size - 1)};
  };
  for (const std::int32_t id : request.prompt) {
    if (Status status = check(id, "prompt"); !status.ok()) return status;
  }
  for (const auto& [id, bias] : request.sampling->logit_bias) {
    if (Status status = check(id, "logit_bias"); !status.ok()) return status;
  }
  for (const std::int32_t id : request.sampling->allowed_token_ids) {
    if (Status status = check(id, "allowed_token_ids"); !status.ok()) return status;
  }
  return {};
}

class EngineImpl final : public Engine {
 public:
  EngineImpl(const EngineOptions& options, worker::Worker& worker, std::shared_ptr<const text::Tokenizer> tokenizer,
             transfer::TransferEngine* transfer, obs::Registry& metrics, Announcer* announcer)
      : options_(options),
        transfer_(transfer),
        vocab_size_(worker.vocab_size()),
        layout_(worker.cache().layout()),
        snapshot_(std::make_shared<EngineSnapshot>()),
        queue_(std::make_shared<CommandQueue>(4 * static_cast<std::size_t>(max_live()))),
        core_(options, {worker, std::move(tokenizer), transfer, metrics, clock_, queue_, snapshot_, announcer}) {
    if (transfer_ != nullptr) {
      transfer_->on_lease_end([queue = queue_](transfer::LeaseId lease, transfer::LeaseEnd how) {
        queue->push(LeaseEndedCommand{lease, how});
      });
    }
    thread_ = std::thread([this] { run(); });
  }
  ~EngineImpl() override { stop(); }

  Result<RequestHandle> submit(GenerationRequest request, OutputSink sink) override {
    // Held from here on: the prefiller keeps the blocks while we live, however long the queue is.
    const std::optional<transfer::Handover> held = transfer_ != nullptr ? request.remote_prefill : std::nullopt;
    if (held) transfer_->hold(*held);
    Status refused = admit(request);
    if (refused.ok()) {
      const RequestHandle handle = next_handle_.fetch_add(1);
      if (queue_->push(SubmitCommand{handle, std::move(request), std::move(sink)})) return handle;
      snapshot_->num_live.fetch_sub(1);
      refused = stopping();
    }
    if (held) transfer_->drop(*held);
    return refused;
  }

  void abort(RequestHandle request) override { queue_->push(AbortCommand{request}); }

  void release_lease(transfer::LeaseId lease) override {
    if (!queue_->offer(ReleaseLeaseCommand{lease})) {
      log::warning("lease {:016x} is not released now: the engine's queue is full; it will end by its term", lease.id);
    }
  }

  bool reset_prefix_cache() override {
    auto answer = std::make_shared<std::promise<bool>>();
    std::future<bool> done = answer->get_future();
    if (!queue_->offer(ResetPrefixCacheCommand{std::move(answer)})) return false;
    // A stopped engine drops the command, and with it the promise.
    return done.wait_for(kAnswerWait) == std::future_status::ready && answered(done);
  }

  EngineStats stats() const override {
    return {.num_running = snapshot_->num_running.load(),
            .num_waiting = snapshot_->num_waiting.load(),
            .num_leased = snapshot_->num_leased.load(),
            .num_blocks = layout_.num_blocks,
            .num_free_blocks = snapshot_->num_free_blocks.load(),
            .num_cached_blocks = snapshot_->num_cached_blocks.load()};
  }

  bool healthy() const override {
    if (snapshot_->dead.load() || snapshot_->stopped.load()) return false;
    const TimePoint started{Duration(snapshot_->step_started.load())};
    return started == TimePoint{} || clock_.now() - started < options_.step_timeout;
  }

  const EngineOptions& options() const override { return options_; }

  void stop() override {
    if (!stop_asked_.exchange(true)) queue_->push(StopCommand{});
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::int32_t max_live() const { return std::max(1, options_.max_waiting) + options_.max_num_seqs; }

  static Status stopping() { return {Code::kUnavailable, "the engine is stopping"}; }

  static bool answered(std::future<bool>& done) {
    try {
      return done.get();
    } catch (const std::future_error&) {
      return false;
    }
  }

  /// What makes a request impossible here; counts it as live if it is possible.
  Status admit(const GenerationRequest& request) {
    if (snapshot_->dead.load()) return {Code::kInternal, "the engine is dead, restart it (its log says why)"};
    if (snapshot_->stopped.load() || stop_asked_.load()) return stopping();
    if (Status status = check_request(request); !status.ok()) return status;
    const bool queue_full = snapshot_->num_waiting.load() >= std::max(1, options_.max_waiting);
    if (queue_full || snapshot_->num_live.fetch_add(1) >= max_live()) {
      if (!queue_full) snapshot_->num_live.fetch_sub(1);
      return {Code::kResourceExhausted,
              fmt::format("too many requests are waiting (limit {}); try again later", options_.max_waiting)};
    }
    return {};
  }

  Status check_request(const GenerationRequest& request) const {
    TANDEM_ASSERT(request.sampling != nullptr, "a request has sampling parameters");
    const std::int64_t num_prompt = std::ssize(request.prompt);
    const worker::SamplingParams& params = *request.sampling;
    if (num_prompt == 0) return {Code::kInvalidArgument, "the prompt is empty; it needs at least one token"};
    if (params.max_tokens < 1) {
      return {Code::kInvalidArgument, fmt::format("max_tokens must be at least 1, got {}.", params.max_tokens)};
    }
    if (num_prompt >= options_.max_model_len) {
      return {Code::kInvalidArgument,
              fmt::format("This model's maximum context length is {} tokens. However, you requested {} output tokens "
                          "and your prompt contains {} input tokens, for a total of {} tokens. Please reduce the "
                          "length of the input prompt or the number of requested output tokens.",
                          options_.max_model_len, params.max_tokens, num_prompt, num_prompt + params.max_tokens)};
    }
    const std::int64_t capacity = static_cast<std::int64_t>(layout_.num_blocks) * layout_.block_size;
    if (num_prompt + 1 > capacity) {
      return {Code::kInvalidArgument,
              fmt::format("the prompt has {} tokens, but the KV cache of this instance holds {} tokens ({} blocks of "
                          "{}) and needs one for the output; shorten the prompt or give the instance more KV memory",
                          num_prompt, capacity, layout_.num_blocks, layout_.block_size)};
    }
    if (Status status = too_long_lists(params, vocab_size_); !status.ok()) return status;
    return not_ok_ids(request, vocab_size_);
  }

  void run() {
    TimePoint stop_deadline = TimePoint::max();
    while (true) {
      for (Command& command : queue_->take(clock_.now() + kIdleWait)) core_.handle(std::move(command));
      core_.check_deadlines();
      core_.maybe_start_step();
      core_.publish();
      const TimePoint now = clock_.now();
      core_.maybe_log(now);
      if (!core_.stopping()) continue;
      if (stop_deadline == TimePoint::max()) stop_deadline = now + options_.stop_timeout;
      const bool drained = core_.drained();
      if (!drained && now < stop_deadline) continue;
      if (!drained) log::warning("engine stops although steps, fetches or leases have not ended");
      break;
    }
    snapshot_->stopped.store(true);
    // Requests that came after the stop command still get their last output.
    for (Command& command : queue_->close()) core_.handle(std::move(command));
  }

  const EngineOptions options_;
  transfer::TransferEngine* const transfer_;
  const std::int32_t vocab_size_;
  const kv::Layout layout_;
  const SteadyClock clock_;
  const std::shared_ptr<EngineSnapshot> snapshot_;
  const std::shared_ptr<CommandQueue> queue_;
  std::atomic<RequestHandle> next_handle_{1};
  std::atomic<bool> stop_asked_{false};
  EngineCore core_;  ///< touched only by thread_ once that runs
  std::thread thread_;
};

}  // namespace

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
  }
  return "unknown";
}

std::unique_ptr<Engine> Engine::start(const EngineOptions& options, worker::Worker& worker,
                                      std::shared_ptr<const text::Tokenizer> tokenizer,
                                      transfer::TransferEngine* transfer, obs::Registry& metrics,
                                      Announcer* announcer) {
  return std::make_unique<EngineImpl>(options, worker, std::move(tokenizer), transfer, metrics, announcer);
}

}  // namespace tandem::engine
