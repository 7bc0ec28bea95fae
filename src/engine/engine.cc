// SPDX-License-Identifier: Apache-2.0
// The engine's thread and its public face: checks requests and chooses their ranks on the caller's thread, posts them
// to the engine thread, and runs the ranks there until it is stopped.
#include "engine/engine.h"

#include <pthread.h>

#include <algorithm>
#include <mutex>
#include <thread>
#include <utility>

#include "base/log.h"
#include "engine/command_queue.h"
#include "engine/engine_ranks.h"
#include "engine/rank_choice.h"

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
        rank_tokens_(static_cast<std::int64_t>(blocks_per_rank(options, layout_)) * layout_.block_size),
        snapshot_(std::make_shared<EngineSnapshot>(options.num_ranks)),
        queue_(std::make_shared<CommandQueue>(4 * static_cast<std::size_t>(max_live()))),
        rank_choice_(options.num_ranks, layout_.block_size, blocks_per_rank(options, layout_)),
        ranks_(options, {worker, std::move(tokenizer), transfer, metrics, clock_, queue_, announcer}, snapshot_) {
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
    const Result<std::size_t> rank = admit(request);
    Status refused = rank ? Status() : rank.error();
    if (rank) {
      const RequestHandle handle = next_number_.fetch_add(1) * snapshot_->ranks.size() + *rank;
      if (queue_->push(SubmitCommand{handle, std::move(request), std::move(sink)})) return handle;
      snapshot_->ranks[*rank].num_live.fetch_sub(1);
      refused = stopping();
    }
    if (held) transfer_->drop(*held);
    return refused;
  }

  void hold(const transfer::Handover& handover) override {
    if (transfer_ != nullptr) transfer_->hold(handover);
  }
  void drop(const transfer::Handover& handover) override {
    if (transfer_ != nullptr) transfer_->drop(handover);
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
    const bool reset = done.wait_for(kAnswerWait) == std::future_status::ready && answered(done);
    const std::lock_guard lock(choice_mutex_);
    if (reset) rank_choice_.forget();
    return reset;
  }

  std::vector<RankLoad> rank_loads() const override {
    std::vector<RankLoad> loads;
    for (const RankSnapshot& rank : snapshot_->ranks) {
      const std::int32_t live = rank.num_live.load();
      const std::int32_t waiting = std::clamp(rank.num_waiting.load(), 0, std::max(0, live));
      loads.push_back({.num_running = live - waiting, .num_waiting = waiting});
    }
    return loads;
  }

  EngineStats stats() const override {
    EngineStats sum;
    for (const RankSnapshot& rank : snapshot_->ranks) {
      sum.num_running += rank.num_running.load();
      sum.num_waiting += rank.num_waiting.load();
      sum.num_leased += rank.num_leased.load();
      sum.num_blocks += blocks_per_rank(options_, layout_);
      sum.num_free_blocks += rank.num_free_blocks.load();
      sum.num_cached_blocks += rank.num_cached_blocks.load();
    }
    return sum;
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
  std::int32_t max_live() const {
    return std::max(1, options_.max_waiting) + options_.num_ranks * options_.max_num_seqs;
  }

  static Status stopping() { return {Code::kUnavailable, "the engine is stopping"}; }

  static bool answered(std::future<bool>& done) {
    try {
      return done.get();
    } catch (const std::future_error&) {
      return false;
    }
  }

  /// The place of the rank that takes the request, which is counted as live there; or what makes it impossible.
  Result<std::size_t> admit(const GenerationRequest& request) {
    if (snapshot_->dead.load()) return Status(Code::kInternal, "the engine is dead, restart it (its log says why)");
    if (snapshot_->stopped.load() || stop_asked_.load()) return stopping();
    if (Status status = check_request(request); !status.ok()) return status;
    const std::lock_guard lock(choice_mutex_);
    const std::vector<RankLoad> loads = rank_loads();
    std::int32_t num_live = 0;
    std::int32_t num_waiting = 0;
    for (const RankLoad& load : loads) {
      num_live += load.num_running + load.num_waiting;
      num_waiting += load.num_waiting;
    }
    if (num_waiting >= std::max(1, options_.max_waiting) || num_live >= max_live()) {
      return Status(Code::kResourceExhausted,
                    fmt::format("too many requests are waiting (limit {}); try again later", options_.max_waiting));
    }
    const auto rank = static_cast<std::size_t>(choose_rank(request, loads));
    snapshot_->ranks[rank].num_live.fetch_add(1);
    return rank;
  }

  /// Under choice_mutex_.
  std::int32_t choose_rank(const GenerationRequest& request, std::span<const RankLoad> loads) {
    if (options_.num_ranks == 1) return 0;
    if (!request.rank) return rank_choice_.choose(loads, request.prompt, request.cache_salt);
    const std::int32_t rank = *request.rank - options_.first_rank;
    rank_choice_.placed(rank, request.prompt, request.cache_salt);
    return rank;
  }

  Status check_request(const GenerationRequest& request) const {
    TANDEM_ASSERT(request.sampling != nullptr, "a request has sampling parameters");
    const std::int64_t num_prompt = std::ssize(request.prompt);
    const worker::SamplingParams& params = *request.sampling;
    const std::int32_t last_rank = options_.first_rank + options_.num_ranks - 1;
    if (request.rank && (*request.rank < options_.first_rank || *request.rank > last_rank)) {
      return {Code::kInvalidArgument, fmt::format("data parallel rank {} is not in this process, expected {} to {}",
                                                  *request.rank, options_.first_rank, last_rank)};
    }
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
    if (num_prompt + 1 > rank_tokens_) {
      return {Code::kInvalidArgument,
              fmt::format("the prompt has {} tokens, but the KV cache of this instance holds {} tokens ({} blocks of "
                          "{}) and needs one for the output; shorten the prompt or give the instance more KV memory",
                          num_prompt, rank_tokens_, blocks_per_rank(options_, layout_), layout_.block_size)};
    }
    if (Status status = too_long_lists(params, vocab_size_); !status.ok()) return status;
    return not_ok_ids(request, vocab_size_);
  }

  void run() {
    pthread_setname_np(pthread_self(), "tandem-engine");
    TimePoint stop_deadline = TimePoint::max();
    while (true) {
      for (Command& command : queue_->take(clock_.now() + kIdleWait)) ranks_.handle(std::move(command));
      ranks_.check_deadlines();
      ranks_.start_steps();
      ranks_.publish();
      const TimePoint now = clock_.now();
      ranks_.maybe_log(now);
      if (!ranks_.stopping()) continue;
      if (stop_deadline == TimePoint::max()) stop_deadline = now + options_.stop_timeout;
      const bool drained = ranks_.drained();
      if (!drained && now < stop_deadline) continue;
      if (!drained) log::warning("engine stops although steps, fetches or leases have not ended");
      break;
    }
    snapshot_->stopped.store(true);
    // Requests that came after the stop command still get their last output.
    for (Command& command : queue_->close()) ranks_.handle(std::move(command));
  }

  const EngineOptions options_;
  transfer::TransferEngine* const transfer_;
  const std::int32_t vocab_size_;
  const kv::Layout layout_;
  const std::int64_t rank_tokens_;  ///< whose KV a rank can hold
  const SteadyClock clock_;
  const std::shared_ptr<EngineSnapshot> snapshot_;
  const std::shared_ptr<CommandQueue> queue_;
  std::atomic<RequestHandle> next_number_{1};
  std::atomic<bool> stop_asked_{false};
  std::mutex choice_mutex_;
  RankChoice rank_choice_;  // guarded by choice_mutex_
  EngineRanks ranks_;       ///< touched only by thread_ once that runs
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

std::int32_t blocks_per_rank(const EngineOptions& options, const kv::Layout& layout) {
  TANDEM_ASSERT(options.num_ranks > 0 && options.num_ranks <= layout.num_blocks, "every rank has a block");
  return layout.num_blocks / options.num_ranks;
}

std::unique_ptr<Engine> Engine::start(const EngineOptions& options, worker::Worker& worker,
                                      std::shared_ptr<const text::Tokenizer> tokenizer,
                                      transfer::TransferEngine* transfer, obs::Registry& metrics,
                                      Announcer* announcer) {
  return std::make_unique<EngineImpl>(options, worker, std::move(tokenizer), transfer, metrics, announcer);
}

}  // namespace tandem::engine
