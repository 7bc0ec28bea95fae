// SPDX-License-Identifier: Apache-2.0
#include "proxy/completion.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/json.hpp>
#include <random>

#include "base/json.h"
#include "base/log.h"
#include "net/relay.h"
#include "proxy/forwarding.h"
#include "proxy/layerwise_flow.h"
#include "proxy/pull_flow.h"

namespace tandem::proxy {
namespace {

constexpr auto kAwait = boost::asio::as_tuple(boost::asio::use_awaitable);
constexpr std::size_t kMostProblemsNamed = 8;
constexpr std::string_view kClientGone = "client_gone";

TimePoint now() { return std::chrono::steady_clock::now(); }

/// What the body of an error says: the message of OpenAI's object, else the body itself; not all of it if it is long.
std::string said_in(std::string_view body) {
  constexpr std::size_t kMost = 200;
  std::string text(body);
  if (const auto value = parse_json(body); value && value->is_object()) {
    const auto* error = value->as_object().if_contains("error");
    const auto* message = error && error->is_object() ? error->as_object().if_contains("message") : nullptr;
    if (message && message->is_string()) text = message->as_string();
  }
  return text.substr(0, kMost);
}

}  // namespace

net::ClientTimeouts prefill_timeouts(const config::ProxyConfig& config) {
  net::ClientTimeouts timeouts;
  timeouts.connect = config.connect_timeout;
  timeouts.head = timeouts.idle = timeouts.total = config.prefill_timeout;
  return timeouts;
}

net::ClientTimeouts decode_timeouts(const config::ProxyConfig& config, bool streamed) {
  net::ClientTimeouts timeouts;
  timeouts.connect = config.connect_timeout;
  timeouts.head = streamed ? config.first_byte_timeout : config.whole_answer_timeout;
  timeouts.idle = config.stream_idle_timeout;
  return timeouts;
}

Completion::Completion(std::shared_ptr<ProxyContext> context, std::shared_ptr<net::Exchange> exchange)
    : context_(std::move(context)), exchange_(std::move(exchange)), stream_(exchange_), arrived_(now()) {
  resumes_left_ = context_->config.max_stream_resumes;
  seed_ = std::random_device{}() >> 1U;
  context_->metrics.inflight.set(++context_->inflight);
}

Completion::~Completion() { context_->metrics.inflight.set(--context_->inflight); }

bool Completion::chat() const {
  return client_request().path == "/v1/chat/completions" ||
         (client_request().path == "/invocations" && body_.has_messages());
}

net::Task<void> Completion::run() {
  const auto self = shared_from_this();
  const auto& request = client_request();
  auto body = ClientBody::parse(request.body);
  if (const auto reason = no_room(); !reason.empty()) {
    auto busy = error_response(503, reason);
    (void)co_await exchange_->respond(std::move(busy));
  } else if (!body || body->fault()) {
    outcome_ = "4xx";
    auto bad = body ? error_response(400, body->fault()->message, body->fault()->param)
                    : error_response(400, body.error().message());
    (void)co_await exchange_->respond(std::move(bad));
  } else {
    body_ = std::move(*body);
    exchange_->on_client_gone([cancel = cancel_]() mutable { cancel.cancel(); });
    end_all_ = context_->end_all.on_cancel([cancel = cancel_]() mutable { cancel.cancel(); });
    const auto given = request.headers.find("x-request-id");
    base_id_ = given && !given->empty() ? std::string(*given) : body_.request_id();
    if (base_id_.empty()) base_id_ = make_uuid();
    trace_ =
        TraceContext::continue_from(request.headers.find("traceparent").value_or("")).value_or(TraceContext::start());
    timing_wanted_ = request.headers.find("x-tandem-timing") == "1";
    co_await pair();
    exchange_->on_client_gone(nullptr);
    if (outcome_ == kClientGone && !exchange_->client_gone()) co_await say_stopping();
  }
  if (exchange_->client_gone() && outcome_ == "5xx") outcome_ = kClientGone;
  context_->metrics.count_request(request.path, outcome_);
  log::debug("request {} {} from {}, trace {}: {} after {:.3f} s, {} attempts", base_id_, request.path, request.peer,
             trace_.trace_id, outcome_, seconds(now() - arrived_), attempts_);
}

std::string Completion::no_room() const {
  if (context_->stopping) return "the proxy is stopping";
  const int most = context_->config.max_inflight;
  return context_->inflight <= most ? "" : fmt::format("the proxy handles {} requests already; try again later", most);
}

net::Task<void> Completion::pair() {
  co_await context_->watch.ready();
  const int rounds = std::max(context_->config.max_retries, 1);
  int resumes = resumes_left_;
  for (int number = 0; number < rounds; ++number) {
    if (number > 0) co_await pause(number - 1, cancel_);
    if (cancel_.cancelled()) break;
    const Next next = co_await round(number > 0 || stream_.begun());
    if (next == Next::kEnd) co_return;
    if (next == Next::kGiveUp) break;
    if (std::exchange(resumes, resumes_left_) != resumes_left_) number = -1;  // begins anew, and at once
  }
  co_await give_up();
}

/// The decoder that would be asked decides which way this round goes.
net::Task<Next> Completion::round(bool again) {
  const auto decoder = context_->board.best(Role::kDecode, std::nullopt, tried_decoders_, now());
  if (!decoder) {
    const std::string misfits = context_->board.misfits(Role::kDecode);
    if (!again) note_problem(misfits.empty() ? "no decoder is configured" : misfits);
    co_return Next::kGiveUp;
  }
  if (again) context_->metrics.decode_retries.add();
  // One that was not there when it was last looked at may have come since.
  if (!decoder->connector && context_->config.connector == config::ProxyConnector::kAuto)
    co_await context_->watch.look(decoder);
  const auto self = shared_from_this();
  Next next = Next::kAgain;
  if (decoder->connector.value_or(Connector::kPull) == Connector::kLayerwise) {
    LayerwiseFlow flow(self, tried_decoders_);
    next = co_await flow.round();
  } else {
    PullFlow flow(self, tried_decoders_);
    next = co_await flow.round();
  }
  co_return next;
}

void Completion::new_attempt() {
  request_id_ = attempts_ == 0 ? base_id_ : fmt::format("{}-r{}", base_id_, attempts_);
  ++attempts_;
}

std::shared_ptr<Instance> Completion::choose(Role role, Connector connector, Tried& tried) {
  auto instance = context_->board.choose(role, connector, tried, now());
  if (!instance && problems_.empty()) {
    const std::string misfits = context_->board.misfits(role);
    note_problem(fmt::format("no {} is configured that works with the {} connector{}{}",
                             role == Role::kPrefill ? "prefiller" : "decoder", connector_name(connector),
                             misfits.empty() ? "" : ": ", misfits));
  }
  return instance;
}

net::ClientRequest Completion::backend_request(std::string body, std::string_view request_id) const {
  const auto& client = client_request();
  net::ClientRequest request("POST", client.query.empty() ? client.path : client.path + "?" + client.query);
  request.headers = backend_headers(client.headers, request_id, context_->config);
  if (client.headers.find("traceparent").value_or("").find(trace_.trace_id) == std::string_view::npos) {
    request.headers.remove("tracestate");  // belongs to a trace that is not continued
  }
  request.headers.set("traceparent", trace_.traceparent());
  request.body = std::move(body);
  return request;
}

std::string Completion::decode_body(const Instance& decoder, std::string_view kv_params) const {
  std::optional<std::uint32_t> seed;
  if (decoder.is_tandem && context_->config.max_stream_resumes > 0) seed = seed_;
  return body_.for_decode(kv_params, seed);
}

net::Task<Next> Completion::decode(DecodeStage stage) {
  const auto decoder = stage.decoder;
  const LoadShare share = InstanceBoard::take_decode(decoder, body_.num_bytes());
  const auto asked = now();
  net::ClientRequest request = backend_request(std::move(stage.body), request_id_);
  const auto timeouts = decode_timeouts(context_->config, body_.stream());
  auto answer = co_await decoder->client->send(std::move(request), timeouts, stage.cancel);
  if (cancel_.cancelled()) co_return client_left("before the first byte");
  if (stage.cancel.cancelled()) co_return Next::kGiveUp;
  if (!answer) {
    const Next next = failed(*decoder, answer.error(), tried_decoders_);
    // What took a whole answer's time is not computed anew elsewhere, unless it was not computed here.
    const bool too_long = !body_.stream() && answer.error().code() == Code::kDeadlineExceeded && !decoder->silent;
    co_return too_long ? Next::kGiveUp : next;
  }
  const int status = (*answer)->status();
  if (status >= 500 && stage.excused && stage.excused()) {
    (void)co_await (*answer)->read_all(kMostErrorBody);  // so that the connection can be used again
    co_return Next::kGiveUp;
  }
  if (status < 200 || status >= 300) {
    const Next next = co_await refused(decoder, std::move(*answer), tried_decoders_);
    co_return next;
  }
  auto first = co_await (*answer)->read_piece();
  if (cancel_.cancelled()) co_return client_left("before the first byte");
  if (stage.cancel.cancelled()) co_return Next::kGiveUp;
  if (!first) co_return failed(*decoder, first.error(), tried_decoders_);
  if (first->empty()) {
    const Status empty(Code::kUnavailable, fmt::format("{}: status {} with an empty body", decoder->name, status),
                       Scope::kTransfer);
    co_return failed(*decoder, empty, tried_decoders_);
  }
  const Next next = co_await pass_on(stage, std::move(*answer), std::move(*first), asked);
  co_return next;
}

net::Task<Next> Completion::pass_on(const DecodeStage& stage, std::unique_ptr<net::ClientResponse> answer,
                                    std::string first_piece, TimePoint asked) {
  const auto first_byte = now();
  stage.begun();
  InstanceBoard::succeeded(*stage.decoder);
  if (!stream_.begun()) context_->metrics.first_byte_seconds.observe(seconds(first_byte - arrived_));
  outcome_ = status_class(answer->status());
  net::Headers extra;
  if (timing_wanted_) {
    const StageTime prefill = co_await stage.prefill_time();
    StageTime decode;
    decode.seconds = seconds(first_byte - asked);
    decode.header = std::string(answer->headers().find("x-tandem-timing").value_or(""));
    extra.add("x-tandem-timing", combine_timing(seconds(first_byte - arrived_), prefill, decode, stage.overlapped));
  }
  net::RelayOutcome outcome;
  const bool events = answer->headers().find("content-type").value_or("").starts_with("text/event-stream");
  if (events || stream_.begun()) {
    net::Headers headers = net::answer_headers(answer->headers());
    for (const auto& [name, value] : extra.fields()) headers.set(name, value);
    std::function<bool()> may_resume = [this, &stage] { return can_resume(*stage.decoder); };
    outcome = co_await stream_.relay(std::move(answer), std::move(first_piece), std::move(headers), may_resume);
  } else {
    whole_begun_ = true;
    net::ErrorEvent none;  // only event streams have them
    outcome = co_await net::relay_answer(exchange_, std::move(answer), std::move(first_piece), std::move(extra), none);
  }
  if (outcome.end == net::RelayOutcome::End::kClientGone) co_return client_left("in mid-stream");
  if (outcome.end == net::RelayOutcome::End::kComplete) co_return Next::kEnd;
  if (cancel_.cancelled()) co_return client_left("in mid-stream");
  InstanceBoard::failed(*stage.decoder, now());
  note_problem(fmt::format("decoder {}: its answer broke off after {} bytes: {}", stage.decoder->name,
                           outcome.num_bytes, outcome.error.message()));
  if (events && can_resume(*stage.decoder)) {
    --resumes_left_;
    context_->metrics.stream_resumes.add();
    tried_decoders_.spend(*stage.decoder);
    co_return Next::kAgain;
  }
  outcome_ = "broken";
  if (stream_.begun()) co_await stream_.end_with_error(502, outcome.error.message());
  co_return Next::kEnd;
}

bool Completion::can_resume(const Instance& broken) const {
  if (resumes_left_ == 0 || cancel_.cancelled() || !stream_.can_resume()) return false;
  Tried tried = tried_decoders_;
  tried.spend(broken);
  return context_->board.best(Role::kDecode, std::nullopt, tried, now()) != nullptr;
}

net::Task<Next> Completion::refused(std::shared_ptr<Instance> instance, std::unique_ptr<net::ClientResponse> answer,
                                    Tried& tried) {
  const int status = answer->status();
  net::Headers headers = answer->headers();
  auto text = co_await answer->read_all(kMostErrorBody);
  if (cancel_.cancelled()) co_return client_left("while an error was read");
  if (text && is_refusal(status)) {
    InstanceBoard::succeeded(*instance);
    co_await relay_refusal(status, std::move(headers), std::move(*text));
    co_return Next::kEnd;
  }
  note_status(instance, status, headers, text ? *text : std::string(), tried);
  co_return Next::kAgain;
}

net::Task<void> Completion::relay_refusal(int status, net::Headers headers, std::string body) {
  if (stream_.begun()) {
    std::string why = fmt::format("the answer broke off, and another instance refuses it: {}", body);
    outcome_ = "broken";
    co_await stream_.end_with_error(502, std::move(why));
    co_return;
  }
  outcome_ = "4xx";
  co_await net::relay_whole(exchange_, status, std::move(headers), std::move(body));
}

void Completion::note_status(const std::shared_ptr<Instance>& instance, int status, const net::Headers& headers,
                             std::string_view body, Tried& tried) {
  if (is_overload(status)) {
    // Not a fault, so the instance stays in rotation.
    give_up_status_ = status;
    retry_after_ = std::string(headers.find("retry-after").value_or("1"));
  } else {
    InstanceBoard::failed(*instance, now());
    tried.spend(*instance);
    give_up_status_ = 502;
  }
  note_problem(fmt::format("{}: status {}{}{}", title(*instance), status, body.empty() ? "" : ": ", said_in(body)));
}

Next Completion::failed(Instance& instance, const Status& error, Tried& tried) {
  if (error.scope() == Scope::kProcess) {  // not the instance's fault
    give_up_status_ = 503;
    note_problem(fmt::format("the proxy could not ask a {}", with_problem(instance, error.message())));
    return Next::kAgain;
  }
  const bool unreachable = error.code() == Code::kUnavailable && error.scope() == Scope::kPeer;
  // One that only takes long may have much to do: whether it is well is InstanceWatch's to find out.
  const bool slow = error.code() == Code::kDeadlineExceeded && error.scope() != Scope::kPeer;
  if (!slow) InstanceBoard::failed(instance, now());
  if (!unreachable) tried.spend(instance);
  give_up_status_ = unreachable ? 503 : error.code() == Code::kDeadlineExceeded ? 504 : 502;
  note_problem(with_problem(instance, error.message()));
  return Next::kAgain;
}

void Completion::note_problem(std::string problem) {
  log::warning("request {}: {}", request_id_.empty() ? base_id_ : request_id_, problem);
  problems_.push_back(std::move(problem));
}

Next Completion::client_left(std::string_view stage) {
  outcome_ = kClientGone;
  log::debug("request {}: the client left {}", request_id_, stage);
  return Next::kEnd;
}

net::Task<void> Completion::give_up() {
  if (cancel_.cancelled()) {
    client_left("before an instance could answer");
    co_return;
  }
  if (problems_.size() > kMostProblemsNamed) problems_.resize(kMostProblemsNamed);
  std::string why = fmt::format("no instance could answer this request. Tried: {}", fmt::join(problems_, "; "));
  if (stream_.begun()) {
    outcome_ = "broken";
    co_await stream_.end_with_error(give_up_status_, std::move(why));
    co_return;
  }
  auto response = error_response(give_up_status_, why);
  if (!retry_after_.empty() && is_overload(give_up_status_)) response.headers.set("retry-after", retry_after_);
  (void)co_await exchange_->respond(std::move(response));
}

net::Task<void> Completion::say_stopping() {
  std::string why = "the proxy is stopping";
  log::warning("request {} is ended: {}", request_id_.empty() ? base_id_ : request_id_, why);
  outcome_ = stream_.begun() || whole_begun_ ? "broken" : "5xx";
  if (stream_.begun()) {
    co_await stream_.end_with_error(503, std::move(why));
  } else if (!whole_begun_) {
    auto response = error_response(503, why);
    (void)co_await exchange_->respond(std::move(response));
  }
}

net::Task<void> Completion::pause(int attempt, net::Cancel cancel) {
  constexpr int kMostDoublings = 16;
  auto timer = std::make_shared<boost::asio::steady_timer>(context_->executor);
  timer->expires_after(context_->config.retry_delay * (1LL << std::min(attempt, kMostDoublings)));
  const auto hook = cancel.on_cancel([timer] { timer->cancel(); });
  if (!cancel.cancelled()) co_await timer->async_wait(kAwait);
}

}  // namespace tandem::proxy
