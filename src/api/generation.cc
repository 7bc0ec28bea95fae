// SPDX-License-Identifier: Apache-2.0
#include "api/generation.h"

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <deque>

namespace tandem::api {
namespace {

namespace asio = boost::asio;

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
constexpr std::chrono::seconds kHealthInterval{1};
/// Outputs of one choice that wait for a slow client; more are merged into the last one.
constexpr std::size_t kMaxWaiting = 256;

void merge(engine::Output& into, engine::Output from) {
  into.tokens.insert(into.tokens.end(), from.tokens.begin(), from.tokens.end());
  into.text += from.text;
  for (auto& list : from.logprobs) into.logprobs.push_back(std::move(list));
  into.finish = from.finish;
  into.stop_reason = std::move(from.stop_reason);
  into.error = from.error;
  into.handover = std::move(from.handover);
  into.num_cached_tokens = std::max(into.num_cached_tokens, from.num_cached_tokens);
  into.times = from.times;
}

}  // namespace

/// Outputs on their way. All members are used on the executor only.
struct Generation::Inbox {
  Inbox(engine::Engine& owner, asio::any_io_executor executor, std::size_t num_choices)
      : engine(owner), news(executor), waiting(num_choices), unfinished(num_choices) {}

  void deliver(std::size_t choice, engine::Output output) {
    if (cancelled) {
      if (output.handover) engine.release_lease(output.handover->lease);
      return;
    }
    std::deque<engine::Output>& queue = waiting[choice];
    if (queue.size() >= kMaxWaiting) {
      merge(queue.back(), std::move(output));
    } else {
      queue.push_back(std::move(output));
      order.push_back(choice);
    }
    news.cancel();
  }

  engine::Engine& engine;
  asio::steady_timer news;                          ///< cancelled to say that something arrived
  std::vector<std::deque<engine::Output>> waiting;  ///< one queue a choice
  std::deque<std::size_t> order;                    ///< of arrival, one entry a waiting output
  std::size_t unfinished;
  bool cancelled = false;
};

namespace {

/// The hand-overs of several requests, which may share one, held until all of them are submitted.
class HeldHandovers {
 public:
  HeldHandovers(engine::Engine& engine, const std::vector<engine::GenerationRequest>& requests) : engine_(engine) {
    if (requests.size() < 2) return;
    for (const engine::GenerationRequest& request : requests) {
      if (!request.remote_prefill) continue;
      engine_.hold(*request.remote_prefill);
      held_.push_back(*request.remote_prefill);
    }
  }
  ~HeldHandovers() {
    for (const transfer::Handover& handover : held_) engine_.drop(handover);
  }
  HeldHandovers(const HeldHandovers&) = delete;
  HeldHandovers& operator=(const HeldHandovers&) = delete;

 private:
  engine::Engine& engine_;
  std::vector<transfer::Handover> held_;
};

}  // namespace

Outcome<std::unique_ptr<Generation>> Generation::start(engine::Engine& engine, asio::any_io_executor executor,
                                                       std::vector<engine::GenerationRequest> requests) {
  auto inbox = std::make_shared<Inbox>(engine, executor, requests.size());
  std::unique_ptr<Generation> generation(new Generation(inbox));
  const HeldHandovers held(engine, requests);
  for (std::size_t choice = 0; choice < requests.size(); ++choice) {
    // The inbox lives and dies on the executor, with its generation: sinks on the engine's thread only know of it.
    auto sink = [weak = std::weak_ptr<Inbox>(inbox), executor, &engine, choice](engine::Output output) {
      asio::post(executor, [weak, &engine, choice, output = std::move(output)]() mutable {
        if (const auto live = weak.lock())
          live->deliver(choice, std::move(output));
        else if (output.handover)
          engine.release_lease(output.handover->lease);
      });
    };
    auto handle = engine.submit(std::move(requests[choice]), std::move(sink));
    if (!handle) {
      generation->cancel();
      return Refusal(handle.error());
    }
    generation->handles_.push_back(*handle);
  }
  return generation;
}

Generation::~Generation() {
  if (inbox_->unfinished > 0) cancel();
}

void Generation::cancel() {
  if (inbox_->cancelled) return;
  inbox_->cancelled = true;
  for (const engine::RequestHandle handle : handles_) inbox_->engine.abort(handle);
  for (const auto& queue : inbox_->waiting)
    for (const engine::Output& output : queue)
      if (output.handover) inbox_->engine.release_lease(output.handover->lease);
  inbox_->news.cancel();
}

bool Generation::cancelled() const { return inbox_->cancelled; }

net::Task<std::optional<Generation::News>> Generation::next() {
  const auto inbox = inbox_;
  bool was_sick = false;
  while (true) {
    if (inbox->cancelled) co_return std::nullopt;
    if (!inbox->order.empty()) {
      News news;
      news.choice = inbox->order.front();
      inbox->order.pop_front();
      news.output = std::move(inbox->waiting[news.choice].front());
      inbox->waiting[news.choice].pop_front();
      if (news.output.last()) --inbox->unfinished;
      co_return std::optional<News>(std::move(news));
    }
    if (inbox->unfinished == 0) co_return std::nullopt;
    if (was_sick) {
      News news;
      news.output.error = Status(
          Code::kInternal, "EngineCore encountered an issue. See the server's log for the cause.", Scope::kProcess);
      co_return std::optional<News>(std::move(news));
    }
    inbox->news.expires_after(kHealthInterval);
    auto [interrupted] = co_await inbox->news.async_wait(kAwait);
    // A dying engine still sends last outputs: it gets one more interval.
    was_sick = !interrupted && !inbox->engine.healthy();
  }
}

}  // namespace tandem::api
