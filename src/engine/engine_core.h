// SPDX-License-Identifier: Apache-2.0
// What the engine thread does for one data-parallel rank, as a single-threaded object: it turns commands into scheduler
// events, carries out the scheduler's decisions through worker and transfer engine, and tells every request's sink what
// happened. No locks, no waiting; engine_ranks.h has the ranks and joins their steps, engine.cc the loop around it.
//
// Hand-overs (docs/architecture.md, "Leases"). Every hold() is answered by exactly one drop() or one fetch():
//   submit          hold()
//   refused, aborted or failed before its fetch; everything cached here   drop()
//   scheduler orders a fetch                                              fetch(), which ends the hold by itself
//   aborted while fetching   cancel(); the blocks stay allocated until the fetch reports its end
// Layerwise push turns the order round; engine_core_push.cc has its steps.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "engine/command_queue.h"
#include "engine/engine_metrics.h"
#include "engine/finish_rules.h"
#include "engine/output_text.h"
#include "engine/scheduler.h"
#include "kv/block_pool.h"

namespace tandem::engine {

/// What other threads may read of one rank without asking it.
struct RankSnapshot {
  std::atomic<std::int32_t> num_running{0}, num_waiting{0}, num_leased{0};
  std::atomic<std::int32_t> num_free_blocks{0}, num_cached_blocks{0};
  std::atomic<std::int32_t> num_live{0};  ///< submitted, last output not yet sent
};

/// A step plan that is made in the memory of one whose step is over: in steady decoding that allocates nothing.
class PlanInWork {
 public:
  explicit PlanInWork(worker::StepPlan& plan) : plan_(plan) {}
  /// The next sequence's place, as new.
  worker::SequencePlan& next() {
    if (used_ == plan_.sequences.size()) plan_.sequences.emplace_back();
    worker::SequencePlan& place = plan_.sequences[used_++];
    place.clear();
    return place;
  }
  /// Takes away what is left of the former plan.
  void close() { plan_.sequences.resize(used_); }

 private:
  worker::StepPlan& plan_;
  std::size_t used_ = 0;
};

class EngineCore {
 public:
  struct Environment {
    worker::Worker& worker;
    std::shared_ptr<const text::Tokenizer> tokenizer;  ///< may be nullptr
    transfer::TransferEngine* transfer;                ///< may be nullptr
    obs::Registry& registry;
    const Clock& clock;
    std::shared_ptr<CommandQueue> queue;  ///< where callbacks of other threads post to
    Announcer* announcer;                 ///< may be nullptr
  };
  /// `rank` is counted within this process, below options.num_ranks: it says which blocks are ours.
  EngineCore(const EngineOptions& options, std::int32_t rank, const Environment& environment, RankSnapshot& snapshot);
  ~EngineCore();

  /// Commands of requests of this rank and of leases; those of other ranks' leases have no effect.
  template <class CommandType>
  void handle(CommandType command) {
    changed_ = true;
    on(std::move(command));
  }
  void stop();

  /// This rank's share of a step.
  struct Share {
    std::size_t num_samples = 0;                       ///< sequences that get a token
    std::function<void(std::int32_t layer)> on_layer;  ///< may be empty
  };
  /// Plans what this rank has to compute in the step with this number; nothing if there is nothing.
  std::optional<Share> begin_step(std::uint64_t step, PlanInWork& plan);
  /// Tells the masks in the shares begun since the last call; after the step's submission, so that grammars are asked
  /// while it computes.
  void tell_masks();
  /// The step has ended well, with one token for each of our sequences that samples, in the share's order.
  void end_step(std::uint64_t step, std::span<worker::SampledToken> sampled);
  /// Before end_step(): what it tells of a prompt of ours.
  void take_prompt(worker::PromptLogprobs prompt);
  /// The step has failed: its requests do.
  void fail_step(std::uint64_t step, const Status& error);
  /// Nothing will run any more; all requests fail.
  void die(const Status& error);

  /// Ends waits that nobody else ends.
  void check_deadlines();
  /// Brings snapshot and gauges up to date.
  void publish();
  /// vLLM's line with throughput and load, every options.log_interval; at debug level while nothing happens.
  void maybe_log(TimePoint now);
  /// After stop(): nothing of ours is in flight any more.
  bool drained() const;
  std::int32_t num_used_blocks() const { return pool_.num_used(); }
  /// Only while no block is in use.
  void reset_prefix_cache();

 private:
  struct Request;
  struct StepInFlight;
  struct ThroughputLog;

  void on(SubmitCommand command);
  void on(AbortCommand command);
  void on(const ReleaseLeaseCommand& command);
  void on(const LeaseEndedCommand& command);
  void on(FetchEndedCommand command);
  void on(const OfferArrivedCommand& command);
  void on(const AnnouncedCommand& command);
  void on(const OfferAnsweredCommand& command);

  // Steps (engine_core.cc).
  void plan_for(const ScheduledSequence& scheduled, Request& request, worker::SequencePlan& plan);
  Share share_of(const Decision& decision, PlanInWork& plan);
  Status check_result(const StepInFlight& step, std::span<const worker::SampledToken> sampled) const;
  StepInFlight take_step(std::uint64_t step);
  void on_token(Request& request, worker::SampledToken sampled, TimePoint now);

  // Grammars (engine_core_grammar.cc).
  static Status begin_grammar(Request& request);
  std::shared_ptr<const worker::TokenMask> mask_for(Request& request, bool sampled_before);
  void tell_mask_ahead(Request& request) const;
  static void cancel_mask_ahead(Request& request);
  static Status follow_grammar(Request& request, std::int32_t token, std::optional<Finish>& end);

  // Ends (engine_core.cc). Each sends the last output and forgets the request.
  void finish(Request& request, Output output);
  void fail(Request& request, Status error);
  void end_aborted(Request& request, bool by_server);
  void send_last(Request& request, Output output);

  // Hand-overs (engine_core_kv.cc).
  Status check_handover(const Request& request) const;
  void load_failed(Request& request, const Status& error);
  void start_fetch(const FetchOrder& order, TimePoint now);
  void drop_hold(Request& request);
  std::optional<transfer::Handover> open_lease(Request& request, FinishReason reason);
  std::uint64_t hash_of_first(const Request& request, std::int64_t count) const;
  bool kv_comes(const Request& request) const;
  /// The choice of the same prompt to which its KV comes. None if that is to be this one, which is then noted.
  static std::optional<SequenceId> sibling_of(const Request& request, bool remote_prefill);
  void stop_transfers(Request& request);

  // Layerwise push (engine_core_push.cc).
  Status check_delivery(const Request& request) const;
  void begin_push(Request& request, std::int64_t num_cached);
  void extend_push(Request& request);
  std::function<void(std::int32_t)> publisher(const std::vector<ScheduledSequence>& scheduled) const;
  void push_ended(RequestHandle handle, transfer::LeaseEnd how);
  transfer::FetchDone fetch_done(RequestHandle handle) const;
  void start_reception(Request& request, const FetchOrder& order);
  void announce(Request& request, const transfer::Delivery& delivery);
  void give_up_reception(Request& request, Status why);

  // Reports (engine_core_report.cc).
  void note_first_token(const Request& request);
  void record_finished(const Request& request, FinishReason reason, TimePoint now);
  void publish_now();
  void publish_metrics();

  EngineOptions options_;
  Environment env_;
  RankSnapshot& snapshot_;
  std::int32_t rank_;  ///< counted over all processes of the instance
  std::int32_t block_size_;
  std::int32_t num_blocks_;        ///< our share
  std::int64_t max_total_tokens_;  ///< of one sequence: max_model_len, or what the pool can hold
  EngineMetrics metrics_;
  kv::BlockPool pool_;
  Scheduler scheduler_;
  std::unordered_map<RequestHandle, std::unique_ptr<Request>> requests_;
  std::vector<StepInFlight> steps_;  ///< those with a share of ours, oldest first
  std::vector<std::pair<RequestHandle, std::shared_ptr<worker::TokenMask>>> untold_masks_;
  std::int32_t num_fetches_ = 0;  ///< fetch() called, end not yet reported; also of aborted requests

  struct LeaseHasher {
    std::size_t operator()(const transfer::LeaseId& lease) const {
      return static_cast<std::size_t>(lease.id ^ lease.incarnation);
    }
  };
  struct Lease {
    std::vector<kv::BlockId> blocks;  ///< we hold one reference to each for the lease
    RequestHandle pusher = 0;         ///< layerwise push: whose KV it is, while that request may still run
  };
  std::unordered_map<transfer::LeaseId, Lease, LeaseHasher> leases_;
  std::int32_t num_leased_blocks_ = 0;

  Status death_;  ///< not ok: why nothing runs any more
  bool stopping_ = false;
  bool changed_ = true;  ///< since publish()
  PrefixCacheCounts published_prefix_;
  std::unique_ptr<ThroughputLog> log_;
};

}  // namespace tandem::engine
