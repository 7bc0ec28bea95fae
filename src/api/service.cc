// SPDX-License-Identifier: Apache-2.0
#include "api/service.h"

#include <map>
#include <string>
#include <vector>

#include "api/access.h"
#include "api/front.h"
#include "api/handlers.h"
#include "api/refusal.h"
#include "api/request_observer.h"
#include "api/routes.h"
#include "base/log.h"
#include "net/bearer.h"

namespace tandem::api {
namespace {

/// What a browser asks before it posts from another origin.
net::Task<void> handle_preflight(ContextPtr context, ExchangePtr exchange) {
  net::HttpResponse response = preflight_answer(context->config, exchange->request());
  const auto sent = co_await exchange->respond(std::move(response));
  if (!sent) log::debug("{}: {}", exchange->request().path, sent.error().message());
}

net::Task<void> refuse(ContextPtr context, ExchangePtr exchange, int status, std::string why) {
  const Refusal refusal(status, status == 404 ? "NotFoundError" : "NotImplementedError", std::move(why));
  net::HttpResponse response = error_response(refusal);
  co_await send(context, exchange, std::move(response));
}

/// Nobody without a key comes further; nullopt: come in. Behind the first process of an instance it is that one that
/// has the keys, and asks by the instance's secret.
std::optional<net::HttpResponse> gate(Context& context, const net::HttpRequest& request) {
  const std::string& secret = context.parts.bearer;
  if (!secret.empty()) {
    if (net::has_bearer(request, {secret})) return std::nullopt;
    return error_response(
        Refusal(401, "AuthenticationError", "this is a process behind the first one of its instance; ask that one"));
  }
  std::string_view path = request.path;
  const std::string& root = context.config.root_path;
  if (path.starts_with(root)) path.remove_prefix(root.size());
  if (request.method == "OPTIONS" || !(needs_key(path) || needs_key(request.path)) ||
      net::has_bearer(request, context.config.api_keys))
    return std::nullopt;
  net::HttpResponse response(401, "application/json", R"({"error":"Unauthorized"})");
  add_common_headers(context, request, response.headers);
  return response;
}

/// Keeps what a library throws inside this part: the client gets a 500, or a broken stream if it already has a head.
net::Task<void> guarded(Endpoint endpoint, ContextPtr context, ExchangePtr exchange) {
  std::string thrown;
  try {
    co_await endpoint(context, exchange);
    co_return;
  } catch (const std::exception& error) {
    thrown = error.what();
  }
  log::error("{} threw: {}", exchange->request().path, thrown);
  if (exchange->answered()) {
    exchange->abandon();
    co_return;
  }
  const Refusal refusal(500, "InternalServerError", thrown);
  net::HttpResponse response = error_response(refusal);
  const auto sent = co_await exchange->respond(std::move(response));
  if (!sent) log::debug("{}: {}", exchange->request().path, sent.error().message());
}

net::Task<void> refuse_starting(std::function<std::string()> waiting_for, ExchangePtr exchange) {
  const Refusal refusal(503, "ServiceUnavailableError", "the instance is starting: " + waiting_for());
  net::HttpResponse response = error_response(refusal);
  const auto sent = co_await exchange->respond(std::move(response));
  if (!sent) log::debug("{}: {}", exchange->request().path, sent.error().message());
}

}  // namespace

Service::Service(const config::ServeConfig& config, ServiceParts parts)
    : context_(std::make_shared<Context>(config, std::move(parts))) {}

void Service::install(net::HttpServer& server) {
  server.error_body(error_body_for_status);
  // Behind the first process of an instance it is that one that has the clients.
  if (context_->parts.bearer.empty()) server.observe(make_request_observer(context_->config, *context_->parts.metrics));
  server.gate([context = context_](const net::HttpRequest& request) { return gate(*context, request); });
  const std::string& root = context_->config.root_path;
  for (const Route& route : routes_of(context_->config)) {
    net::Handler handler = [context = context_, endpoint = route.endpoint](ExchangePtr exchange) {
      return guarded(endpoint, context, std::move(exchange));
    };
    if (route.endpoint == nullptr)
      handler = [context = context_, route](ExchangePtr exchange) {
        return refuse(context, std::move(exchange), route.status, std::string(route.what));
      };
    const auto preflight = [context = context_](ExchangePtr exchange) {
      return guarded(handle_preflight, context, std::move(exchange));
    };
    // Gateways leave the prefix on paths or take it away.
    const std::string bare(route.path);
    for (const std::string& path : root.empty() ? std::vector{bare} : std::vector{bare, root + bare}) {
      server.route(std::string(route.method), path, handler);
      server.route("OPTIONS", path, preflight);
    }
  }
}

void install_starting(net::HttpServer& server, const config::ServeConfig& config,
                      std::function<std::string()> waiting_for) {
  server.error_body(error_body_for_status);
  for (const Route& route : routes_of(config)) {
    server.route(std::string(route.method), std::string(route.path),
                 [waiting_for](ExchangePtr exchange) { return refuse_starting(waiting_for, std::move(exchange)); });
  }
}

void Service::log_routes() const {
  std::map<std::string_view, std::string> methods;
  for (const Route& route : routes_of(context_->config)) {
    std::string& list = methods[route.path];
    list += (list.empty() ? "" : ", ") + std::string(route.method);
  }
  log::info("Available routes are:");
  for (const auto& [path, list] : methods) log::info("Route: {}, Methods: {}", path, list);
}

void Service::instance_changed() {
  if (context_->front) context_->front->instance_changed();
}

}  // namespace tandem::api
