// SPDX-License-Identifier: Apache-2.0
// The first process in front of others: a stand-in is the other process's internal API.
#include "api/front.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "api/service.h"
#include "api_support.h"
#include "support/net_stand_in.h"
#include "support/net_support.h"

namespace tandem::api {
namespace {

using engine::FinishReason;
using test::body_of;
using test::eventually;
using test::head_of;
using test::post_text;
using test::RawClient;
using test::status_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr std::string_view kBody = R"({"model":"m","prompt":"hi","max_tokens":2})";
constexpr std::string_view kStream = R"({"model":"m","prompt":"hi","max_tokens":2,"stream":true})";

class FrontTest : public ::testing::Test {
 protected:
  FrontTest() : other_(io_, test::json_answer(R"({"from":"there"})")) {
    engine_.script = [this](std::size_t index) { engine_.say(index, "here", FinishReason::kLength); };
    config_ = test::test_config();
    config_.data_parallel.size = 3;
    config_.data_parallel.local = 1;
    view_.others = {{.name = "the process with data-parallel ranks 1 to 2 at 192.0.0.4",
                     .first_rank = 1,
                     .num_ranks = 2,
                     .endpoint = net::Endpoint("127.0.0.1", other_.port()),
                     .token = "t0ken",
                     .serving = true}};
    ServiceParts parts;
    parts.engine = &engine_;
    parts.tokenizer = std::make_shared<test::ByteTokenizer>();
    parts.metrics = &registry_;
    parts.vocab_size = test::ByteTokenizer::kVocabSize;
    parts.instance_view = [this] {
      const std::lock_guard lock(mutex_);
      return view_;
    };
    io_.call([&] {
      server_ = net::HttpServer::create(io_.executor(), net::ServerLimits());
      service_ = std::make_unique<Service>(config_, parts);
      service_->install(*server_);
      port_ = *server_->listen("127.0.0.1", 0);
    });
  }
  ~FrontTest() override {
    const std::chrono::milliseconds drain(500);
    io_.run(stop(drain));
    io_.call([this] {
      service_.reset();
      server_.reset();
    });
  }
  net::Task<int> stop(std::chrono::milliseconds drain) {
    co_await server_->stop(drain);
    co_return 0;
  }

  std::string ask(std::string_view body, const std::string& headers = "") {
    RawClient client(port_);
    client.send(post_text("/v1/completions", std::string(body), headers));
    return client.read_response();
  }
  std::string get(const std::string& path) {
    RawClient client(port_);
    client.send("GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n");
    return client.read_response();
  }
  void change(const std::function<void(InstanceView&)>& what) {
    {
      const std::lock_guard lock(mutex_);
      what(view_);
    }
    io_.call([this] { service_->instance_changed(); });
  }
  void lose_the_other() {
    change([](InstanceView& view) { view.others[0].serving = false; });
  }

  test::IoThread io_;
  test::StandIn other_;
  test::FakeEngine engine_;
  obs::Registry registry_;
  config::ServeConfig config_;
  std::mutex mutex_;
  InstanceView view_;
  std::unique_ptr<net::HttpServer> server_;
  std::unique_ptr<Service> service_;
  std::uint16_t port_ = 0;
};

TEST_F(FrontTest, ARankElsewhereIsAskedThereAsTheClientAsked) {
  const std::string answer =
      ask(kBody, "X-Data-Parallel-Rank: 1\r\nX-Request-Id: r1\r\nAuthorization: Bearer mine\r\n");
  EXPECT_EQ(status_of(answer), 200);
  EXPECT_EQ(body_of(answer), R"({"from":"there"})");
  ASSERT_THAT(other_.requests(), SizeIs(1));
  const net::HttpRequest seen = other_.requests()[0];
  EXPECT_EQ(seen.body, kBody);
  EXPECT_EQ(seen.path, "/v1/completions");
  EXPECT_EQ(seen.headers.find("x-data-parallel-rank"), "1");
  EXPECT_EQ(seen.headers.find("x-request-id"), "r1");
  EXPECT_EQ(seen.headers.find("authorization"), "Bearer t0ken");
  EXPECT_EQ(engine_.num_submitted(), 0U);
}

TEST_F(FrontTest, RequestsSpreadOverTheRanksOfAllProcesses) {
  other_.set_usual(test::hang());
  engine_.script = {};
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(std::make_unique<RawClient>(port_));
    clients.back()->send(post_text("/v1/completions", R"({"model":"m","prompt":"hi )" + std::to_string(i) + R"("})"));
    EXPECT_TRUE(eventually([&] { return engine_.num_submitted() + other_.requests().size() == clients.size(); }));
  }
  // The stand-in's engine says that its own ranks have nothing to do; the load elsewhere is counted here.
  EXPECT_THAT(other_.requests().size(), testing::Ge(2U));
  EXPECT_THAT(engine_.num_submitted(), testing::Ge(2U));
}

TEST_F(FrontTest, AStreamPassesPieceByPiece) {
  other_.set_usual(test::event_stream({"data: 1\n\n", "data: 2\n\n", "data: [DONE]\n\n"}));
  const std::string answer = ask(kStream, "X-Data-Parallel-Rank: 2\r\n");
  EXPECT_THAT(answer, AllOf(HasSubstr("data: 1\n\n"), HasSubstr("data: 2\n\n"), HasSubstr("data: [DONE]\n\n")));
}

TEST_F(FrontTest, AnErrorThereIsTheClientsError) {
  other_.set_usual(test::error_answer(400, R"({"error":{"message":"too long"}})"));
  const std::string answer = ask(kBody, "X-Data-Parallel-Rank: 2\r\n");
  EXPECT_EQ(status_of(answer), 400);
  EXPECT_THAT(answer, HasSubstr("too long"));
}

TEST_F(FrontTest, AProcessThatIsLostBeforeItsAnswerGives503) {
  other_.set_usual(test::hang());
  RawClient client(port_);
  client.send(post_text("/v1/completions", std::string(kBody), "X-Data-Parallel-Rank: 2\r\n"));
  ASSERT_TRUE(eventually([&] { return other_.requests().size() == 1; }));
  lose_the_other();
  const std::string answer = client.read_response();
  EXPECT_EQ(status_of(answer), 503);
  EXPECT_THAT(answer, HasSubstr("Retry-After: 1"));
  EXPECT_THAT(answer, HasSubstr("ranks 1 to 2 at 192.0.0.4 was lost"));
  EXPECT_TRUE(eventually([&] { return other_.num_gone() == 1; }));
}

TEST_F(FrontTest, AProcessThatIsLostInMidStreamEndsItWithAnErrorEvent) {
  test::Behaviour stream = test::event_stream({"data: 1\n\n"});
  stream.end = test::Behaviour::End::kHang;
  other_.set_usual(stream);
  RawClient client(port_);
  client.send(post_text("/v1/completions", std::string(kStream), "X-Data-Parallel-Rank: 2\r\n"));
  EXPECT_THAT(client.read_until("data: 1\n\n"), HasSubstr("200 OK"));
  lose_the_other();
  const std::string rest = client.read_until("0\r\n\r\n");
  EXPECT_THAT(rest, HasSubstr("ServiceUnavailableError"));
  EXPECT_THAT(rest, Not(HasSubstr("[DONE]")));
}

TEST_F(FrontTest, AClientThatLeavesEndsItsRequestThere) {
  other_.set_usual(test::hang());
  RawClient client(port_);
  client.send(post_text("/v1/completions", std::string(kBody), "X-Data-Parallel-Rank: 2\r\n"));
  ASSERT_TRUE(eventually([&] { return other_.requests().size() == 1; }));
  client.close();
  EXPECT_TRUE(eventually([&] { return other_.num_gone() == 1; }));
}

TEST_F(FrontTest, WithoutTheOthersTheirRanksAreRefusedAndOwnOnesServed) {
  lose_the_other();
  EXPECT_EQ(status_of(ask(kBody, "X-Data-Parallel-Rank: 1\r\n")), 503);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(status_of(ask(kBody)), 200);
  EXPECT_THAT(other_.requests(), IsEmpty());
  EXPECT_EQ(status_of(get("/health")), 200);
}

TEST_F(FrontTest, AnInstanceThatIsNotCompleteRefusesAllAndSaysWhoIsMissing) {
  change([](InstanceView& view) {
    view.incomplete =
        Status(Code::kUnavailable, "waiting for the process with data-parallel ranks 1 to 2 at x to join");
  });
  const std::string answer = ask(kBody);
  EXPECT_EQ(status_of(answer), 503);
  EXPECT_THAT(answer, AllOf(HasSubstr("ranks 1 to 2"), HasSubstr("Retry-After")));
  const std::string health = get("/health");
  EXPECT_EQ(status_of(health), 503);
  EXPECT_THAT(health, HasSubstr("ranks 1 to 2"));
  change([](InstanceView& view) { view.incomplete = Status(); });
  EXPECT_EQ(status_of(get("/health")), 200);
}

TEST_F(FrontTest, AReleaseReachesTheProcessThatHasTheKv) {
  RawClient client(port_);
  client.send(post_text("/tandem/release", "{}", "X-Request-Id: r7\r\n"));
  EXPECT_EQ(status_of(client.read_response()), 200);
  ASSERT_THAT(other_.releases(), SizeIs(1));
  EXPECT_EQ(other_.releases()[0].headers.find("x-request-id"), "r7");
}

TEST(InternalApi, AnswersOnlyBearersOfItsTokenAndNeverWithACutAnswer) {
  test::IoThread io;
  test::FakeEngine engine;
  engine.script = [&engine](std::size_t index) {
    engine.say(index, "H");
    engine.say(index, "", FinishReason::kAbort);  // as an engine that stops does
  };
  obs::Registry registry;
  ServiceParts parts;
  parts.engine = &engine;
  parts.tokenizer = std::make_shared<test::ByteTokenizer>();
  parts.metrics = &registry;
  parts.vocab_size = test::ByteTokenizer::kVocabSize;
  parts.bearer = "t0ken";
  std::unique_ptr<net::HttpServer> server;
  std::unique_ptr<Service> service;
  std::uint16_t port = 0;
  io.call([&] {
    server = net::HttpServer::create(io.executor(), net::ServerLimits());
    service = std::make_unique<Service>(test::test_config(), parts);
    service->install(*server);
    port = *server->listen("127.0.0.1", 0);
  });
  const auto health = [&](const std::string& header) {
    RawClient client(port);
    client.send("GET /health HTTP/1.1\r\nHost: x\r\n" + header + "\r\n");
    return status_of(client.read_response());
  };
  EXPECT_EQ(health(""), 401);
  EXPECT_EQ(health("Authorization: Bearer t0ke\r\n"), 401);
  EXPECT_EQ(health("Authorization: Bearer t0ken\r\n"), 200);
  for (const std::string_view body : {kBody, kStream}) {
    RawClient client(port);
    client.send(post_text("/v1/completions", std::string(body), "Authorization: Bearer t0ken\r\n"));
    const std::string answer = body == kBody ? client.read_response() : client.read_until("0\r\n\r\n");
    EXPECT_THAT(answer, AllOf(HasSubstr("is stopping"), HasSubstr("ServiceUnavailableError")));
  }
  io.call([&] {
    service.reset();
    server.reset();
  });
}

}  // namespace
}  // namespace tandem::api
