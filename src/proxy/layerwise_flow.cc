// SPDX-License-Identifier: Apache-2.0
#include "proxy/layerwise_flow.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "proxy/deliveries.h"
#include "proxy/forwarding.h"
#include "proxy/json_members.h"

namespace tandem::proxy {
namespace {

/// Ids that every instance takes as they are, so that its post finds the request.
bool travels_unchanged(std::string_view id) {
  constexpr std::size_t kMostBytes = 128;
  return id.size() <= kMostBytes && std::all_of(id.begin(), id.end(), [](char c) { return c > ' ' && c <= '~'; });
}

bool is_wildcard(const std::string& host) {
  return host.empty() || host == "0.0.0.0" || host == "::" || host == "[::]";
}

}  // namespace

std::string LayerwiseFlow::name_attempt(const Instance& decoder, std::string& url) {
  Completion& completion = *completion_;
  OpenRequests& open = completion.context().open_requests;
  const std::string prefix = completion.chat() ? "chatcmpl-" : "cmpl-";
  completion.new_attempt();
  std::string parent = prefix + completion.request_id();
  if (travels_unchanged(completion.request_id()) && !open.contains(parent)) return parent;
  if (decoder.is_tandem) {  // posts to any URL as it got it, so the client keeps its id
    std::string name = open.new_name();
    url += fmt::format("{}request={}", url.find('?') == std::string::npos ? '?' : '&', name);
    return name;
  }
  completion.use_request_id(make_uuid());
  return prefix + completion.request_id();
}

net::Task<std::string> LayerwiseFlow::metaserver_url(std::shared_ptr<Instance> decoder) {
  ProxyContext& context = completion_->context();
  if (!context.config.metaserver_url.empty()) co_return context.config.metaserver_url;
  std::string host = context.config.host;
  if (is_wildcard(host)) {
    // We listen on every address: the one that our connections to this decoder have is one that it can reach.
    if (decoder->client->local_address().empty()) co_await context.watch.look(decoder);
    host = decoder->client->local_address();
  }
  if (host.empty()) co_return std::string();
  const net::Endpoint here(host, context.port);
  co_return fmt::format("{}://{}/v1/metaserver", context.config.tls.on() ? "https" : "http", here.to_string());
}

net::Task<Next> LayerwiseFlow::round() {
  Completion& completion = *completion_;
  auto decoder = completion.choose(Role::kDecode, Connector::kLayerwise, tried_decoders_);
  if (!decoder) co_return Next::kGiveUp;
  std::string url = co_await metaserver_url(decoder);
  if (completion.cancel().cancelled()) co_return completion.client_left("before decode");
  if (url.empty()) {
    const Status unreachable(Code::kUnavailable, fmt::format("{}: cannot be reached", decoder->name), Scope::kPeer);
    co_return completion.failed(*decoder, unreachable, tried_decoders_);
  }
  if (!completion.context().config.api_keys.empty()) url += "?key=" + completion.context().metaserver_token;
  const auto deliveries = std::make_shared<Deliveries>(completion_, decoder->is_tandem);
  // Nothing may be awaited before it is open, or another takes the name.
  const std::string name = name_attempt(*decoder, url);
  const auto entry = completion.context().open_requests.open(name, deliveries);
  Completion::DecodeStage stage;
  stage.decoder = decoder;
  stage.body = completion.decode_body(
      *decoder,
      fmt::format(R"({{"do_remote_decode":false,"do_remote_prefill":true,"metaserver":{}}})", json_quote(url)));
  stage.cancel = deliveries->decode_cancel();
  stage.begun = [deliveries] { deliveries->answer_begun(); };
  stage.excused = [deliveries] { return deliveries->failed(); };
  stage.prefill_time = [deliveries] { return deliveries->time(); };
  stage.overlapped = true;
  const Next next = co_await completion.decode(std::move(stage));
  deliveries->end();
  if (completion.cancel().cancelled() || next == Next::kEnd) {
    if (!completion.cancel().cancelled() && !deliveries->any()) completion.context().metrics.local_prefills.add();
    co_return next == Next::kEnd ? next : completion.client_left("before the first byte");
  }
  if (auto& refusal = deliveries->refusal()) {
    co_await completion.relay_refusal(refusal->status, std::move(refusal->headers), std::move(refusal->body));
    co_return Next::kEnd;
  }
  co_return deliveries->failed() ? Next::kGiveUp : next;
}

}  // namespace tandem::proxy
