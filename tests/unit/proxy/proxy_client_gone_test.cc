// SPDX-License-Identifier: Apache-2.0
// Clients that leave, at every stage: both sides are told at once, leases go back, scores return to exactly zero.
#include <random>

#include "proxy_fixture.h"

namespace tandem::proxy {
namespace {

using namespace std::chrono_literals;
using test::eventually;
using End = test::Behaviour::End;

class ProxyClientGoneTest : public ProxyTest {
 protected:
  std::unique_ptr<test::RawClient> begin_request() {
    auto client = std::make_unique<test::RawClient>(port_);
    client->send(test::post_text("/v1/completions", kStreamBody));
    return client;
  }
  double gone() { return metric(R"(tandem:proxy_requests_total{endpoint="/v1/completions",outcome="client_gone"})"); }
};

TEST_F(ProxyClientGoneTest, DuringPrefill) {
  p().set_usual(test::hang());
  start_one_each();
  auto client = begin_request();
  ASSERT_TRUE(eventually([this] { return p().num_active() == 1; }));
  const auto begin = std::chrono::steady_clock::now();
  client->close();
  EXPECT_TRUE(eventually([this] { return p().num_gone() == 1; }));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 4s);
  EXPECT_TRUE(all_scores_zero());
  EXPECT_TRUE(d().requests().empty());
  EXPECT_EQ(p().requests().size(), 1U) << "nothing is retried for nobody";
  // The prefiller's answer may have been on its way: it is told to give up what it handed over, by the request's id.
  ASSERT_TRUE(eventually([this] { return p().releases().size() == 1; }));
  EXPECT_EQ(p().releases()[0].body, "{}");
  EXPECT_EQ(p().releases()[0].headers.find("x-request-id"), p().requests()[0].headers.find("x-request-id"));
  EXPECT_EQ(gone(), 1);
}

TEST_F(ProxyClientGoneTest, BetweenPrefillAndTheFirstByteOfDecode) {
  d().set_usual(test::hang());
  start_one_each();
  auto client = begin_request();
  ASSERT_TRUE(eventually([this] { return d().num_active() == 1; }));
  client->close();
  EXPECT_TRUE(eventually([this] { return d().num_gone() == 1; }));
  EXPECT_TRUE(eventually([this] { return p().releases().size() == 1; })) << "the decoder may not have the KV yet";
  EXPECT_TRUE(all_scores_zero());
}

TEST_F(ProxyClientGoneTest, WhileADeadDecoderIsWaitedFor) {
  // The pause between attempts is where the client leaves: the lease of the first prefill must be free by then.
  config_.retry_delay = 5s;
  use({p().port()}, {dead_port()});
  start();
  auto client = begin_request();
  EXPECT_TRUE(eventually([this] { return p().releases().size() == 1; }));
  const auto begin = std::chrono::steady_clock::now();
  client->close();
  EXPECT_TRUE(all_scores_zero());
  EXPECT_TRUE(eventually([this] { return gone() == 1; }));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 4s);
  EXPECT_EQ(p().requests().size(), 1U);
}

TEST_F(ProxyClientGoneTest, InMidStream) {
  auto endless = test::event_stream({kEvents[0]});
  endless.end = End::kHang;
  d().set_usual(endless);
  start_one_each();
  auto client = begin_request();
  client->read_until("Par");
  const auto begin = std::chrono::steady_clock::now();
  client->reset();
  EXPECT_TRUE(eventually([this] { return d().num_gone() == 1; }));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 4s);
  EXPECT_TRUE(all_scores_zero());
  EXPECT_TRUE(p().releases().empty()) << "the decoder has the KV and releases it itself";
}

TEST_F(ProxyClientGoneTest, AHundredCancelledStreams) {
  auto slow_prefill = test::json_answer(kPrefillAnswer);
  slow_prefill.delay = 5ms;
  std::vector<std::string> many(50, kEvents[0]);
  auto slow_stream = test::event_stream(many);
  slow_stream.gap = 2ms;
  for (int i = 0; i < 2; ++i) {
    p(i).set_usual(slow_prefill);
    d(i).set_usual(slow_stream);
  }
  start();
  std::mt19937 random(11);
  for (int round = 0; round < 10; ++round) {
    std::vector<std::unique_ptr<test::RawClient>> clients;
    for (int i = 0; i < 10; ++i) clients.push_back(begin_request());
    for (auto& client : clients) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
      client->close();
    }
  }
  EXPECT_TRUE(all_scores_zero());
  EXPECT_TRUE(eventually(
      [this] { return p(0).num_active() + p(1).num_active() + d(0).num_active() + d(1).num_active() == 0; }));
  EXPECT_EQ(test::status_of(ask(kPlainBody)), 200);
}

}  // namespace
}  // namespace tandem::proxy
