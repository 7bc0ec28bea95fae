// SPDX-License-Identifier: Apache-2.0
// Answers generation requests, whole or as a stream. The head of a stream is sent with the first output, so that
// whatever fails before it gets a real status.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>

#include "api/answer.h"
#include "api/aside.h"
#include "api/front.h"
#include "api/generation.h"
#include "api/handlers.h"
#include "api/request.h"
#include "api/request_log.h"
#include "base/log.h"

namespace tandem::api {
namespace {

constexpr std::string_view kTimingHeader = "X-Tandem-Timing";
constexpr std::string_view kDone = "data: [DONE]\n\n";

std::vector<engine::GenerationRequest> engine_requests(const Context& context, const Job& job) {
  std::vector<engine::GenerationRequest> requests;
  const auto arrival = std::chrono::steady_clock::now();
  std::shared_ptr<engine::ChoiceGroup> group;
  for (std::size_t choice = 0; choice < job.num_choices(); ++choice) {
    const std::size_t prompt = job.prompt_of(choice);
    const auto k = static_cast<std::int64_t>(choice % static_cast<std::size_t>(job.n));
    engine::GenerationRequest& request = requests.emplace_back();
    request.id = job.chat ? job.id : fmt::format("{}-{}", job.id, prompt);
    if (job.n > 1) request.id = fmt::format("{}_{}", k, request.id);
    request.prompt = job.prompts[prompt].ids;
    auto sampling = std::make_shared<worker::SamplingParams>(job.sampling);
    sampling->seed = choice_seed(job.sampling_fields, context.config.seed, job.base_id, k);
    // A prefiller's answer is not the client's: the decoder computes the prompt if its log-probabilities are wanted.
    if (job.kv.remote_decode || !job.kv.push_to.empty()) sampling->prompt_logprobs.reset();
    request.sampling = std::move(sampling);
    request.grammar = job.grammar;
    request.grammar_after = job.grammar_after;
    request.priority = job.priority;
    request.rank = job.rank;
    if (job.n > 1 && k == 0) group = std::make_shared<engine::ChoiceGroup>(job.n);
    request.group = group;
    request.cache_salt = job.cache_salt;
    // The choices of a prompt share its KV: one hand-over is enough, and all may fetch from one.
    request.remote_decode = job.kv.remote_decode && k == 0;
    if (!job.kv.remote_prefill.empty()) request.remote_prefill = job.kv.remote_prefill[prompt];
    // A push has one destination: the first choice of a prompt. The others find its KV in the prefix cache.
    if (k == 0 && prompt < job.kv.push_to.size()) request.push_to = job.kv.push_to[prompt];
    if (k == 0 && job.kv.metaserver) {
      const net::HttpUrl& url = *job.kv.metaserver;
      request.metaserver = engine::Metaserver{url.endpoint.host, url.endpoint.port, url.endpoint.tls, url.target,
                                              job.chat ? job.id : fmt::format("{}-{}", job.id, prompt)};
    }
    request.traceparent = job.traceparent;
    request.arrival = arrival;
    request.received = job.received;
  }
  return requests;
}

class Answering : public std::enable_shared_from_this<Answering> {
 public:
  Answering(ContextPtr context, ExchangePtr exchange, Job job)
      : context_(std::move(context)),
        exchange_(std::move(exchange)),
        job_(std::move(job)),
        choices_(job_.num_choices()) {
    format_ = job_.chat ? chat_format(*context_, job_) : completion_format(*context_, job_);
    ++context_->in_flight;
    if (!job_.chat) return;
    const auto make_id = [context = context_] { return "chatcmpl-tool-" + context->random_hex(32); };
    for (Choice& choice : choices_) choice.message.emplace(job_.message, make_id);
  }
  ~Answering() { --context_->in_flight; }
  Answering(const Answering&) = delete;
  Answering& operator=(const Answering&) = delete;

  net::Task<void> run() {
    const auto self = shared_from_this();
    auto generation = Generation::start(context_->engine(), exchange_->executor(), engine_requests(*context_, job_));
    if (!generation) {
      co_await refuse(generation.error());
      co_return;
    }
    generation_ = std::move(*generation);
    std::weak_ptr<Answering> weak = self;
    std::function<void()> gone = [weak] {
      if (const auto answering = weak.lock()) answering->generation_->cancel();
    };
    exchange_->on_client_gone(std::move(gone));
    if (job_.stream)
      co_await stream();
    else
      co_await whole();
    exchange_->on_client_gone({});
  }

 private:
  net::Task<void> refuse(Refusal refusal) {
    net::HttpResponse response = error_response(refusal);
    (void)co_await exchange_->respond(std::move(response));
  }

  net::Task<void> whole() {
    while (true) {
      auto news = co_await generation_->next();
      if (!news) break;
      refuse_cut_answer(news->output, /*begun=*/false);
      if (!news->output.error.ok()) {
        fail(news->output.error);
        co_await refuse(Refusal(news->output.error));
        co_return;
      }
      choices_[news->choice].add(news->output);
    }
    if (generation_->cancelled()) {
      give_up_handovers();
      co_return;
    }
    net::HttpResponse response(200, "application/json", format_->whole(choices_));
    if (job_.timing) response.headers.set(std::string(kTimingHeader), timing_text(slowest(choices_)));
    log_answer(*context_, job_, choices_);
    context_->handed_over.remember(job_.base_id, leases());
    const auto sent = co_await exchange_->respond(std::move(response));
    if (!sent) give_up_handovers();
  }

  net::Task<void> stream() {
    bool begun = false;
    while (true) {
      auto news = co_await generation_->next();
      if (!news) break;
      refuse_cut_answer(news->output, begun);
      if (!news->output.error.ok()) {
        fail(news->output.error);
        if (begun)
          co_await end_with(error_event(Refusal(news->output.error)));
        else
          co_await refuse(Refusal(news->output.error));
        co_return;
      }
      if (!begun) {
        begun = true;
        if (!co_await begin_stream(news->output.times)) co_return;
      }
      Choice& choice = choices_[news->choice];
      const MessageDelta delta = choice.add(news->output);
      const bool says_something = !news->output.tokens.empty() || !news->output.text.empty() || news->output.finish;
      if (!says_something) continue;
      std::string event = format_->chunk(news->choice, choice, news->output, delta);
      if (event.empty()) continue;
      if (!co_await write(std::move(event))) co_return;
    }
    if (generation_->cancelled()) co_return;
    log_answer(*context_, job_, choices_);
    std::string tail = job_.include_usage ? format_->usage_event(total_usage(job_, choices_)) : std::string();
    co_await end_with(std::move(tail));
  }

  /// `times`: of the first output, which is the time to first token.
  net::Task<bool> begin_stream(engine::RequestTimes times) {
    net::Headers headers;
    headers.set("Content-Type", "text/event-stream; charset=utf-8");
    headers.set("Cache-Control", "no-cache");
    if (job_.timing) headers.set(std::string(kTimingHeader), timing_text(times));
    auto begun = co_await exchange_->begin_stream(200, std::move(headers));
    if (!begun) {
      generation_->cancel();
      co_return false;
    }
    for (std::string& event : format_->opening()) {
      const bool written = co_await write(std::move(event));
      if (!written) co_return false;
    }
    co_return true;
  }

  /// One event, one write: proxies take each piece as a whole event.
  net::Task<bool> write(std::string event) {
    auto written = co_await exchange_->write(std::move(event));
    if (written) co_return true;
    generation_->cancel();
    co_return false;
  }

  /// A last event (may be empty), [DONE], and the end of the stream.
  net::Task<void> end_with(std::string event) {
    if (!event.empty() && !co_await write(std::move(event))) co_return;
    std::string done(kDone);
    if (!co_await write(std::move(done))) co_return;
    const auto ended = co_await exchange_->end_stream();
    if (!ended) log::debug("request {}: {}", job_.id, ended.error().message());
  }

  /// An answer that ends because we stop must not look whole where another instance can still be asked: nothing of it
  /// is out, or the client's server is another process and goes on. Else its finish_reason says `abort`.
  void refuse_cut_answer(engine::Output& output, bool begun) const {
    if (output.finish != engine::FinishReason::kAbort) return;
    if (context_->parts.bearer.empty()) {
      if (!begun) output.error = Status(Code::kUnavailable, "the instance is stopping", Scope::kPeer);
      return;
    }
    output.error = Status(Code::kUnavailable,
                          fmt::format("the process with data-parallel rank {} of the instance is stopping",
                                      context_->config.data_parallel.start_rank),
                          Scope::kPeer);
  }

  void fail(const Status& error) {
    log::warning("request {} failed: {}", job_.id, error.to_string());
    generation_->cancel();
    give_up_handovers();
  }

  /// Nobody will read the answer: no decoder will fetch this KV.
  void give_up_handovers() {
    for (const transfer::LeaseId lease : leases()) context_->engine().release_lease(lease);
  }

  std::vector<transfer::LeaseId> leases() const {
    std::vector<transfer::LeaseId> leases;
    for (const Choice& choice : choices_)
      if (choice.handover) leases.push_back(choice.handover->lease);
    return leases;
  }

  ContextPtr context_;
  ExchangePtr exchange_;
  Job job_;
  std::vector<Choice> choices_;
  std::unique_ptr<AnswerFormat> format_;
  std::unique_ptr<Generation> generation_;
};

Outcome<GenerationKind> kind_of_body(const net::HttpRequest& request) {
  TANDEM_ASSIGN(const boost::json::object body, read_json_body(request));
  if (body.contains("messages")) return GenerationKind::kChat;
  if (body.contains("prompt")) return GenerationKind::kCompletion;
  return bad_request(
      "Cannot find suitable handler for request. Expected one of: a chat (with messages), a completion (with prompt)");
}

Outcome<Job> prepare(Context& context, const net::HttpRequest& request, GenerationKind kind) {
  if (kind == GenerationKind::kByShape) {
    TANDEM_ASSIGN(kind, kind_of_body(request));
  }
  return kind == GenerationKind::kChat ? prepare_chat(context, request) : prepare_completion(context, request);
}

using GrammarPtr = std::shared_ptr<const text::Grammar>;

/// Compiles the request's constraint on the helper thread: a large schema takes some time.
net::Task<std::optional<Refusal>> compile_constraint(ContextPtr context, ExchangePtr exchange, Job& job) {
  if (!job.constraint) co_return std::nullopt;
  std::function<Outcome<GrammarPtr>()> work = [raw = context.get(),
                                               constraint = *job.constraint]() -> Outcome<GrammarPtr> {
    if (!raw->grammars)
      return bad_request("structured output needs a tokenizer, and this server has none", constraint.param);
    return compile(*raw->grammars, constraint);
  };
  const auto grammar = co_await run_aside<GrammarPtr>(context, exchange->executor(), std::move(work));
  if (!*grammar) co_return grammar->error();
  job.grammar = **grammar;
  co_return std::nullopt;
}

}  // namespace

net::Task<void> handle_generation(ContextPtr context, ExchangePtr exchange, GenerationKind kind) {
  const auto received = std::chrono::steady_clock::now();
  const net::HttpRequest& request = exchange->request();
  std::shared_ptr<Outcome<Job>> job;
  if (request.body.size() < kLargeBodyBytes) {
    job = std::make_shared<Outcome<Job>>(prepare(*context, request, kind));
  } else {
    std::function<Outcome<Job>()> work = [raw = context.get(), copy = std::make_shared<net::HttpRequest>(request),
                                          kind] { return prepare(*raw, *copy, kind); };
    job = co_await run_aside<Job>(context, exchange->executor(), std::move(work));
  }
  std::optional<Refusal> refusal;
  if (!*job)
    refusal = job->error();
  else
    refusal = co_await compile_constraint(context, exchange, **job);
  if (refusal) {
    log::debug("{} refused: {}", request.path, refusal->message);
    net::HttpResponse response = error_response(*refusal);
    (void)co_await exchange->respond(std::move(response));
    co_return;
  }
  (*job)->received = received;
  log_request(*context, **job);
  if (context->front) {
    auto place = context->front->place(**job, context->engine().rank_loads());
    if (!place) {
      net::HttpResponse response = error_response(place.error());
      (void)co_await exchange->respond(std::move(response));
      co_return;
    }
    if (*place) {
      ++context->in_flight;
      co_await context->front->forward(exchange, std::move(**place), std::move(**job));
      --context->in_flight;
      co_return;
    }
  }
  const auto answering = std::make_shared<Answering>(context, exchange, std::move(**job));
  co_await answering->run();
}

}  // namespace tandem::api
