// SPDX-License-Identifier: Apache-2.0
#include "proxy/endpoints.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/json.hpp>

#include "base/json.h"
#include "config/version.h"
#include "net/relay.h"
#include "proxy/forwarding.h"
#include "proxy/json_members.h"

namespace tandem::proxy {
namespace {

using Context = std::shared_ptr<ProxyContext>;
using ExchangePtr = std::shared_ptr<net::Exchange>;

constexpr auto kAwait = boost::asio::as_tuple(boost::asio::use_awaitable);
constexpr std::chrono::seconds kModelsTimeout{3};
constexpr std::chrono::seconds kHealthTimeout{1};
constexpr std::chrono::seconds kResetTimeout{30};
constexpr std::chrono::seconds kTokenizeTimeout{30};
constexpr std::size_t kMostBody = 64U << 20;

net::ClientTimeouts within(std::chrono::milliseconds limit, const config::ProxyConfig& config) {
  net::ClientTimeouts timeouts;
  timeouts.connect = std::min(limit, config.connect_timeout);
  timeouts.head = timeouts.idle = timeouts.total = limit;
  return timeouts;
}

/// Silent ones last: whoever asks one after the other does not wait for them first.
std::vector<std::shared_ptr<Instance>> all_instances(const ProxyContext& context) {
  auto all = context.board.of(Role::kPrefill);
  const auto& decoders = context.board.of(Role::kDecode);
  all.insert(all.end(), decoders.begin(), decoders.end());
  std::stable_partition(all.begin(), all.end(), [](const auto& instance) { return !instance->silent; });
  return all;
}

net::ClientRequest same_request(const ProxyContext& context, const net::HttpRequest& from) {
  // The answer to HEAD has the length of GET's.
  net::ClientRequest request(from.method == "HEAD" ? "GET" : from.method,
                             from.query.empty() ? from.path : from.path + "?" + from.query);
  const auto id = from.headers.find("x-request-id");
  request.headers = backend_headers(from.headers, id ? std::string(*id) : make_uuid(), context.config);
  request.body = from.body;
  return request;
}

struct WholeAnswer {
  int status = 0;  ///< 0: none
  net::Headers headers;
  std::string body;
  std::string problem;
};

net::Task<WholeAnswer> ask(std::shared_ptr<Instance> instance, net::ClientRequest request, net::ClientTimeouts timeouts,
                           net::Cancel cancel) {
  WholeAnswer whole;
  auto answer = co_await instance->client->send(std::move(request), timeouts, cancel);
  if (!answer) {
    whole.problem = answer.error().message();
    co_return whole;
  }
  whole.headers = (*answer)->headers();
  auto body = co_await (*answer)->read_all(kMostBody);
  if (!body) {
    whole.problem = body.error().message();
    co_return whole;
  }
  whole.status = (*answer)->status();
  whole.body = std::move(*body);
  if (whole.status >= 300) whole.problem = fmt::format("{}: status {}", instance->name, whole.status);
  co_return whole;
}

/// The same request to several instances at once.
struct FanOut {
  explicit FanOut(const boost::asio::any_io_executor& executor) : changed(executor) {}
  std::vector<WholeAnswer> answers;
  std::size_t missing = 0;
  boost::asio::steady_timer changed;
};

net::Task<void> ask_one(std::shared_ptr<FanOut> fan, std::size_t slot, std::shared_ptr<Instance> instance,
                        net::ClientRequest request, net::ClientTimeouts timeouts) {
  WholeAnswer answer = co_await ask(std::move(instance), std::move(request), timeouts, net::Cancel());
  fan->answers[slot] = std::move(answer);
  --fan->missing;
  fan->changed.cancel();
}

net::Task<std::vector<WholeAnswer>> ask_all(Context context, std::vector<std::shared_ptr<Instance>> instances,
                                            net::ClientRequest request, std::chrono::milliseconds limit) {
  const auto fan = std::make_shared<FanOut>(context->executor);
  fan->answers.resize(instances.size());
  fan->missing = instances.size();
  const auto timeouts = within(limit, context->config);
  for (std::size_t i = 0; i < instances.size(); ++i) {
    boost::asio::co_spawn(context->executor, ask_one(fan, i, instances[i], request, timeouts), boost::asio::detached);
  }
  while (fan->missing > 0) {  // every ask has its deadline
    fan->changed.expires_at(TimePoint::max());
    co_await fan->changed.async_wait(kAwait);
  }
  co_return std::move(fan->answers);
}

/// An instance's description as the proxy's: without what is for proxies only, with what the proxy adds.
std::string describe_proxy(std::string instance) {
  namespace json = boost::json;
  auto parsed = parse_json(instance);
  json::value* paths = parsed && parsed->is_object() ? parsed->get_object().if_contains("paths") : nullptr;
  if (paths == nullptr || !paths->is_object()) return instance;
  json::object& all = paths->get_object();
  for (const char* path : {"/tandem/release", "/tandem/info"}) all.erase(path);  // an instance's
  const auto add = [&all](const char* method, const char* path, const char* what) {
    all[path] = {{method, {{"summary", what}, {"responses", {{"200", {{"description", "the answer"}}}}}}}};
  };
  add("get", "/tandem/info", "that this is a proxy");
  add("get", "/healthcheck", "200 and the number of instances");
  add("post", "/instances/add", "adds prefillers or decoders");
  add("post", "/instances/remove", "removes prefillers or decoders");
  add("post", "/v1/metaserver", "for decoders: where KV shall be pushed");
  return json::serialize(*parsed);
}

/// Asks one instance after the other until one's answer is good, and passes that on. Else what was wrong with each;
/// nullopt if the client has its answer or is gone.
net::Task<std::optional<std::vector<std::string>>> pass_on_first(Context context, ExchangePtr exchange,
                                                                 std::chrono::seconds limit, bool (*good)(int status)) {
  const bool describes = exchange->request().path == "/openapi.json";
  std::vector<std::string> problems;
  net::Cancel cancel;
  exchange->on_client_gone([cancel]() mutable { cancel.cancel(); });
  for (const auto& instance : all_instances(*context)) {
    net::ClientRequest request = same_request(*context, exchange->request());
    const auto timeouts = within(limit, context->config);
    auto answer = co_await ask(instance, std::move(request), timeouts, cancel);
    if (cancel.cancelled()) co_return std::nullopt;
    if (answer.status != 0 && good(answer.status)) {
      if (describes && answer.status == 200) answer.body = describe_proxy(std::move(answer.body));
      co_await net::relay_whole(exchange, answer.status, std::move(answer.headers), std::move(answer.body));
      co_return std::nullopt;
    }
    problems.push_back(std::move(answer.problem));
  }
  co_return problems;
}

constexpr int kNotImplemented = 501;
bool lists_models(int status) { return status < 300 || status == 401 || status == 403; }
bool is_an_answer(int status) { return status < 500 || status == kNotImplemented; }

net::Task<void> models(Context context, ExchangePtr exchange) {
  auto failed = co_await pass_on_first(context, exchange, kModelsTimeout, lists_models);
  if (!failed) co_return;
  for (auto& problem : *failed) problem = json_quote(problem);
  auto response = error_response(503, "no instance answered /v1/models");
  response.body.pop_back();
  response.body += fmt::format(R"(,"failed":[{}]}})", fmt::join(*failed, ","));
  (void)co_await exchange->respond(std::move(response));
}

net::Task<void> healthcheck(Context context, ExchangePtr exchange) {
  net::HttpResponse response(
      200, "application/json",
      fmt::format(R"({{"status":"ok","prefill_instances":{},"decode_instances":{}}})",
                  context->board.of(Role::kPrefill).size(), context->board.of(Role::kDecode).size()));
  (void)co_await exchange->respond(std::move(response));
}

using Instances = std::vector<std::shared_ptr<Instance>>;

/// Of those that answer and fit: why none of them can serve a request together; empty if two can. `problems`: of the
/// others.
std::string what_is_missing(const ProxyContext& context, const Instances& prefillers, const Instances& decoders,
                            std::vector<std::string> problems) {
  for (const Role role : {Role::kPrefill, Role::kDecode}) {
    const std::string_view name = role == Role::kPrefill ? "prefiller" : "decoder";
    if (context.board.of(role).empty()) return fmt::format("no {} is configured", name);
    if ((role == Role::kPrefill ? prefillers : decoders).empty())
      return fmt::format("no {} answers: {}", name, fmt::join(problems, "; "));
  }
  for (const auto& prefiller : prefillers) {
    for (const auto& decoder : decoders) {
      const bool known = prefiller->connector && decoder->connector;
      if (!known || prefiller->connector == decoder->connector) return "";
    }
  }
  for (const auto* instances : {&prefillers, &decoders}) {
    for (const auto& instance : *instances)
      problems.push_back(fmt::format("{} runs {}", title(*instance), connector_name(*instance->connector)));
  }
  return fmt::format("no prefiller has the connector of a decoder: {}", fmt::join(problems, "; "));
}

net::Task<void> health(Context context, ExchangePtr exchange) {
  const auto instances = all_instances(*context);
  std::vector<WholeAnswer> answers;
  if (!context->stopping) {
    net::ClientRequest probe("GET", "/health");
    answers = co_await ask_all(context, instances, std::move(probe), kHealthTimeout);
  }
  Instances prefillers;
  Instances decoders;
  std::vector<std::string> problems;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const auto& instance = instances[i];
    if (!instance->misfit.empty()) {
      problems.push_back(instance->misfit);
    } else if (answers[i].status >= 200 && answers[i].status < 300) {
      (instance->role == Role::kPrefill ? prefillers : decoders).push_back(instance);
    } else {
      problems.push_back(with_problem(*instance, answers[i].problem));
    }
  }
  const std::string missing = what_is_missing(*context, prefillers, decoders, std::move(problems));
  net::HttpResponse response(200, "application/json", "");
  if (context->stopping) {
    response = error_response(503, "the proxy is stopping");
  } else if (!missing.empty()) {
    response = error_response(503, fmt::format("not ready, {}", missing));
  }
  (void)co_await exchange->respond(std::move(response));
}

net::Task<void> reset_prefix_cache(Context context, ExchangePtr exchange) {
  const auto instances = all_instances(*context);
  net::ClientRequest request = same_request(*context, exchange->request());
  const auto answers = co_await ask_all(context, instances, std::move(request), kResetTimeout);
  std::vector<std::string> failed;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    if (answers[i].status < 200 || answers[i].status >= 300) failed.push_back(json_quote(answers[i].problem));
  }
  net::HttpResponse response(200, "application/json", "");
  if (!failed.empty()) {
    response.status = 500;
    response.body = fmt::format(R"({{"failed":[{}]}})", fmt::join(failed, ","));
  }
  (void)co_await exchange->respond(std::move(response));
}

/// What any instance knows (/tokenize) or refuses; the first that answers at all is right.
net::Task<void> any_instance(Context context, ExchangePtr exchange) {
  const auto problems = co_await pass_on_first(context, exchange, kTokenizeTimeout, is_an_answer);
  if (!problems) co_return;
  auto response = error_response(503, fmt::format("no instance could answer. Tried: {}", fmt::join(*problems, "; ")));
  (void)co_await exchange->respond(std::move(response));
}

net::Task<void> version(Context, ExchangePtr exchange) {
  net::HttpResponse response(200, "application/json", fmt::format(R"({{"version":"{}"}})", config::version()));
  (void)co_await exchange->respond(std::move(response));
}

/// By this other proxies know that this is no instance.
net::Task<void> info(Context, ExchangePtr exchange) {
  net::HttpResponse response(200, "application/json",
                             fmt::format(R"({{"proxy":true,"version":"{}"}})", config::version()));
  (void)co_await exchange->respond(std::move(response));
}

net::Task<void> load(Context context, ExchangePtr exchange) {
  net::HttpResponse response(200, "application/json", fmt::format(R"({{"server_load":{}}})", context->inflight));
  (void)co_await exchange->respond(std::move(response));
}

net::Task<void> metrics(Context context, ExchangePtr exchange) {
  const obs::Format format = obs::format_for(exchange->request().headers.find("accept").value_or(""));
  net::HttpResponse response(200, std::string(obs::content_type(format)), context->metrics.registry.expose(format));
  (void)co_await exchange->respond(std::move(response));
}

}  // namespace

void add_endpoints(net::HttpServer& server, const Context& context) {
  const auto route = [&](const char* method, const char* path, net::Task<void> (*handler)(Context, ExchangePtr)) {
    server.route(method, path,
                 [context, handler](ExchangePtr exchange) { return handler(context, std::move(exchange)); });
  };
  // Browsers ask before they post; what they may is the instances' to say.
  const auto add = [&](const char* method, const char* path, net::Task<void> (*handler)(Context, ExchangePtr)) {
    route(method, path, handler);
    route("OPTIONS", path, any_instance);
  };
  add("GET", "/v1/models", models);
  add("GET", "/healthcheck", healthcheck);
  add("GET", "/health", health);
  add("GET", "/ping", health);
  add("POST", "/ping", health);
  add("GET", "/tandem/info", info);
  add("GET", "/load", load);
  add("GET", "/version", version);
  add("GET", "/metrics", metrics);
  add("POST", "/reset_prefix_cache", reset_prefix_cache);
  add("GET", "/metrics/", metrics);
  for (const char* path : {"/tokenizer_info", "/server_info", "/is_sleeping", "/openapi.json", "/docs", "/redoc"})
    add("GET", path, any_instance);
  for (const char* path : {"/tokenize", "/detokenize", "/sleep", "/wake_up", "/collective_rpc", "/scale_elastic_ep",
                           "/is_scaling_elastic_ep", "/v1/embeddings", "/pooling", "/classify", "/score", "/v1/score",
                           "/rerank", "/v1/rerank", "/v2/rerank", "/v1/responses", "/v1/audio/transcriptions",
                           "/v1/audio/translations", "/v1/audio/speech"})
    add("POST", path, any_instance);
  for (const char* path : {"/v1/completions", "/v1/chat/completions", "/invocations"})
    route("OPTIONS", path, any_instance);
}

}  // namespace tandem::proxy
