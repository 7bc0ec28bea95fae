// SPDX-License-Identifier: Apache-2.0
#include "support/net_stand_in.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <stdexcept>

namespace tandem::test {
namespace {

constexpr auto kAwait = boost::asio::as_tuple(boost::asio::use_awaitable);

/// Ends early when the client leaves.
net::Task<void> sleep_for(std::shared_ptr<net::Exchange> exchange, std::chrono::milliseconds time) {
  auto timer = std::make_shared<boost::asio::steady_timer>(exchange->executor());
  timer->expires_after(time);
  exchange->on_client_gone([timer] { timer->cancel(); });
  if (!exchange->client_gone()) co_await timer->async_wait(kAwait);
  exchange->on_client_gone(nullptr);
}

}  // namespace

Behaviour json_answer(std::string body) {
  Behaviour behaviour;
  behaviour.body = std::move(body);
  return behaviour;
}

Behaviour error_answer(int status, std::string body) {
  Behaviour behaviour = json_answer(std::move(body));
  behaviour.status = status;
  return behaviour;
}

Behaviour event_stream(std::vector<std::string> pieces) {
  Behaviour behaviour;
  behaviour.type = "text/event-stream; charset=utf-8";
  behaviour.pieces = std::move(pieces);
  return behaviour;
}

Behaviour hang() {
  Behaviour behaviour;
  behaviour.end = Behaviour::End::kHang;
  return behaviour;
}

StandIn::StandIn(IoThread& io, Behaviour usual) : io_(io), usual_(std::move(usual)) {
  io_.call([this] {
    server_ = net::HttpServer::create(io_.executor(), net::ServerLimits());
    using Method = net::Task<void> (StandIn::*)(std::shared_ptr<net::Exchange>);
    const auto add = [this](const char* verb, const char* path, Method method) {
      server_->route(verb, path, [this, method](std::shared_ptr<net::Exchange> exchange) {
        return (this->*method)(std::move(exchange));
      });
    };
    add("POST", "/v1/completions", &StandIn::complete);
    add("POST", "/v1/chat/completions", &StandIn::complete);
    add("POST", "/tandem/release", &StandIn::release);
    add("GET", "/tandem/info", &StandIn::info);
    for (const char* path : {"/v1/models", "/health"}) add("GET", path, &StandIn::other);
    for (const char* path : {"/reset_prefix_cache", "/tokenize", "/detokenize"}) add("POST", path, &StandIn::other);
    const auto port = server_->listen("127.0.0.1", 0);
    if (!port) throw std::runtime_error(port.error().message());
    port_ = *port;
  });
}

StandIn::~StandIn() {
  io_.run(server_->stop(std::chrono::milliseconds(0)));
  io_.call([this] { server_.reset(); });
}

void StandIn::set_usual(Behaviour usual) {
  const std::lock_guard lock(mutex_);
  usual_ = std::move(usual);
}
void StandIn::then(Behaviour behaviour) {
  const std::lock_guard lock(mutex_);
  next_.push_back(std::move(behaviour));
}
void StandIn::set_connector(std::string name, std::string kv_role) {
  const std::lock_guard lock(mutex_);
  connector_ = std::move(name);
  kv_role_ = std::move(kv_role);
}
void StandIn::set_release_status(std::deque<int> statuses) {
  const std::lock_guard lock(mutex_);
  release_statuses_ = std::move(statuses);
}
std::vector<net::HttpRequest> StandIn::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}
std::vector<net::HttpRequest> StandIn::releases() const {
  const std::lock_guard lock(mutex_);
  return releases_;
}
std::vector<net::HttpRequest> StandIn::others() const {
  const std::lock_guard lock(mutex_);
  return others_;
}
void StandIn::set_models(std::string body) {
  const std::lock_guard lock(mutex_);
  models_ = std::move(body);
}
int StandIn::num_models_asked() const {
  const std::lock_guard lock(mutex_);
  return num_models_asked_;
}
int StandIn::num_active() const {
  const std::lock_guard lock(mutex_);
  return active_;
}
int StandIn::num_gone() const {
  const std::lock_guard lock(mutex_);
  return gone_;
}

net::Task<void> StandIn::complete(std::shared_ptr<net::Exchange> exchange) {
  Behaviour behaviour;
  {
    const std::lock_guard lock(mutex_);
    requests_.push_back(exchange->request());
    ++active_;
    behaviour = usual_;
    if (!next_.empty()) {
      behaviour = std::move(next_.front());
      next_.pop_front();
    }
  }
  co_await play(exchange, std::move(behaviour));
  const std::lock_guard lock(mutex_);
  --active_;
  if (exchange->client_gone()) ++gone_;
}

net::Task<void> StandIn::play(std::shared_ptr<net::Exchange> exchange, Behaviour behaviour) {
  if (behaviour.delay.count() > 0) co_await sleep_for(exchange, behaviour.delay);
  net::Headers headers;
  for (const auto& [name, value] : behaviour.headers) headers.add(name, value);
  if (behaviour.pieces.empty()) {
    if (behaviour.end == Behaviour::End::kBreak) {
      exchange->abandon();
    } else if (behaviour.end == Behaviour::End::kHang) {
      co_await sleep_for(exchange, std::chrono::seconds(30));
    } else {
      net::HttpResponse response(behaviour.status, behaviour.type, behaviour.body);
      response.headers = headers;
      (void)co_await exchange->respond(std::move(response));
    }
    co_return;
  }
  headers.add("content-type", behaviour.type);
  if (behaviour.content_length > 0) headers.add("content-length", std::to_string(behaviour.content_length));
  (void)co_await exchange->begin_stream(behaviour.status, std::move(headers));
  for (std::string piece : behaviour.pieces) {
    const auto written = co_await exchange->write(std::move(piece));
    if (!written) co_return;
    if (behaviour.gap.count() > 0) co_await sleep_for(exchange, behaviour.gap);
  }
  if (behaviour.end == Behaviour::End::kHang) co_await sleep_for(exchange, std::chrono::seconds(30));
  if (behaviour.end == Behaviour::End::kBreak) {
    exchange->abandon();
  } else {
    (void)co_await exchange->end_stream();
  }
}

net::Task<void> StandIn::release(std::shared_ptr<net::Exchange> exchange) {
  int status = 200;
  {
    const std::lock_guard lock(mutex_);
    releases_.push_back(exchange->request());
    if (!release_statuses_.empty()) {
      status = release_statuses_.front();
      release_statuses_.pop_front();
    }
  }
  net::HttpResponse response(status, "application/json", "{}");
  (void)co_await exchange->respond(std::move(response));
}

net::Task<void> StandIn::info(std::shared_ptr<net::Exchange> exchange) {
  net::HttpResponse response(404, "application/json", R"({"detail":"Not Found"})");
  {
    const std::lock_guard lock(mutex_);
    if (!connector_.empty()) {
      response = {200, "application/json", R"({"kv_connector":")" + connector_ + R"(","kv_role":")" + kv_role_ + "\"}"};
    }
  }
  (void)co_await exchange->respond(std::move(response));
}

net::Task<void> StandIn::other(std::shared_ptr<net::Exchange> exchange) {
  const auto& path = exchange->request().path;
  net::HttpResponse response(200, "application/json", "{\"from\":\"" + name() + "\"}");
  {
    const std::lock_guard lock(mutex_);
    if (path == "/v1/models") {
      ++num_models_asked_;
      if (!models_.empty()) response.body = models_;
    } else if (path != "/health") {
      others_.push_back(exchange->request());
    }
  }
  (void)co_await exchange->respond(std::move(response));
}

}  // namespace tandem::test
