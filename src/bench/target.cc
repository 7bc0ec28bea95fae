// SPDX-License-Identifier: Apache-2.0
#include "bench/target.h"

#include <fmt/format.h>

#include <boost/json.hpp>

#include "base/json.h"
#include "net/http_parser.h"
#include "net/sse.h"
#include "net/tls.h"
#include "net/url.h"

namespace tandem::bench {
namespace {

namespace json = boost::json;

constexpr std::size_t kMostEventBytes = 16U << 20;
constexpr std::size_t kMostErrorBytes = 64U << 10;
constexpr std::size_t kMostModelsBytes = 4U << 20;
constexpr std::size_t kShownBytes = 500;
constexpr std::size_t kMostKept = 1U << 16;  // connections
constexpr int kOk = 200;

/// As vLLM's tool: a connection within a minute, an answer within six hours.
net::ClientTimeouts answer_timeouts() {
  net::ClientTimeouts timeouts;
  timeouts.connect = std::chrono::minutes(1);
  timeouts.head = timeouts.idle = timeouts.total = std::chrono::hours(6);
  return timeouts;
}

net::ClientTimeouts short_timeouts() {
  net::ClientTimeouts timeouts;
  timeouts.total = std::chrono::seconds(30);
  return timeouts;
}

std::string text_at(const json::object& object, std::string_view key) {
  auto text = json_string(object, key);
  return text && *text ? **text : std::string();
}

Result<std::vector<ServedModel>> parse_models(const std::string& body) {
  TANDEM_ASSIGN(const json::value value, parse_json(body));
  const json::object* object = value.if_object();
  const json::value* data = object == nullptr ? nullptr : object->if_contains("data");
  if (data == nullptr || !data->is_array()) return Status(Code::kUnavailable, "the answer has no list \"data\"");
  std::vector<ServedModel> models;
  for (const json::value& entry : data->get_array()) {
    if (!entry.is_object()) continue;
    ServedModel model{text_at(entry.get_object(), "id"), text_at(entry.get_object(), "root")};
    if (!model.id.empty()) models.push_back(std::move(model));
  }
  if (models.empty()) return Status(Code::kUnavailable, "the server names no model");
  return models;
}

}  // namespace

Result<std::unique_ptr<Target>> Target::create(const boost::asio::any_io_executor& executor,
                                               const config::BenchConfig& config) {
  auto url = net::parse_http_url(config.base_url);
  if (!url) return url.error().context("argument --base-url");
  std::shared_ptr<boost::asio::ssl::context> tls;
  if (url->endpoint.tls) {
    TANDEM_ASSIGN(tls, net::make_tls_client_context({config.tls.ca_certs, config.tls.certfile, config.tls.keyfile}));
  }
  std::unique_ptr<Target> target(new Target(config, url->target == "/" ? "" : url->target));
  net::ClientLimits limits;
  limits.max_idle_connections = kMostKept;
  // Servers close idle connections after 5 s; a request on one that is about to be closed would count its replacement.
  limits.max_idle_time = std::chrono::seconds(4);
  target->client_ = net::HttpClient::create(executor, url->endpoint, limits, std::move(tls));
  return target;
}

Target::Target(const config::BenchConfig& config, std::string prefix) : config_(config), prefix_(std::move(prefix)) {
  headers_.add("content-type", "application/json");
  if (!config.api_key.empty()) headers_.add("authorization", "Bearer " + config.api_key);
  for (const auto& [name, value] : config.headers) headers_.set(name, value);
}

net::Task<Status> Target::refusal(net::ClientResponse* response) {
  const std::string head = fmt::format("HTTP {} {}", response->status(), net::reason_phrase(response->status()));
  const auto body = co_await response->read_all(kMostErrorBytes);
  const std::string text = body ? body->substr(0, kShownBytes) : body.error().message();
  co_return Status(Code::kUnavailable, head + ": " + text);
}

net::Task<Result<void>> Target::read_stream(net::ClientResponse* response, StreamRecord* record) {
  net::SseParser parser(kMostEventBytes);
  StreamAccount account(config_.backend, *record);
  for (;;) {
    const auto piece = co_await response->read_piece();
    const auto now = std::chrono::steady_clock::now();
    if (!piece) co_return piece.error();
    if (piece->empty()) co_return account.finish();
    parser.feed(*piece);
    for (;;) {
      const auto event = parser.next();
      if (!event) co_return event.error();
      if (!*event) break;
      if (!(*event)->has_data) continue;
      if (auto taken = account.on_event((*event)->data, now); !taken) co_return taken.error();
    }
  }
}

net::Task<void> Target::ask(std::string body, std::string request_id, net::Cancel cancel, StreamRecord* record) {
  net::ClientRequest request("POST", prefix_ + config_.endpoint);
  request.headers = headers_;
  request.headers.set("x-request-id", std::move(request_id));
  request.body = std::move(body);
  const net::ClientTimeouts timeouts = answer_timeouts();
  record->start = std::chrono::steady_clock::now();
  auto response = co_await client_->send(std::move(request), timeouts, cancel);
  if (!response) {
    record->error = response.error().message();
    co_return;
  }
  record->status = (*response)->status();
  if (record->status != kOk) {
    const Status refused = co_await refusal(response->get());
    record->error = refused.message();
    co_return;
  }
  const auto read = co_await read_stream(response->get(), record);
  if (!read) record->error = read.error().message();
  if (record->output_tokens > 0 && !config_.save_detailed) record->text = std::string();
}

net::Task<Result<std::vector<ServedModel>>> Target::models(net::Cancel cancel) {
  net::ClientRequest request("GET", prefix_ + "/v1/models");
  request.headers = headers_;
  const net::ClientTimeouts timeouts = short_timeouts();
  auto response = co_await client_->send(std::move(request), timeouts, cancel);
  if (!response) co_return response.error();
  if ((*response)->status() != kOk) {
    const Status refused = co_await refusal(response->get());
    co_return refused;
  }
  const auto body = co_await (*response)->read_all(kMostModelsBytes);
  if (!body) co_return body.error();
  co_return parse_models(*body);
}

}  // namespace tandem::bench
