// SPDX-License-Identifier: Apache-2.0
#include "proxy/deliveries.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "base/log.h"

namespace tandem::proxy {
namespace {

constexpr auto kAwait = boost::asio::as_tuple(boost::asio::use_awaitable);
constexpr std::size_t kMostChoices = 128;  // of OpenAI's API
constexpr std::chrono::milliseconds kTimingGrace{200};

TimePoint now() { return std::chrono::steady_clock::now(); }

}  // namespace

Deliveries::Deliveries(std::shared_ptr<Completion> completion, bool decoder_decides)
    : completion_(std::move(completion)), decoder_decides_(decoder_decides) {
  if (!completion_->chat()) prompts_ = completion_->body().prompts();
  client_left_ = completion_->cancel().on_cancel([this] {
    prefill_cancel_.cancel();
    decode_cancel_.cancel();
  });
}

bool Deliveries::known(const ChildId& child) const {
  const std::size_t count = completion_->chat() ? 1 : prompts_.size();
  return child.prompt < count && child.choice < kMostChoices;
}

net::Task<DeliveryResult> Deliveries::deliver(ChildId child, std::string params) {
  const auto self = shared_from_this();
  DeliveryResult gone{404, fmt::format("request {} is not open any more", child.parent)};
  if (ended_ || !known(child)) co_return gone;
  auto& entry = all_[{child.prompt, child.choice}];
  if (!entry) {
    entry = std::make_shared<Delivery>(completion_->context().executor);
    std::string body = completion_->body().for_push(completion_->chat() ? "" : prompts_[child.prompt], params);
    const bool first = child.prompt == 0 && child.choice == 0;
    std::string id = first ? completion_->request_id()
                           : fmt::format("{}-{}-{}", completion_->request_id(), child.prompt, child.choice);
    boost::asio::co_spawn(completion_->context().executor, prefill(entry, std::move(body), std::move(id)),
                          boost::asio::detached);
  }
  const auto delivery = entry;
  while (!delivery->done && !prefill_cancel_.cancelled()) {  // every prefill has its deadline
    delivery->changed.expires_at(TimePoint::max());
    co_await delivery->changed.async_wait(kAwait);
  }
  if (delivery->done) co_return delivery->result;
  if (failed()) gone = {502, "the prefill of another prompt of this request failed"};
  co_return gone;
}

net::Task<void> Deliveries::prefill(std::shared_ptr<Delivery> delivery, std::string body, std::string request_id) {
  const auto self = shared_from_this();
  Completion& completion = *completion_;
  Asked how = Asked::kAgain;
  const int attempts = std::max(completion.context().config.max_retries, 1);
  for (int attempt = 0; how == Asked::kAgain && attempt < attempts; ++attempt) {
    if (attempt > 0) co_await completion.pause(attempt - 1, prefill_cancel_);
    if (prefill_cancel_.cancelled() || ended_ || begun_) break;  // a decoder that answers waits for no KV
    auto prefiller = completion.choose(Role::kPrefill, Connector::kLayerwise, delivery->tried);
    if (!prefiller) {
      if (attempt == 0) delivery->problems.emplace_back("no prefiller is configured for the layerwise connector");
      break;
    }
    if (attempt > 0) completion.context().metrics.prefill_retries.add();
    how = co_await ask(prefiller, delivery, body, request_id);
  }
  finish(*delivery, how);
}

net::Task<Deliveries::Asked> Deliveries::ask(std::shared_ptr<Instance> prefiller, std::shared_ptr<Delivery> delivery,
                                             std::string body, std::string request_id) {
  Completion& completion = *completion_;
  const LoadShare share = InstanceBoard::take_prefill(prefiller, completion.body().num_bytes());
  const auto asked = now();
  net::ClientRequest request = completion.backend_request(std::move(body), request_id);
  const auto timeouts = prefill_timeouts(completion.context().config);
  auto answer = co_await prefiller->client->send(std::move(request), timeouts, prefill_cancel_);
  Status error;
  if (!answer) {
    error = answer.error();
  } else if ((*answer)->status() < 200 || (*answer)->status() >= 300) {
    const Asked how = co_await take_refusal(prefiller, delivery, std::move(*answer));
    co_return how;
  } else {
    delivery->time.header = std::string((*answer)->headers().find("x-tandem-timing").value_or(""));
    auto text = co_await (*answer)->read_all(kMostPrefillAnswer);
    if (!text) error = text.error();
  }
  if (prefill_cancel_.cancelled()) co_return Asked::kFailed;
  if (!error.ok()) {
    completion.failed(*prefiller, error, delivery->tried);
    delivery->problems.push_back(fmt::format("prefiller {}", error.message()));
    co_return error.code() == Code::kDeadlineExceeded ? Asked::kFailed : Asked::kAgain;
  }
  InstanceBoard::succeeded(*prefiller);
  delivery->time.seconds = seconds(now() - asked);
  completion.context().metrics.prefill_seconds.observe(delivery->time.seconds);
  co_return Asked::kOk;
}

net::Task<Deliveries::Asked> Deliveries::take_refusal(std::shared_ptr<Instance> prefiller,
                                                      std::shared_ptr<Delivery> delivery,
                                                      std::unique_ptr<net::ClientResponse> answer) {
  const int status = answer->status();
  net::Headers headers = answer->headers();
  auto text = co_await answer->read_all(kMostErrorBody);
  if (prefill_cancel_.cancelled()) co_return Asked::kFailed;
  const std::string body = text ? std::move(*text) : std::string();
  delivery->problems.push_back(
      fmt::format("prefiller {}: status {}: {}", prefiller->name, status, body.substr(0, 500)));
  if (is_refusal(status)) {
    InstanceBoard::succeeded(*prefiller);
    refusal_ = Refusal{status, std::move(headers), body};
    co_return Asked::kFailed;
  }
  completion_->note_status(prefiller, status, headers, body, delivery->tried);
  co_return Asked::kAgain;
}

void Deliveries::finish(Delivery& delivery, Asked how) {
  if (how == Asked::kOk) {
    delivery.result = {200, ""};
  } else {
    delivery.result = {502, fmt::format("the prefill failed: {}", fmt::join(delivery.problems, "; "))};
    if (!prefill_cancel_.cancelled()) failed_ = true;
  }
  delivery.done = !prefill_cancel_.cancelled() || how == Asked::kOk;
  delivery.changed.cancel();
  if (!failed()) return;
  prefill_cancel_.cancel();  // the request's other prompts are of no use
  const bool cut_off = refusal_ || !decoder_decides_;
  if (!begun_ && cut_off) decode_cancel_.cancel();
}

void Deliveries::end() {
  ended_ = true;
  if (!begun_ || completion_->cancel().cancelled()) prefill_cancel_.cancel();
  for (const auto& [child, delivery] : all_) delivery->changed.cancel();
}

net::Task<StageTime> Deliveries::time() {
  const auto self = shared_from_this();
  boost::asio::steady_timer pause(completion_->context().executor);
  const auto deadline = now() + kTimingGrace;
  const auto all_done = [this] {
    return std::all_of(all_.begin(), all_.end(), [](const auto& entry) { return entry.second->done; });
  };
  while (!all_done() && now() < deadline && !completion_->cancel().cancelled()) {
    pause.expires_after(std::chrono::milliseconds(1));
    co_await pause.async_wait(kAwait);
  }
  StageTime longest;
  for (const auto& [child, delivery] : all_) {
    if (delivery->done && delivery->time.seconds > longest.seconds) longest = delivery->time;
  }
  co_return longest;
}

}  // namespace tandem::proxy
