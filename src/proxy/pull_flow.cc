// SPDX-License-Identifier: Apache-2.0
#include "proxy/pull_flow.h"

#include <algorithm>

#include "base/log.h"

namespace tandem::proxy {
namespace {

TimePoint now() { return std::chrono::steady_clock::now(); }

}  // namespace

net::Task<Next> PullFlow::round() {
  Next next = co_await prefill();
  if (next == Next::kAgain) next = Next::kGiveUp;  // its own attempts are used up
  if (next == Next::kContinue) next = co_await decode();
  co_return next;
}

net::Task<Next> PullFlow::prefill() {
  Completion& completion = *completion_;
  for (int attempt = 0; attempt < std::max(completion.context().config.max_retries, 1); ++attempt) {
    if (attempt > 0) co_await completion.pause(attempt - 1, completion.cancel());
    if (completion.cancel().cancelled()) co_return completion.client_left("before prefill");
    auto prefiller = completion.choose(Role::kPrefill, Connector::kPull, completion.tried_prefillers());
    if (!prefiller) co_return Next::kGiveUp;
    if (attempt > 0) completion.context().metrics.prefill_retries.add();
    completion.new_attempt();
    const Next next = co_await ask_prefiller(prefiller);
    share_.release_tokens();
    if (next != Next::kContinue) share_.release_kv();
    if (next != Next::kAgain) co_return next;
  }
  co_return Next::kAgain;
}

net::Task<Next> PullFlow::ask_prefiller(std::shared_ptr<Instance> prefiller) {
  Completion& completion = *completion_;
  const net::Cancel cancel = completion.cancel();
  share_ = InstanceBoard::take_prefill(prefiller, completion.body().num_bytes());
  const auto asked = now();
  net::ClientRequest request = completion.backend_request(completion.body().for_prefill(), completion.request_id());
  net::Headers release_headers = request.headers;
  const auto timeouts = prefill_timeouts(completion.context().config);
  auto answer = co_await prefiller->client->send(std::move(request), timeouts, cancel);
  // An answer that was on its way when the client left has a lease that we shall never see.
  const auto left_during_prefill = [&] {
    PrefillLease(completion.shared_context(), prefiller, std::string(), std::move(release_headers)).release();
    return completion.client_left("during prefill");
  };
  if (cancel.cancelled()) co_return left_during_prefill();
  if (!answer) co_return completion.failed(*prefiller, answer.error(), completion.tried_prefillers());
  const int status = (*answer)->status();
  if (status < 200 || status >= 300) {
    const Next next = co_await completion.refused(prefiller, std::move(*answer), completion.tried_prefillers());
    co_return next;
  }
  auto text = co_await (*answer)->read_all(kMostPrefillAnswer);
  if (!text && cancel.cancelled()) co_return left_during_prefill();
  if (!text) co_return completion.failed(*prefiller, text.error(), completion.tried_prefillers());
  auto params = kv_params_of(*text);
  if (!params) co_return completion.failed(*prefiller, params.error(), completion.tried_prefillers());
  InstanceBoard::succeeded(*prefiller);
  prefill_time_.seconds = seconds(now() - asked);
  prefill_time_.header = std::string((*answer)->headers().find("x-tandem-timing").value_or(""));
  completion.context().metrics.prefill_seconds.observe(prefill_time_.seconds);
  kv_params_ = std::move(*params);
  if (kv_params_.empty()) {
    completion.context().metrics.local_prefills.add();
    log::debug("request {}: prefiller {} handed no KV over; the decoder prefills", completion.request_id(),
               prefiller->name);
  } else {
    lease_ = PrefillLease(completion.shared_context(), prefiller, kv_params_, std::move(release_headers));
  }
  if (cancel.cancelled()) {
    lease_.release();
    co_return completion.client_left("between prefill and decode");
  }
  co_return Next::kContinue;
}

net::Task<Next> PullFlow::decode() {
  Completion& completion = *completion_;
  Next next = Next::kGiveUp;
  if (auto decoder = completion.choose(Role::kDecode, Connector::kPull, tried_decoders_)) {
    Completion::DecodeStage stage;
    stage.body = completion.decode_body(*decoder, kv_params_);
    stage.decoder = std::move(decoder);
    stage.cancel = completion.cancel();
    stage.begun = [this] {
      lease_.taken();
      share_.release_kv();
    };
    stage.prefill_time = [this]() -> net::Task<StageTime> { co_return prefill_time_; };
    next = co_await completion.decode(std::move(stage));
  }
  // Unless a decoder's answer has begun, nobody will fetch the KV.
  lease_.release();
  share_.release_kv();
  co_return next;
}

}  // namespace tandem::proxy
