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
#include "base/log.h"

namespace tandem::api {
namespace {

using Endpoint = net::Task<void> (*)(ContextPtr, ExchangePtr);

net::Task<void> handle_completions(ContextPtr context, ExchangePtr exchange) {
  co_await handle_generation(context, exchange, false);
}

net::Task<void> handle_chat(ContextPtr context, ExchangePtr exchange) {
  co_await handle_generation(context, exchange, true);
}

/// What a browser asks before it posts from another origin.
net::Task<void> handle_preflight(ContextPtr context, ExchangePtr exchange) {
  net::HttpResponse response = preflight_answer(context->config, exchange->request());
  const auto sent = co_await exchange->respond(std::move(response));
  if (!sent) log::debug("{}: {}", exchange->request().path, sent.error().message());
}

net::Task<void> handle_without_key(ContextPtr context, ExchangePtr exchange) {
  net::HttpResponse response(401, "application/json", R"({"error":"Unauthorized"})");
  co_await send(context, exchange, std::move(response));
}

/// Keeps what a library throws inside this part: the client gets a 500, or a broken stream if it already has a head.
net::Task<void> guarded(Endpoint endpoint, ContextPtr context, ExchangePtr exchange) {
  if (!context->parts.bearer.empty() &&
      exchange->request().headers.find("authorization") != "Bearer " + context->parts.bearer) {
    const Refusal refusal(401, "AuthenticationError",
                          "this is a process behind the first one of its instance; ask that one");
    net::HttpResponse response = error_response(refusal);
    const auto sent = co_await exchange->respond(std::move(response));
    if (!sent) log::debug("{}: {}", exchange->request().path, sent.error().message());
    co_return;
  }
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

struct Route {
  const char* method;
  const char* path;
  Endpoint endpoint;
};

constexpr Route kRoutes[] = {
    {"POST", "/v1/completions", handle_completions},
    {"POST", "/v1/chat/completions", handle_chat},
    {"GET", "/v1/models", handle_models},
    {"POST", "/tokenize", handle_tokenize},
    {"POST", "/detokenize", handle_detokenize},
    {"GET", "/health", handle_health},
    {"GET", "/ping", handle_health},
    {"POST", "/ping", handle_health},
    {"GET", "/version", handle_version},
    {"GET", "/load", handle_load},
    {"GET", "/metrics", handle_metrics},
    {"GET", "/metrics/", handle_metrics},
    {"POST", "/reset_prefix_cache", handle_reset_prefix_cache},
    {"POST", "/tandem/release", handle_release},
    {"GET", "/tandem/info", handle_info},
};

}  // namespace

Service::Service(const config::ServeConfig& config, ServiceParts parts)
    : context_(std::make_shared<Context>(config, std::move(parts))) {}

void Service::install(net::HttpServer& server) {
  server.error_body(error_body_for_status);
  // Behind the first process of an instance it is that one that has the clients.
  if (context_->parts.bearer.empty()) server.observe(make_request_observer(context_->config, *context_->parts.metrics));
  const std::string& root = context_->config.root_path;
  for (const Route& route : kRoutes) {
    const Endpoint endpoint = route.endpoint;
    // Behind the first process of an instance it is that one that has the keys, and asks by the instance's secret.
    const bool locked = context_->parts.bearer.empty() && needs_key(route.path);
    const auto handler = [context = context_, endpoint, locked](ExchangePtr exchange) {
      const bool open = !locked || has_key(context->config, exchange->request());
      return guarded(open ? endpoint : handle_without_key, context, std::move(exchange));
    };
    const auto preflight = [context = context_](ExchangePtr exchange) {
      return guarded(handle_preflight, context, std::move(exchange));
    };
    // Gateways leave the prefix on paths or take it away.
    for (const std::string& path : root.empty() ? std::vector<std::string>{route.path}
                                                : std::vector<std::string>{route.path, root + route.path}) {
      server.route(route.method, path, handler);
      server.route("OPTIONS", path, preflight);
    }
  }
}

void install_starting(net::HttpServer& server, std::function<std::string()> waiting_for) {
  server.error_body(error_body_for_status);
  for (const Route& route : kRoutes) {
    server.route(route.method, route.path,
                 [waiting_for](ExchangePtr exchange) { return refuse_starting(waiting_for, std::move(exchange)); });
  }
}

void Service::log_routes() {
  log::info("Available routes are:");
  std::map<std::string, std::string> methods;
  for (const Route& route : kRoutes) {
    std::string& list = methods[route.path];
    list += (list.empty() ? "" : ", ") + std::string(route.method);
  }
  for (const auto& [path, list] : methods) log::info("Route: {}, Methods: {}", path, list);
}

void Service::instance_changed() {
  if (context_->front) context_->front->instance_changed();
}

}  // namespace tandem::api
