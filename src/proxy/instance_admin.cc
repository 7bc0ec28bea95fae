// SPDX-License-Identifier: Apache-2.0
#include "proxy/instance_admin.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/json.hpp>
#include <charconv>

#include "base/json.h"
#include "base/log.h"
#include "proxy/forwarding.h"
#include "proxy/json_members.h"

namespace tandem::proxy {
namespace {

using Context = std::shared_ptr<ProxyContext>;
using ExchangePtr = std::shared_ptr<net::Exchange>;

constexpr auto kAwait = boost::asio::as_tuple(boost::asio::use_awaitable);
constexpr std::size_t kMostInstances = 1024;
constexpr std::chrono::milliseconds kProbe{5000};

Status invalid(std::string message) { return {Code::kInvalidArgument, std::move(message)}; }

Result<net::Endpoint> parse_endpoint(const boost::json::value& value) {
  if (!value.is_string()) return invalid("instances: expected \"host:port\" or a list of them");
  std::string text(value.as_string().data(), value.as_string().size());
  constexpr std::string_view kTls = "https://";
  const bool tls = text.starts_with(kTls);
  if (tls) text.erase(0, kTls.size());
  const auto colon = text.rfind(':');
  std::uint16_t port = 0;
  const char* end = text.data() + text.size();
  const bool shape = colon != std::string::npos && colon > 0;
  const auto parsed = std::from_chars(shape ? text.data() + colon + 1 : end, end, port);
  if (!shape || parsed.ec != std::errc() || parsed.ptr != end || port == 0 ||
      text.find_first_of(" /\t\r\n") != std::string::npos) {
    return invalid(fmt::format("instances: '{}' is not \"host:port\"", text));
  }
  net::Endpoint endpoint(text.substr(0, colon), port);
  endpoint.tls = tls;
  return endpoint;
}

std::string names(const ProxyContext& context, Role role) {
  std::vector<std::string> quoted;
  for (const auto& instance : context.board.of(role)) quoted.push_back(json_quote(instance->name));
  return fmt::format("[{}]", fmt::join(quoted, ","));
}

net::HttpResponse report(const ProxyContext& context, std::string_view message) {
  return {200, "application/json",
          fmt::format(R"({{"message":{},"current_prefill_instances":{},"current_decode_instances":{}}})",
                      json_quote(message), names(context, Role::kPrefill), names(context, Role::kDecode))};
}

net::Task<bool> is_ready(std::shared_ptr<Instance> instance, net::Headers headers) {
  net::ClientTimeouts timeouts;
  timeouts.connect = timeouts.head = timeouts.idle = timeouts.total = kProbe;
  net::ClientRequest request("GET", "/v1/models");
  request.headers = std::move(headers);
  auto answer = co_await instance->client->send(std::move(request), timeouts, net::Cancel());
  if (!answer) co_return false;
  const int status = (*answer)->status();
  (void)co_await (*answer)->read_all(1U << 20);
  co_return status >= 200 && status < 300;
}

/// Until the instance is ready, is removed or has had its chances.
net::Task<void> wait_and_add(Context context, std::shared_ptr<Instance> instance, net::Headers headers) {
  boost::asio::steady_timer pause(context->executor);
  const auto wanted = [&] { return !context->stopping && context->board.expects(instance); };
  for (int attempt = 0; attempt < context->config.max_waiting_retries && wanted(); ++attempt) {
    if (attempt > 0) {
      pause.expires_after(context->config.waiting_retry_interval);
      co_await pause.async_wait(kAwait);
    }
    const bool ready = co_await is_ready(instance, headers);
    if (!ready) continue;
    co_await context->watch.look(instance);
    if (!wanted()) co_return;
    if (!instance->misfit.empty()) break;  // the log says why
    context->board.add(instance);
    context->watch.add(instance);
    log::info("{} {} was added", role_name(instance->role), instance->name);
    co_return;
  }
  if (!wanted()) co_return;
  context->board.give_up(instance);
  if (instance->misfit.empty())
    log::warning("{} {} was not added: it did not answer /v1/models {} times", role_name(instance->role),
                 instance->name, context->config.max_waiting_retries);
}

net::Task<void> add(Context context, ExchangePtr exchange) {
  auto change = InstanceChange::parse(exchange->request().body);
  const bool wants_tls = change && std::any_of(change->endpoints.begin(), change->endpoints.end(),
                                               [](const net::Endpoint& endpoint) { return endpoint.tls; });
  if (wants_tls && !context->board.has_tls()) change = invalid("instances: this proxy has no TLS for https instances");
  net::HttpResponse response = error_response(400, change ? "" : change.error().message());
  if (change) {
    std::vector<std::string> waiting;
    for (const auto& endpoint : change->endpoints) {
      const std::string name = endpoint.to_string();
      if (context->board.find(change->role, name)) continue;
      waiting.push_back(name);
      if (context->board.expects(change->role, name)) continue;
      auto instance = context->board.make(change->role, endpoint);
      context->board.expect(instance);
      auto headers = backend_headers(exchange->request().headers, make_uuid(), context->config);
      boost::asio::co_spawn(context->executor, wait_and_add(context, std::move(instance), std::move(headers)),
                            boost::asio::detached);
    }
    response = report(*context, waiting.empty() ? "every instance is there already"
                                                : fmt::format("waiting for {} instances {} to be ready",
                                                              role_name(change->role), fmt::join(waiting, ", ")));
  }
  (void)co_await exchange->respond(std::move(response));
}

net::Task<void> remove(Context context, ExchangePtr exchange) {
  auto change = InstanceChange::parse(exchange->request().body);
  net::HttpResponse response = error_response(400, change ? "" : change.error().message());
  if (change) {
    std::vector<std::string> removed;
    for (const auto& endpoint : change->endpoints) {
      const auto name = endpoint.to_string();
      if (context->board.remove(change->role, name)) removed.push_back(name);
    }
    for (const auto& name : removed) log::info("{} {} was removed", role_name(change->role), name);
    response = report(*context, removed.empty() ? "no such instance"
                                                : fmt::format("removed {} instances {}", role_name(change->role),
                                                              fmt::join(removed, ", ")));
  }
  (void)co_await exchange->respond(std::move(response));
}

}  // namespace

Result<InstanceChange> InstanceChange::parse(std::string_view body) {
  TANDEM_ASSIGN(const auto value, parse_json(body));
  if (!value.is_object()) return invalid("the body must be a JSON object");
  TANDEM_ASSIGN(const auto type, json_string(value.as_object(), "type"));
  InstanceChange change;
  if (type == "decode") {
    change.role = Role::kDecode;
  } else if (type != "prefill") {
    return invalid("type: expected \"prefill\" or \"decode\"");
  }
  const auto* instances = value.as_object().if_contains("instances");
  if (instances == nullptr) return invalid("instances: expected \"host:port\" or a list of them");
  if (!instances->is_array()) {
    TANDEM_ASSIGN(net::Endpoint endpoint, parse_endpoint(*instances));
    change.endpoints.push_back(std::move(endpoint));
    return change;
  }
  if (instances->as_array().size() > kMostInstances)
    return invalid(fmt::format("instances: at most {}", kMostInstances));
  for (const auto& each : instances->as_array()) {
    TANDEM_ASSIGN(net::Endpoint endpoint, parse_endpoint(each));
    change.endpoints.push_back(std::move(endpoint));
  }
  return change;
}

void add_instance_admin(net::HttpServer& server, const Context& context) {
  server.route("POST", "/instances/add", [context](ExchangePtr exchange) { return add(context, std::move(exchange)); });
  server.route("POST", "/instances/remove",
               [context](ExchangePtr exchange) { return remove(context, std::move(exchange)); });
}

}  // namespace tandem::proxy
