// SPDX-License-Identifier: Apache-2.0
// The client against our server and against a scripted peer that does what real ones should not.
#include "net/http_client.h"

#include <gtest/gtest.h>

#include <atomic>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "support/net_support.h"

namespace tandem::net {
namespace {

using test::eventually;
using test::IoThread;
using test::ScriptedPeer;
using namespace std::chrono_literals;

ClientTimeouts quick() {
  ClientTimeouts timeouts;
  timeouts.connect = 500ms;
  timeouts.head = 400ms;
  timeouts.idle = 300ms;
  return timeouts;
}

class HttpClientTest : public testing::Test {
 protected:
  void connect_to(std::uint16_t port, std::string host = "127.0.0.1") {
    client_ = HttpClient::create(io_.executor(), Endpoint(std::move(host), port), ClientLimits());
  }
  ~HttpClientTest() override {
    io_.call([this] { client_.reset(); });
  }

  struct Answer {
    Status error;
    int status = 0;
    std::string body;
    std::vector<std::string> pieces;
  };

  Task<Answer> ask(std::string path, std::string body, ClientTimeouts timeouts, Cancel cancel) {
    ClientRequest request("POST", std::move(path));
    request.headers.add("content-type", "application/json");
    request.body = std::move(body);
    Answer answer;
    auto response = co_await client_->send(std::move(request), timeouts, cancel);
    if (!response) {
      answer.error = response.error();
      co_return answer;
    }
    answer.status = (*response)->status();
    for (;;) {
      auto piece = co_await (*response)->read_piece();
      if (!piece) answer.error = piece.error();
      if (!piece || piece->empty()) break;
      answer.body += *piece;
      answer.pieces.push_back(std::move(*piece));
    }
    co_return answer;
  }
  Answer ask_now(const std::string& path, const std::string& body = "{}", ClientTimeouts timeouts = quick()) {
    return io_.run(ask(path, body, timeouts, Cancel()));
  }

  IoThread io_;
  std::shared_ptr<HttpClient> client_;
};

const std::string kOk = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

TEST_F(HttpClientTest, KeepsAndReusesConnections) {
  ScriptedPeer peer({{kOk, kOk, kOk}});
  connect_to(peer.port());
  for (int i = 0; i < 3; ++i) {
    const auto answer = ask_now("/x", "body" + std::to_string(i));
    EXPECT_EQ(answer.body, "ok") << answer.error.to_string();
  }
  EXPECT_EQ(peer.num_connections(), 1);
  EXPECT_EQ(client_->num_idle(), 1U);
  const auto requests = peer.requests();
  ASSERT_EQ(requests.size(), 3U);
  EXPECT_NE(requests[2].find("POST /x HTTP/1.1\r\nhost: 127.0.0.1:" + std::to_string(peer.port())), std::string::npos);
  EXPECT_NE(requests[2].find("content-length: 5\r\n\r\nbody2"), std::string::npos);
}

TEST_F(HttpClientTest, AConnectionThatThePeerClosedIsReplaced) {
  ScriptedPeer peer({{kOk + ScriptedPeer::kClose}, {kOk}});
  connect_to(peer.port());
  EXPECT_EQ(ask_now("/1").body, "ok");
  EXPECT_TRUE(eventually([&] { return peer.num_closed() == 1; }));
  EXPECT_EQ(ask_now("/2").body, "ok");
  EXPECT_EQ(peer.num_connections(), 2);
}

TEST_F(HttpClientTest, AReusedConnectionThatDiesUnderTheRequestIsRetriedOnceOnAFreshOne) {
  // The peer reads the second request and closes: the peek before sending cannot see that.
  ScriptedPeer peer({{kOk, ScriptedPeer::kReadAndClose}, {kOk}});
  connect_to(peer.port());
  EXPECT_EQ(ask_now("/1").body, "ok");
  const auto second = ask_now("/2");
  EXPECT_EQ(second.body, "ok") << second.error.to_string();
  EXPECT_EQ(peer.num_connections(), 2);
}

TEST_F(HttpClientTest, AFreshConnectionIsNeverRetried) {
  ScriptedPeer peer({{ScriptedPeer::kReadAndClose}, {kOk}});
  connect_to(peer.port());
  const auto answer = ask_now("/1");
  EXPECT_EQ(answer.error.code(), Code::kUnavailable);
  EXPECT_NE(answer.error.message().find("127.0.0.1:" + std::to_string(peer.port())), std::string::npos);
  EXPECT_EQ(peer.num_connections(), 1);
}

TEST_F(HttpClientTest, NotRetriedOnceAByteOfTheAnswerCame) {
  ScriptedPeer peer({{kOk, "HTTP/1.1 2" + ScriptedPeer::kClose}, {kOk}});
  connect_to(peer.port());
  EXPECT_EQ(ask_now("/1").body, "ok");
  EXPECT_EQ(ask_now("/2").error.code(), Code::kUnavailable);
  EXPECT_EQ(peer.num_connections(), 1);
}

TEST_F(HttpClientTest, PiecesAreTheBytesThatCame) {
  const std::string head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
  ScriptedPeer peer({{head + ScriptedPeer::kPause + "9\r\ndata: a\n\n\r\n" + ScriptedPeer::kPause + "3\r\nda" +
                      ScriptedPeer::kPause + "t\r\n0\r\n\r\n"}});
  connect_to(peer.port());
  const auto answer = ask_now("/stream");
  EXPECT_TRUE(answer.error.ok()) << answer.error.to_string();
  EXPECT_EQ(answer.pieces, (std::vector<std::string>{"data: a\n\n", "da", "t"}));
  EXPECT_EQ(client_->num_idle(), 1U);
}

TEST_F(HttpClientTest, BrokenAnswersAreErrors) {
  ScriptedPeer peer({{"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc" + ScriptedPeer::kClose},
                     {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n" + ScriptedPeer::kClose},
                     {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n"},
                     {"SSH-2.0-OpenSSH_9.2\r\n\r\n"}});
  connect_to(peer.port());
  for (const char* body : {"abc", "abc", "", ""}) {
    const auto answer = ask_now("/");
    EXPECT_EQ(answer.error.code(), Code::kUnavailable);
    EXPECT_EQ(answer.body, body);
  }
  EXPECT_EQ(client_->num_idle(), 0U);
}

TEST_F(HttpClientTest, UntilCloseAndInterimAnswers) {
  ScriptedPeer peer({{"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 201 Created\r\n\r\nall of it" + ScriptedPeer::kClose}});
  connect_to(peer.port());
  const auto answer = ask_now("/");
  EXPECT_EQ(answer.status, 201);
  EXPECT_EQ(answer.body, "all of it");
  EXPECT_TRUE(answer.error.ok());
  EXPECT_EQ(client_->num_idle(), 0U);
}

TEST_F(HttpClientTest, DeadlinesForHeadIdleAndTotal) {
  const std::string begun = "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nabc";
  ScriptedPeer peer({{ScriptedPeer::kHang}, {begun + ScriptedPeer::kHang}, {begun + ScriptedPeer::kDrip}});
  connect_to(peer.port());
  const auto timed = [this](ClientTimeouts timeouts) {
    const auto begin = std::chrono::steady_clock::now();
    const auto answer = ask_now("/", "{}", timeouts);
    EXPECT_EQ(answer.error.code(), Code::kDeadlineExceeded) << answer.error.to_string();
    return std::chrono::steady_clock::now() - begin;
  };
  const auto head = timed(quick());
  EXPECT_GE(head, 390ms);
  EXPECT_LT(head, 4s);
  const auto idle = timed(quick());
  EXPECT_GE(idle, 290ms);
  EXPECT_LT(idle, 4s);
  auto with_total = quick();
  with_total.total = 700ms;  // the drip keeps the idle limit content
  const auto total = timed(with_total);
  EXPECT_GE(total, 690ms);
  EXPECT_LT(total, 5s);
}

TEST_F(HttpClientTest, CannotConnect) {
  std::uint16_t free_port = 0;
  {
    ScriptedPeer peer({});
    free_port = peer.port();
  }
  connect_to(free_port);
  const auto refused = ask_now("/");
  EXPECT_EQ(refused.error.code(), Code::kUnavailable);
  EXPECT_NE(refused.error.message().find("while connecting"), std::string::npos) << refused.error.message();
  io_.call([this] { connect_to(80, "no-such-host.invalid"); });
  const auto unknown = ask_now("/");
  EXPECT_FALSE(unknown.error.ok());
  EXPECT_NE(unknown.error.message().find("no-such-host.invalid:80"), std::string::npos);
}

TEST_F(HttpClientTest, CancelEndsAnyWaitAtOnce) {
  ScriptedPeer peer({{ScriptedPeer::kHang}, {"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc" + ScriptedPeer::kHang}});
  connect_to(peer.port());
  auto timeouts = quick();
  timeouts.head = timeouts.idle = 10s;
  for (int round = 0; round < 2; ++round) {
    auto cancel = io_.call([] { return Cancel(); });
    auto future = boost::asio::co_spawn(io_.context(), ask("/", "{}", timeouts, cancel), boost::asio::use_future);
    ASSERT_TRUE(eventually([&] { return peer.num_hanging() == round + 1; }));
    std::this_thread::sleep_for(20ms);
    const auto begin = std::chrono::steady_clock::now();
    io_.call([&] { cancel.cancel(); });
    const auto answer = future.get();
    EXPECT_EQ(answer.error.code(), Code::kCancelled) << answer.error.to_string();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 4s);
    EXPECT_TRUE(eventually([&] { return peer.num_closed() == round + 1; })) << "the peer must see the connection close";
  }
}

TEST_F(HttpClientTest, RequestsThatWouldSmuggleAreRefused) {
  connect_to(1);
  EXPECT_EQ(ask_now("/\r\nx: y").error.code(), Code::kInvalidArgument);
  EXPECT_EQ(ask_now("/ HTTP/1.1").error.code(), Code::kInvalidArgument);
}

TEST(EndpointTest, BracketsIpv6) {
  EXPECT_EQ(Endpoint("::1", 8).to_string(), "[::1]:8");
  EXPECT_EQ(Endpoint("[fe80::1]", 8).to_string(), "[fe80::1]:8");
  EXPECT_EQ(Endpoint("node-1", 8).to_string(), "node-1:8");
}

}  // namespace
}  // namespace tandem::net
