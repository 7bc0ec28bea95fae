// SPDX-License-Identifier: Apache-2.0
#include "proxy/metaserver.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <charconv>

#include "base/log.h"
#include "proxy/deliveries.h"
#include "proxy/forwarding.h"
#include "proxy/json_members.h"
#include "proxy/proxy_context.h"

namespace tandem::proxy {
namespace {

constexpr std::size_t kMostPostBytes = 4U << 20;  // block ids of a million tokens are an eighth of it

std::optional<std::size_t> number(std::string_view text) {
  std::size_t value = 0;
  constexpr std::size_t kMostDigits = 6;
  if (text.empty() || text.size() > kMostDigits) return std::nullopt;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size()) return std::nullopt;
  return value;
}

/// By which the request is open that a decoder's post is about.
std::string name_of(const net::HttpRequest& request, const ChildId& child) {
  constexpr std::string_view kInUrl = "request=";
  const auto at = request.query.find(kInUrl);
  return at == std::string::npos ? child.parent : request.query.substr(at + kInUrl.size());
}

net::Task<void> metaserver(std::shared_ptr<ProxyContext> context, std::shared_ptr<net::Exchange> exchange) {
  const auto& body = exchange->request().body;
  net::HttpResponse response(200, "application/json", R"({"status":"ok"})");
  if (body.size() > kMostPostBytes) {
    response =
        error_response(413, fmt::format("{} bytes; at most {} are expected of a decoder", body.size(), kMostPostBytes));
  } else if (auto post = MetaserverPost::parse(body); !post) {
    response = error_response(400, post.error().message());
  } else if (const auto deliveries = context->open_requests.find(name_of(exchange->request(), post->child));
             !deliveries) {
    response = error_response(404, fmt::format("no request {} is open at this proxy", post->child.parent));
  } else {
    DeliveryResult result = co_await deliveries->deliver(std::move(post->child), std::move(post->params));
    if (result.status != 200) response = error_response(result.status, result.message);
  }
  context->metrics.count_metaserver_post(response.status);
  if (response.status != 200) {
    log::warning("metaserver call from {}: status {}: {}", exchange->request().peer, response.status, response.body);
  }
  (void)co_await exchange->respond(std::move(response));
}

}  // namespace

std::optional<ChildId> ChildId::parse(std::string_view request_id) {
  ChildId child;
  constexpr std::string_view kCompletion = "cmpl-";
  constexpr std::string_view kChat = "chatcmpl-";
  const auto underscore = request_id.find('_');
  if (underscore < request_id.find('-')) {
    const auto choice = number(request_id.substr(0, underscore));
    if (!choice) return std::nullopt;
    child.choice = *choice;
    request_id.remove_prefix(underscore + 1);
  }
  if (request_id.starts_with(kChat)) {
    if (request_id.size() == kChat.size()) return std::nullopt;
    child.parent = request_id;
    return child;
  }
  const auto dash = request_id.rfind('-');
  if (!request_id.starts_with(kCompletion) || dash <= kCompletion.size()) return std::nullopt;
  const auto prompt = number(request_id.substr(dash + 1));
  if (!prompt) return std::nullopt;
  child.prompt = *prompt;
  child.parent = request_id.substr(0, dash);
  return child;
}

Result<MetaserverPost> MetaserverPost::parse(std::string_view body) {
  auto members = JsonMembers::parse(body);
  if (!members) return members.error().context("a decoder's message");
  const auto raw = members->find("request_id");
  if (!raw || !raw->starts_with('"')) {
    return Status(Code::kInvalidArgument, "a decoder's message: request_id must be a string");
  }
  TANDEM_ASSIGN(const auto value, parse_json(*raw));
  const auto& id = value.as_string();
  auto child = ChildId::parse(std::string_view(id.data(), id.size()));
  if (!child) {
    return Status(Code::kInvalidArgument,
                  fmt::format("a decoder's message: request_id is {}; expected \"cmpl-<id>-<prompt>\" or "
                              "\"chatcmpl-<id>\"",
                              raw->substr(0, 200)));
  }
  MetaserverPost post;
  post.child = std::move(*child);
  post.params = body;
  return post;
}

std::unique_ptr<OpenRequests::Entry> OpenRequests::open(std::string name, std::shared_ptr<Deliveries> deliveries) {
  const bool fresh = by_name_.emplace(name, std::move(deliveries)).second;
  TANDEM_ASSERT(fresh, "a name is open once");
  return std::make_unique<Entry>(*this, std::move(name));
}

std::shared_ptr<Deliveries> OpenRequests::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

void add_metaserver(net::HttpServer& server, const std::shared_ptr<ProxyContext>& context) {
  server.route("POST", "/v1/metaserver",
               [context](std::shared_ptr<net::Exchange> exchange) { return metaserver(context, std::move(exchange)); });
}

}  // namespace tandem::proxy
