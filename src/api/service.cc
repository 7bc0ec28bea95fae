// SPDX-License-Identifier: Apache-2.0
#include "api/service.h"

#include <algorithm>
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

net::Task<void> refuse(ExchangePtr exchange, int status, std::string why) {
  const Refusal refusal(status, status == 404 ? "NotFoundError" : "NotImplementedError", std::move(why));
  net::HttpResponse response = error_response(refusal);
  (void)co_await exchange->respond(std::move(response));
}

/// Without the prefix that a gateway may leave on it.
std::string_view bare_path(const Context& context, const net::HttpRequest& request) {
  std::string_view path = request.path;
  const std::string& root = context.config.root_path;
  if (path.starts_with(root)) path.remove_prefix(root.size());
  return path;
}

/// Nobody without a key comes further; nullopt: come in. Behind the first process of an instance it is that one that
/// has the keys, and asks by the instance's secret.
std::optional<net::HttpResponse> check_key(const Context& context, const net::HttpRequest& request) {
  const std::string& secret = context.parts.bearer;
  if (!secret.empty()) {
    if (net::has_bearer(request, {secret})) return std::nullopt;
    return error_response(
        Refusal(401, "AuthenticationError", "this is a process behind the first one of its instance; ask that one"));
  }
  if (request.method == "OPTIONS" || !(needs_key(bare_path(context, request)) || needs_key(request.path)) ||
      net::has_bearer(request, context.config.api_keys))
    return std::nullopt;
  return net::HttpResponse(401, "application/json", R"({"error":"Unauthorized"})");
}

/// The client's X-Request-Id, if it is text that can stand in a header of the answer.
std::optional<std::string> id_to_echo(const net::HttpRequest& request) {
  const std::string_view id = request.headers.find("x-request-id").value_or("");
  const bool printable = std::all_of(id.begin(), id.end(), [](char c) { return c >= ' ' && c <= '~'; });
  return id.empty() || !printable ? std::nullopt : std::optional<std::string>(id);
}

std::optional<net::HttpResponse> gate(const Context& context, const net::HttpRequest& request) {
  static constexpr std::string_view kNewWork[] = {"/v1/chat/completions", "/v1/completions", "/invocations", "/health",
                                                  "/ping"};
  auto refused = check_key(context, request);
  if (!refused && is_preflight(request)) return preflight_answer(context.config, request);
  if (!refused && context.draining && request.method != "OPTIONS" &&
      std::find(std::begin(kNewWork), std::end(kNewWork), bare_path(context, request)) != std::end(kNewWork))
    refused = error_response(Refusal(503, "ServiceUnavailableError",
                                     "this instance is stopping: it finishes what it has and takes nothing new"));
  return refused;
}

/// Counts a request while it is being answered.
class UnderWay {
 public:
  explicit UnderWay(ContextPtr context) : context_(std::move(context)) { ++context_->under_way; }
  ~UnderWay() { --context_->under_way; }
  UnderWay(const UnderWay&) = delete;
  UnderWay& operator=(const UnderWay&) = delete;

 private:
  ContextPtr context_;
};

/// Keeps what a library throws inside this part: the client gets a 500, or a broken stream if it already has a head.
net::Task<void> guarded(Endpoint endpoint, ContextPtr context, ExchangePtr exchange) {
  const UnderWay counted(context);
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
  if (context_->parts.bearer.empty()) {
    server.observe(make_request_observer(context_->config, *context_->parts.metrics));
    server.stamp([context = context_](const net::HttpRequest& request, net::Headers& headers) {
      add_cors_headers(context->config, request, headers);
      if (context->config.enable_request_id_headers)
        headers.set("X-Request-Id", id_to_echo(request).value_or(context->random_hex(32)));
    });
  }
  server.gate([context = context_](const net::HttpRequest& request) { return gate(*context, request); });
  const std::string& root = context_->config.root_path;
  for (const Route& route : routes_of(context_->config)) {
    net::Handler handler = [context = context_, endpoint = route.endpoint](ExchangePtr exchange) {
      return guarded(endpoint, context, std::move(exchange));
    };
    if (route.endpoint == nullptr)
      handler = [route](ExchangePtr exchange) {
        return refuse(std::move(exchange), route.status, std::string(route.what));
      };
    // Gateways leave the prefix on paths or take it away.
    const std::string bare(route.path);
    for (const std::string& path : root.empty() ? std::vector{bare} : std::vector{bare, root + bare})
      server.route(std::string(route.method), path, handler);
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

void Service::begin_drain() { context_->draining = true; }

bool Service::drained() const {
  const engine::EngineStats stats = context_->engine().stats();
  return context_->under_way + stats.num_running + stats.num_waiting + stats.num_leased == 0;
}

}  // namespace tandem::api
