// SPDX-License-Identifier: Apache-2.0
#include "proxy/pull_flow.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "base/log.h"
#include "proxy/answer_relay.h"
#include "proxy/forwarding.h"

namespace tandem::proxy {
namespace {

constexpr auto kAwait = boost::asio::as_tuple(boost::asio::use_awaitable);
constexpr std::size_t kMostPrefillAnswer = 64U << 20;
constexpr std::size_t kMostErrorBody = 1U << 20;
constexpr std::size_t kMostProblemsNamed = 8;

TimePoint now() { return std::chrono::steady_clock::now(); }

net::ClientTimeouts prefill_timeouts(const config::ProxyConfig& config) {
  net::ClientTimeouts timeouts;
  timeouts.connect = config.connect_timeout;
  timeouts.head = timeouts.idle = timeouts.total = config.prefill_timeout;
  return timeouts;
}

net::ClientTimeouts decode_timeouts(const config::ProxyConfig& config) {
  net::ClientTimeouts timeouts;
  timeouts.connect = config.connect_timeout;
  timeouts.head = config.first_byte_timeout;
  timeouts.idle = config.stream_idle_timeout;
  return timeouts;
}

}  // namespace

PullFlow::PullFlow(std::shared_ptr<ProxyContext> context, std::shared_ptr<net::Exchange> exchange)
    : context_(std::move(context)), exchange_(std::move(exchange)), arrived_(now()) {
  context_->metrics.inflight.set(++context_->inflight);
}

PullFlow::~PullFlow() { context_->metrics.inflight.set(--context_->inflight); }

net::Task<void> PullFlow::run() {
  const auto self = shared_from_this();
  const auto& request = exchange_->request();
  auto body = ClientBody::parse(request.body);
  if (context_->inflight > context_->config.max_inflight) {
    auto busy = error_response(
        503, fmt::format("the proxy handles {} requests already; try again later", context_->config.max_inflight));
    (void)co_await exchange_->respond(std::move(busy));
  } else if (!body) {
    outcome_ = "4xx";
    auto bad = error_response(400, fmt::format("the request body is not usable: {}", body.error().message()));
    (void)co_await exchange_->respond(std::move(bad));
  } else {
    body_ = std::move(*body);
    exchange_->on_client_gone([cancel = cancel_]() mutable { cancel.cancel(); });
    const auto given = request.headers.find("x-request-id");
    base_id_ = given && !given->empty() ? std::string(*given) : make_uuid();
    co_await pair();
    exchange_->on_client_gone(nullptr);
  }
  if (exchange_->client_gone() && outcome_ == "5xx") outcome_ = "client_gone";
  context_->metrics.count_request(request.path, outcome_);
  log::debug("request {} {} from {}: {} after {:.3f} s, {} prefill attempts", base_id_, request.path, request.peer,
             outcome_, seconds(now() - arrived_), attempts_);
}

net::Task<void> PullFlow::pair() {
  for (int round = 0; round < std::max(context_->config.max_retries, 1); ++round) {
    if (round > 0) {
      context_->metrics.decode_retries.add();
      co_await pause(round - 1);
    }
    const Next prefilled = co_await prefill();
    if (prefilled == Next::kEnd) co_return;
    if (prefilled == Next::kAgain) break;  // its own attempts are used up
    const Next decoded = co_await decode();
    if (decoded != Next::kAgain) co_return;
  }
  co_await give_up();
}

net::Task<PullFlow::Next> PullFlow::prefill() {
  for (int attempt = 0; attempt < std::max(context_->config.max_retries, 1); ++attempt) {
    if (attempt > 0) {
      context_->metrics.prefill_retries.add();
      co_await pause(attempt - 1);
    }
    if (cancel_.cancelled()) co_return client_left("before prefill");
    auto prefiller = context_->board.choose(Role::kPrefill, tried_prefillers_, now());
    if (!prefiller) {
      problems_.emplace_back("no prefiller is configured");
      co_return Next::kAgain;
    }
    request_id_ = attempts_ == 0 ? base_id_ : fmt::format("{}-r{}", base_id_, attempts_);
    ++attempts_;
    const Next next = co_await ask_prefiller(prefiller);
    prefill_share_.release_tokens();
    if (next != Next::kContinue) prefill_share_.release_kv();
    if (next != Next::kAgain) co_return next;
  }
  co_return Next::kAgain;
}

net::Task<PullFlow::Next> PullFlow::ask_prefiller(std::shared_ptr<Instance> prefiller) {
  prefill_share_ = InstanceBoard::take_prefill(prefiller, body_.num_bytes());
  const auto asked = now();
  net::ClientRequest request = backend_request(body_.for_prefill());
  net::Headers release_headers = request.headers;
  const auto timeouts = prefill_timeouts(context_->config);
  auto answer = co_await prefiller->client->send(std::move(request), timeouts, cancel_);
  // An answer that was on its way when the client left has a lease that we shall never see.
  const auto left_during_prefill = [&] {
    PrefillLease(context_, prefiller, std::string(), std::move(release_headers)).release();
    return client_left("during prefill");
  };
  if (cancel_.cancelled()) co_return left_during_prefill();
  if (!answer) co_return failed(*prefiller, answer.error());
  const int status = (*answer)->status();
  if (status < 200 || status >= 300) {
    const Next next = co_await refused(prefiller, std::move(*answer));
    co_return next;
  }
  auto text = co_await (*answer)->read_all(kMostPrefillAnswer);
  if (!text && cancel_.cancelled()) co_return left_during_prefill();
  if (!text) co_return failed(*prefiller, text.error());
  auto params = kv_params_of(*text);
  if (!params) co_return failed(*prefiller, params.error());
  InstanceBoard::succeeded(*prefiller);
  context_->metrics.prefill_seconds.observe(seconds(now() - asked));
  kv_params_ = std::move(*params);
  prefill_timing_ = std::string((*answer)->headers().find("x-tandem-timing").value_or(""));
  if (kv_params_.empty()) {
    context_->metrics.local_prefills.add();
    log::debug("request {}: prefiller {} handed no KV over; the decoder prefills", request_id_, prefiller->name);
  } else {
    lease_ = PrefillLease(context_, prefiller, kv_params_, std::move(release_headers));
  }
  if (cancel_.cancelled()) {
    lease_.release();
    co_return client_left("between prefill and decode");
  }
  co_return Next::kContinue;
}

net::Task<PullFlow::Next> PullFlow::decode() {
  auto decoder = context_->board.choose(Role::kDecode, tried_decoders_, now());
  Next next = Next::kAgain;
  if (decoder) {
    next = co_await ask_decoder(decoder);
  } else {
    problems_.emplace_back("no decoder is configured");
  }
  // Unless a decoder's answer has begun, nobody will fetch the KV.
  lease_.release();
  prefill_share_.release_kv();
  co_return next;
}

net::Task<PullFlow::Next> PullFlow::ask_decoder(std::shared_ptr<Instance> decoder) {
  const LoadShare share = InstanceBoard::take_decode(decoder, body_.num_bytes());
  net::ClientRequest request = backend_request(body_.for_decode(kv_params_));
  const auto timeouts = decode_timeouts(context_->config);
  auto answer = co_await decoder->client->send(std::move(request), timeouts, cancel_);
  if (cancel_.cancelled()) co_return client_left("before the first byte");
  if (!answer) co_return failed(*decoder, answer.error());
  const int status = (*answer)->status();
  if (status < 200 || status >= 300) {
    const Next next = co_await refused(decoder, std::move(*answer));
    co_return next;
  }
  auto first = co_await (*answer)->read_piece();
  if (cancel_.cancelled()) co_return client_left("before the first byte");
  if (!first) co_return failed(*decoder, first.error());
  if (first->empty()) {
    const Status empty(Code::kUnavailable, fmt::format("{}: status {} with an empty body", decoder->name, status),
                       Scope::kTransfer);
    co_return failed(*decoder, empty);
  }
  const Next next = co_await stream_answer(decoder, std::move(*answer), std::move(*first));
  co_return next;
}

net::Task<PullFlow::Next> PullFlow::stream_answer(std::shared_ptr<Instance> decoder,
                                                  std::unique_ptr<net::ClientResponse> answer,
                                                  std::string first_piece) {
  lease_.taken();
  prefill_share_.release_kv();
  InstanceBoard::succeeded(*decoder);
  context_->metrics.first_byte_seconds.observe(seconds(now() - arrived_));
  outcome_ = status_class(answer->status());
  net::Headers extra;
  if (!prefill_timing_.empty()) extra.add("x-tandem-prefill-timing", prefill_timing_);
  const RelayOutcome outcome =
      co_await relay_answer(exchange_, std::move(answer), std::move(first_piece), std::move(extra));
  if (outcome.end == RelayOutcome::End::kClientGone) co_return client_left("in mid-stream");
  if (outcome.end == RelayOutcome::End::kBroken) {
    InstanceBoard::failed(*decoder, now());
    outcome_ = "broken";
    log::warning("request {}: the answer broke off after {} bytes: {}", request_id_, outcome.num_bytes,
                 outcome.error.message());
  }
  co_return Next::kEnd;
}

net::Task<PullFlow::Next> PullFlow::refused(std::shared_ptr<Instance> instance,
                                            std::unique_ptr<net::ClientResponse> answer) {
  const int status = answer->status();
  net::Headers headers = answer->headers();
  auto text = co_await answer->read_all(kMostErrorBody);
  if (cancel_.cancelled()) co_return client_left("while an error was read");
  if (text && status >= 400 && status < 500) {
    InstanceBoard::succeeded(*instance);
    outcome_ = "4xx";
    co_await relay_whole(exchange_, status, std::move(headers), std::move(*text));
    co_return Next::kEnd;
  }
  const std::string problem =
      fmt::format("status {}{}", status, text ? fmt::format(": {}", text->substr(0, 200)) : std::string());
  if (status == 503) {
    // Overload or still loading: not a fault, so the instance stays in rotation.
    give_up_status_ = 503;
    retry_after_ = std::string(headers.find("retry-after").value_or("1"));
  } else {
    InstanceBoard::failed(*instance, now());
    give_up_status_ = 502;
  }
  note_failure(*instance, problem);
  co_return Next::kAgain;
}

PullFlow::Next PullFlow::failed(Instance& instance, const Status& error) {
  InstanceBoard::failed(instance, now());
  const bool unreachable = error.code() == Code::kUnavailable && error.scope() == Scope::kPeer;
  give_up_status_ = unreachable ? 503 : error.code() == Code::kDeadlineExceeded ? 504 : 502;
  note_failure(instance, error.message());
  return Next::kAgain;
}

void PullFlow::note_failure(const Instance& instance, std::string_view problem) {
  const std::string_view role = instance.role == Role::kPrefill ? "prefiller" : "decoder";
  std::string text = problem.starts_with(instance.name) ? fmt::format("{} {}", role, problem)
                                                        : fmt::format("{} {}: {}", role, instance.name, problem);
  log::warning("request {}: {}", request_id_, text);
  problems_.push_back(std::move(text));
}

PullFlow::Next PullFlow::client_left(std::string_view stage) {
  outcome_ = "client_gone";
  log::debug("request {}: the client left {}", request_id_, stage);
  return Next::kEnd;
}

net::Task<void> PullFlow::give_up() {
  if (cancel_.cancelled()) {
    client_left("before an instance could answer");
    co_return;
  }
  if (problems_.size() > kMostProblemsNamed) problems_.resize(kMostProblemsNamed);
  auto response = error_response(
      give_up_status_, fmt::format("no instance could answer this request. Tried: {}", fmt::join(problems_, "; ")));
  if (!retry_after_.empty() && give_up_status_ == 503) response.headers.set("retry-after", retry_after_);
  (void)co_await exchange_->respond(std::move(response));
}

net::Task<void> PullFlow::pause(int attempt) {
  constexpr int kMostDoublings = 16;
  auto timer = std::make_shared<boost::asio::steady_timer>(context_->executor);
  timer->expires_after(context_->config.retry_delay * (1LL << std::min(attempt, kMostDoublings)));
  const auto hook = cancel_.on_cancel([timer] { timer->cancel(); });
  if (!cancel_.cancelled()) co_await timer->async_wait(kAwait);
}

net::ClientRequest PullFlow::backend_request(std::string body) const {
  const auto& client = exchange_->request();
  net::ClientRequest request("POST", client.query.empty() ? client.path : client.path + "?" + client.query);
  request.headers = backend_headers(client.headers, request_id_, context_->api_key);
  request.body = std::move(body);
  return request;
}

}  // namespace tandem::proxy
