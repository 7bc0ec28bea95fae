// SPDX-License-Identifier: Apache-2.0
// Stands in for a decoder in layerwise mode: posts where each child's KV shall go to the metaserver it is told of, then
// answers according to what the metaserver said.
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "net/http_client.h"
#include "proxy/json_members.h"
#include "support/net_stand_in.h"

namespace tandem::proxy {

/// Members that a proxy must pass on untouched: one it does not know, and a number that no double can hold.
inline const std::string kDestination =
    R"("do_remote_prefill":false,"do_remote_decode":true,"remote_block_ids":[[5, 6],[7]],"remote_engine_id":"d-0",)"
    R"("remote_host":"192.0.2.3","remote_port":30203,"unknown":{"big":18446744073709551615,"x":1.10}})";

class PushDecoder {
 public:
  struct Post {
    std::string id, body;
    int status = 0;  ///< 0: no answer yet, -1: none came
    std::string answer;
  };
  enum class Then : std::uint8_t {
    kAnswer,        ///< events once all posts have 200, else a 500
    kIgnoreStatus,  ///< as real ones: events if all have 200, else nothing ever
    kHang,          ///< never answers
    kBreak,         ///< closes the connection
    kBreakInStream,
    kRefuse,  ///< 400
  };

  explicit PushDecoder(test::IoThread& io, std::uint16_t port = 0) : io_(io) {
    io_.call([this, port] {
      server_ = net::HttpServer::create(io_.executor(), net::ServerLimits());
      for (const char* path : {"/v1/completions", "/v1/chat/completions"}) {
        server_->route("POST", path, [this](std::shared_ptr<net::Exchange> exchange) { return serve(exchange); });
      }
      server_->route("GET", "/tandem/info", [this](std::shared_ptr<net::Exchange> exchange) { return info(exchange); });
      port_ = *server_->listen("127.0.0.1", port);
    });
  }
  ~PushDecoder() {
    io_.run(server_->stop(std::chrono::milliseconds(0)));
    io_.call([this] { server_.reset(); });
  }
  PushDecoder(const PushDecoder&) = delete;
  PushDecoder& operator=(const PushDecoder&) = delete;

  std::uint16_t port() const { return port_; }

  // Set before requests come.
  Then then = Then::kAnswer;
  bool ours = true;  ///< answers /tandem/info
  std::string connector = "MooncakeLayerwiseConnector";
  int num_children = 1;
  bool posts = true;
  bool post_twice = false;
  bool post_late = false;              ///< only after the client's request was dropped
  std::chrono::milliseconds delay{0};  ///< before the posts
  std::chrono::milliseconds info_delay{0};
  std::vector<std::pair<std::string, std::string>> headers;

  std::vector<Post> all_posts() const {
    const std::lock_guard lock(mutex_);
    return posts_;
  }
  std::vector<net::HttpRequest> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }
  int num_gone() const { return num_gone_; }

 private:
  static constexpr auto kAwait = boost::asio::as_tuple(boost::asio::use_awaitable);

  net::Task<void> info(std::shared_ptr<net::Exchange> exchange) {
    net::HttpResponse response(ours ? 200 : 404, "application/json",
                               fmt::format(R"({{"kv_connector":"{}","kv_role":"kv_consumer"}})", connector));
    if (info_delay.count() > 0) co_await rest(info_delay);
    (void)co_await exchange->respond(std::move(response));
  }

  net::Task<void> post(std::string url, std::size_t slot) {
    const std::string rest = url.substr(std::string("http://").size());
    const auto slash = rest.find('/');
    const auto colon = rest.rfind(':', slash);
    const auto port = static_cast<std::uint16_t>(std::stoi(rest.substr(colon + 1, slash - colon - 1)));
    const auto client = net::HttpClient::create(io_.executor(), net::Endpoint(rest.substr(0, colon), port), {});
    net::ClientRequest request("POST", rest.substr(slash));
    {
      const std::lock_guard lock(mutex_);
      request.body = posts_[slot].body;
    }
    auto answer = co_await client->send(std::move(request), net::ClientTimeouts(), net::Cancel());
    std::string text;
    int status = -1;
    if (answer) {
      auto body = co_await (*answer)->read_all(1U << 20);
      status = (*answer)->status();
      if (body) text = *body;
    }
    const std::lock_guard lock(mutex_);
    posts_[slot].status = status;
    posts_[slot].answer = text;
  }

  bool over(std::size_t from, std::size_t to) const {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = from; i < to; ++i) {
      if (posts_[i].status == 0) return false;
    }
    return true;
  }
  bool good(std::size_t from, std::size_t to) const {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = from; i < to; ++i) {
      if (posts_[i].status != 200) return false;
    }
    return true;
  }

  net::Task<void> rest(std::chrono::milliseconds time) {
    boost::asio::steady_timer timer(io_.executor());
    timer.expires_after(time);
    co_await timer.async_wait(kAwait);
  }

  net::Task<void> wait_for_client_gone(std::shared_ptr<net::Exchange> exchange) {
    while (!exchange->client_gone()) co_await rest(std::chrono::milliseconds(2));
    ++num_gone_;
  }

  void start_posts(const net::HttpRequest& request, const std::string& url) {
    const bool chat = request.path == "/v1/chat/completions";
    const std::string base(request.headers.find("x-request-id").value_or(""));
    for (int child = 0; child < num_children * (post_twice ? 2 : 1); ++child) {
      Post item;
      item.id = chat ? "chatcmpl-" + base : fmt::format("cmpl-{}-{}", base, child % num_children);
      item.body = fmt::format(R"({{"token_ids":[],"request_id":"{}",{})", item.id, kDestination);
      std::size_t slot = 0;
      {
        const std::lock_guard lock(mutex_);
        slot = posts_.size();
        posts_.push_back(item);
      }
      boost::asio::co_spawn(io_.executor(), post(url, slot), boost::asio::detached);
    }
  }

  net::Task<void> serve(std::shared_ptr<net::Exchange> exchange) {
    const auto& request = exchange->request();
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(request);
    }
    const auto body = JsonMembers::parse(request.body);
    const auto params = JsonMembers::parse(std::string(body->find("kv_transfer_params").value_or("{}")));
    const std::string quoted(params->find("metaserver").value_or("\"\""));
    const std::string url = quoted.substr(1, quoted.size() - 2);
    if (delay.count() > 0) co_await rest(delay);
    if (post_late) co_await wait_for_client_gone(exchange);
    const std::size_t from = all_posts().size();
    if (posts) start_posts(request, url);
    const std::size_t to = all_posts().size();
    if (then == Then::kHang || then == Then::kIgnoreStatus || then == Then::kAnswer) {
      while (!over(from, to) && !exchange->client_gone()) co_await rest(std::chrono::milliseconds(2));
    } else {
      co_await rest(std::chrono::milliseconds(50));
    }
    co_await answer(exchange, good(from, to));
  }

  net::Task<void> answer(std::shared_ptr<net::Exchange> exchange, bool all_good) {
    if (then == Then::kBreak) {
      exchange->abandon();
    } else if (then == Then::kRefuse) {
      net::HttpResponse response(400, "application/json", R"({"error":{"message":"no"}})");
      (void)co_await exchange->respond(std::move(response));
    } else if (then == Then::kHang || (then == Then::kIgnoreStatus && !all_good) || exchange->client_gone()) {
      co_await wait_for_client_gone(exchange);
    } else if (!all_good) {
      net::HttpResponse response(500, "application/json", R"({"error":{"message":"no KV came"}})");
      (void)co_await exchange->respond(std::move(response));
    } else {
      net::Headers fields;
      for (const auto& [name, value] : headers) fields.add(name, value);
      fields.add("content-type", "text/event-stream; charset=utf-8");
      (void)co_await exchange->begin_stream(200, std::move(fields));
      std::string event = "data: {\"choices\":[{\"text\":\"Par\"}]}\n\n";
      (void)co_await exchange->write(std::move(event));
      if (then == Then::kBreakInStream) {
        exchange->abandon();
        co_return;
      }
      std::string done = "data: [DONE]\n\n";
      (void)co_await exchange->write(std::move(done));
      (void)co_await exchange->end_stream();
    }
  }

  test::IoThread& io_;
  std::unique_ptr<net::HttpServer> server_;
  std::uint16_t port_ = 0;
  mutable std::mutex mutex_;
  std::vector<Post> posts_;
  std::vector<net::HttpRequest> requests_;
  std::atomic<int> num_gone_{0};
};

}  // namespace tandem::proxy
