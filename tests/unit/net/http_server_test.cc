// SPDX-License-Identifier: Apache-2.0
#include "net/http_server.h"

#include <gtest/gtest.h>

#include <atomic>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <stdexcept>

#include "support/net_support.h"

namespace tandem::net {
namespace {

using test::body_of;
using test::eventually;
using test::head_of;
using test::IoThread;
using test::post_text;
using test::RawClient;
using test::status_of;
using namespace std::chrono_literals;

class HttpServerTest : public testing::Test {
 protected:
  HttpServerTest() {
    ServerLimits limits;
    limits.max_header_bytes = 8U << 10;
    limits.max_body_bytes = 1U << 20;
    limits.header_timeout = 1s;
    limits.keep_alive_timeout = 2s;
    limits.write_timeout = 1s;
    limits.max_connections = 8;
    start(limits);
  }

  void start(const ServerLimits& limits) {
    server_ = io_.call([&] { return HttpServer::create(io_.executor(), limits); });
    using Method = Task<void> (HttpServerTest::*)(std::shared_ptr<Exchange>);
    const auto add = [this](const char* method, const char* path, Method handler) {
      server_->route(method, path, [this, handler](std::shared_ptr<Exchange> exchange) {
        return (this->*handler)(std::move(exchange));
      });
    };
    add("POST", "/echo", &HttpServerTest::echo);
    add("GET", "/echo", &HttpServerTest::echo);
    add("POST", "/stream", &HttpServerTest::stream);
    add("GET", "/stream", &HttpServerTest::stream);
    add("POST", "/hang", &HttpServerTest::hang);
    add("GET", "/throw", &HttpServerTest::throw_it);
    add("GET", "/silent", &HttpServerTest::silent);
    add("GET", "/half", &HttpServerTest::half);
    add("GET", "/flood", &HttpServerTest::flood);
    add("GET", "/sized", &HttpServerTest::sized);
    add("GET", "/short", &HttpServerTest::short_body);
    auto port = io_.call([this] { return server_->listen("127.0.0.1", 0); });
    ASSERT_TRUE(port) << port.error().to_string();
    port_ = *port;
  }

  ~HttpServerTest() override {
    io_.run(server_->stop(500ms));
    io_.call([this] { server_.reset(); });
  }

  Task<void> echo(std::shared_ptr<Exchange> exchange) {
    HttpResponse response(200, "text/plain",
                          exchange->request().method + " " + exchange->request().path + "?" +
                              exchange->request().query + " " + exchange->request().body);
    response.headers.add("x-evil", "a\r\nInjected: yes");
    (void)co_await exchange->respond(std::move(response));
  }
  Task<void> stream(std::shared_ptr<Exchange> exchange) {
    Headers headers;
    headers.add("content-type", "text/event-stream");
    (void)co_await exchange->begin_stream(200, std::move(headers));
    for (int i = 0; i < 3; ++i) {
      std::string event = "data: " + std::to_string(i) + "\n\n";
      (void)co_await exchange->write(std::move(event));
    }
    (void)co_await exchange->end_stream();
  }
  Task<void> hang(std::shared_ptr<Exchange> exchange) {
    auto timer = std::make_shared<boost::asio::steady_timer>(exchange->executor());
    timer->expires_after(15s);
    ++hanging_;
    exchange->on_client_gone([this, timer] {
      ++gone_calls_;
      timer->cancel();
    });
    co_await timer->async_wait(boost::asio::as_tuple(boost::asio::use_awaitable));
    write_after_gone_ok_ = false;
    HttpResponse response(200, "text/plain", "late");
    const auto sent = co_await exchange->respond(std::move(response));
    write_after_gone_ok_ = sent.has_value();
    --hanging_;
  }
  Task<void> throw_it(std::shared_ptr<Exchange>) {
    throw std::runtime_error("secret detail");
    co_return;
  }
  Task<void> silent(std::shared_ptr<Exchange>) { co_return; }
  Task<void> half(std::shared_ptr<Exchange> exchange) {
    Headers headers;
    (void)co_await exchange->begin_stream(200, std::move(headers));
    std::string piece = "begun";
    (void)co_await exchange->write(std::move(piece));
  }
  Task<void> flood(std::shared_ptr<Exchange> exchange) {
    Headers headers;
    (void)co_await exchange->begin_stream(200, std::move(headers));
    for (;;) {
      std::string piece(1U << 20, 'x');
      const auto written = co_await exchange->write(std::move(piece));
      if (!written) break;
    }
    ++floods_ended_;
  }
  Task<void> sized(std::shared_ptr<Exchange> exchange) {
    Headers headers;
    headers.add("Content-Length", "6");
    (void)co_await exchange->begin_stream(200, std::move(headers));
    std::string piece = "abc";
    (void)co_await exchange->write(piece);
    (void)co_await exchange->write(piece);
    (void)co_await exchange->end_stream();
  }
  Task<void> short_body(std::shared_ptr<Exchange> exchange) {
    Headers headers;
    headers.add("Content-Length", "6");
    (void)co_await exchange->begin_stream(200, std::move(headers));
    std::string piece = "abc";
    (void)co_await exchange->write(std::move(piece));
    (void)co_await exchange->end_stream();
  }

  IoThread io_;
  std::unique_ptr<HttpServer> server_;
  std::uint16_t port_ = 0;
  std::atomic<int> hanging_{0};
  std::atomic<int> gone_calls_{0};
  std::atomic<int> floods_ended_{0};
  std::atomic<bool> write_after_gone_ok_{true};
};

TEST_F(HttpServerTest, KeepsTheConnectionAndAnswersInOrder) {
  RawClient client(port_);
  for (int i = 0; i < 3; ++i) {
    client.send(post_text("/echo?q=" + std::to_string(i), "body"));
    const auto response = client.read_response();
    EXPECT_EQ(status_of(response), 200);
    EXPECT_EQ(body_of(response), "POST /echo?q=" + std::to_string(i) + " body");
    EXPECT_NE(response.find("x-evil: aInjected: yes\r\n"), std::string::npos) << "header injection";
  }
  client.send(post_text("/echo", "1") + post_text("/stream", "2") + post_text("/echo", "3"));
  EXPECT_EQ(body_of(client.read_response()), "POST /echo? 1");
  EXPECT_EQ(body_of(client.read_response()), "data: 0\n\ndata: 1\n\ndata: 2\n\n");
  EXPECT_EQ(body_of(client.read_response()), "POST /echo? 3");
  EXPECT_EQ(server_->num_connections(), 1U);
}

TEST_F(HttpServerTest, OneChunkAWrite) {
  RawClient client(port_);
  client.send("GET /stream HTTP/1.1\r\n\r\n");
  const auto response = client.read_response();
  EXPECT_NE(response.find("\r\n\r\n9\r\ndata: 0\n\n\r\n9\r\ndata: 1\n\n\r\n9\r\ndata: 2\n\n\r\n0\r\n\r\n"),
            std::string::npos)
      << response;
}

TEST_F(HttpServerTest, Http10AndConnectionClose) {
  RawClient old(port_);
  old.send("GET /stream HTTP/1.0\r\n\r\n");
  const auto response = old.read_all();
  EXPECT_EQ(response.find("chunked"), std::string::npos);
  EXPECT_EQ(response.substr(response.find("\r\n\r\n") + 4), "data: 0\n\ndata: 1\n\ndata: 2\n\n");

  RawClient kept(port_);
  kept.send("GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_NE(kept.read_response().find("connection: keep-alive"), std::string::npos);

  RawClient closing(port_);
  closing.send("GET /echo HTTP/1.1\r\nConnection: close\r\n\r\n");
  EXPECT_NE(closing.read_all().find("connection: close"), std::string::npos);
  EXPECT_TRUE(closing.closed_by_peer());
}

TEST_F(HttpServerTest, HeadHasNoBody) {
  RawClient client(port_);
  client.send("HEAD /echo HTTP/1.1\r\n\r\nGET /echo HTTP/1.1\r\n\r\n");
  const auto head = client.read_until("\r\n\r\n");
  EXPECT_NE(head.find("content-length: 12\r\n"), std::string::npos) << head;
  EXPECT_EQ(body_of(client.read_response()), "GET /echo? ");
}

TEST_F(HttpServerTest, ExpectContinueAndChunkedBodies) {
  RawClient client(port_);
  client.send("POST /echo HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
  EXPECT_EQ(client.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.send("abc");
  EXPECT_EQ(body_of(client.read_response()), "POST /echo? abc");
  client.send("POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
  client.send("2\r\nde\r\n0\r\n\r\n");
  EXPECT_EQ(body_of(client.read_response()), "POST /echo? abcde");
}

TEST_F(HttpServerTest, UnknownPathAndMethod) {
  RawClient client(port_);
  client.send("GET /nowhere HTTP/1.1\r\n\r\n");
  auto response = client.read_response();
  EXPECT_EQ(status_of(response), 404);
  EXPECT_EQ(body_of(response), R"({"detail":"Not Found"})");
  client.send("PUT /echo HTTP/1.1\r\n\r\n");
  response = client.read_response();
  EXPECT_EQ(status_of(response), 405);
  EXPECT_EQ(body_of(response), R"({"detail":"Method Not Allowed"})");
  EXPECT_NE(response.find("allow: GET, POST\r\n"), std::string::npos);
}

TEST_F(HttpServerTest, HandlersThatFailAnswer500AndTheServerLivesOn) {
  RawClient client(port_);
  for (const char* path : {"/throw", "/silent"}) {
    client.send(std::string("GET ") + path + " HTTP/1.1\r\n\r\n");
    const auto response = client.read_response();
    EXPECT_EQ(status_of(response), 500);
    EXPECT_NE(body_of(response).find("\"error\""), std::string::npos);
    EXPECT_EQ(response.find("secret"), std::string::npos) << "an exception's text is not for clients";
  }
  client.send("GET /half HTTP/1.1\r\n\r\n");
  const auto broken = client.read_all();
  EXPECT_NE(broken.find("begun"), std::string::npos);
  EXPECT_EQ(broken.find("\r\n0\r\n\r\n"), std::string::npos) << "an unfinished stream must not look finished";
  RawClient next(port_);
  next.send("GET /echo HTTP/1.1\r\n\r\n");
  EXPECT_EQ(status_of(next.read_response()), 200);
}

TEST_F(HttpServerTest, BadRequestsUseTheErrorBodyHook) {
  io_.call([this] {
    server_->error_body([](int status, std::string_view) { return "made for " + std::to_string(status); });
  });
  const auto answer = [this](const std::string& text) {
    RawClient client(port_);
    client.send(text);
    const auto response = client.read_all();
    EXPECT_TRUE(client.closed_by_peer());
    EXPECT_EQ(body_of(response), "made for " + std::to_string(status_of(response)));
    return status_of(response);
  };
  EXPECT_EQ(answer("nonsense\r\n\r\n"), 400);
  EXPECT_EQ(answer("GET / HTTP/1.1\r\nA: " + std::string(20'000, 'a') + "\r\n\r\n"), 431);
  EXPECT_EQ(answer("POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;" + std::string(40'000, 'a')), 400);
}

TEST_F(HttpServerTest, TooLargeBodiesGet413AlsoWhenTheClientGoesOnSending) {
  RawClient client(port_);
  client.send(post_text("/echo", std::string(4U << 20, 'x')));  // all of it, before reading
  const auto response = client.read_until("}");
  EXPECT_EQ(status_of(response), 413) << response;
  client.close();
  RawClient next(port_);
  next.send(post_text("/echo", "ok"));
  EXPECT_EQ(status_of(next.read_response()), 200);
}

TEST_F(HttpServerTest, SlowRequestsAndIdleConnectionsEnd) {
  EXPECT_EQ(ServerLimits().keep_alive_timeout, std::chrono::seconds(75)) << "as docs/conformance.md says";
  const auto begin = std::chrono::steady_clock::now();
  RawClient slow(port_);
  slow.send("POST /echo HTTP/1.1\r\nConte");
  RawClient slow_body(port_);
  slow_body.send("POST /echo HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc");
  RawClient idle(port_);
  idle.send("GET /echo HTTP/1.1\r\n\r\n");
  EXPECT_EQ(status_of(idle.read_response()), 200);
  EXPECT_EQ(status_of(slow.read_until("}}")), 408);
  EXPECT_EQ(status_of(slow_body.read_until("}}")), 408);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 900ms);
  EXPECT_EQ(idle.read_all(), "");
  EXPECT_TRUE(idle.closed_by_peer());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 6s);
}

TEST_F(HttpServerTest, NoticesAClientThatLeaves) {
  enum class Way { kClose, kReset, kHalfClose, kBehindPipelinedBytes };
  int calls = 0;
  for (const Way way : {Way::kClose, Way::kReset, Way::kHalfClose, Way::kBehindPipelinedBytes}) {
    RawClient client(port_);
    client.send(post_text("/hang", "{}"));
    ASSERT_TRUE(eventually([this] { return hanging_ == 1; }));
    EXPECT_EQ(gone_calls_, calls);
    if (way == Way::kBehindPipelinedBytes) {
      client.send(post_text("/echo", "next"));
      std::this_thread::sleep_for(50ms);
      EXPECT_EQ(gone_calls_, calls) << "a pipelined request is no end of the connection";
    }
    const auto left_at = std::chrono::steady_clock::now();
    if (way == Way::kReset) {
      client.reset();
    } else if (way == Way::kHalfClose) {
      client.shutdown_send();
    } else {
      client.close();
    }
    ASSERT_TRUE(eventually([&] { return gone_calls_ == calls + 1 && hanging_ == 0; })) << static_cast<int>(way);
    EXPECT_LT(std::chrono::steady_clock::now() - left_at, 4s);
    EXPECT_FALSE(write_after_gone_ok_);
    ++calls;
  }
  EXPECT_TRUE(eventually([this] { return server_->num_connections() == 0; }));
}

TEST_F(HttpServerTest, AClientThatDoesNotReadIsGoneAfterTheWriteTimeout) {
  RawClient client(port_);
  client.send("GET /flood HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(eventually([this] { return floods_ended_ == 1; }, 8s));
  EXPECT_TRUE(eventually([this] { return server_->num_connections() == 0; }));
}

TEST_F(HttpServerTest, StreamsWithContentLength) {
  RawClient client(port_);
  client.send("GET /sized HTTP/1.1\r\n\r\n");
  const auto response = client.read_response();
  EXPECT_EQ(response.find("chunked"), std::string::npos);
  EXPECT_EQ(body_of(response), "abcabc");
  client.send("GET /short HTTP/1.1\r\n\r\n");
  EXPECT_EQ(body_of(client.read_all()), "abc");
  EXPECT_TRUE(client.closed_by_peer());
}

TEST_F(HttpServerTest, TooManyConnectionsGet503) {
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 8; ++i) clients.push_back(std::make_unique<RawClient>(port_));
  ASSERT_TRUE(eventually([this] { return server_->num_connections() == 8; }));
  RawClient late(port_);
  const auto response = late.read_until("}}");
  EXPECT_EQ(status_of(response), 503);
  EXPECT_NE(response.find("retry-after: "), std::string::npos);
}

TEST_F(HttpServerTest, StopDrainsAndThenCloses) {
  RawClient idle(port_);
  RawClient busy(port_);
  busy.send(post_text("/hang", "{}"));
  ASSERT_TRUE(eventually([this] { return hanging_ == 1 && server_->num_connections() == 2; }));
  const auto begin = std::chrono::steady_clock::now();
  io_.run(server_->stop(300ms));
  const auto took = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(took, 290ms);
  EXPECT_LT(took, 3s);
  EXPECT_EQ(gone_calls_, 1);
  EXPECT_EQ(server_->num_connections(), 0U);
  EXPECT_EQ(idle.read_all(), "");
  EXPECT_TRUE(idle.closed_by_peer());
  EXPECT_THROW(RawClient late(port_), std::runtime_error);
}

TEST_F(HttpServerTest, ListenSaysWhatIsWrong) {
  auto second = io_.call([this] { return HttpServer::create(io_.executor(), ServerLimits()); });
  const auto taken = io_.call([&] { return second->listen("127.0.0.1", port_); });
  ASSERT_FALSE(taken);
  EXPECT_NE(taken.error().message().find("127.0.0.1 port " + std::to_string(port_)), std::string::npos);
  const auto unknown = io_.call([&] { return second->listen("no-such-host.invalid", 0); });
  ASSERT_FALSE(unknown);
  EXPECT_NE(unknown.error().message().find("no-such-host.invalid"), std::string::npos);
  const auto local = io_.call([&] { return second->listen("localhost", 0); });
  EXPECT_TRUE(local);
  io_.call([&] { second.reset(); });
}

}  // namespace
}  // namespace tandem::net
