// SPDX-License-Identifier: Apache-2.0
// Many requests at once: load that is counted right whatever happens, shares that follow speed, prefillers that heal.
#include <array>
#include <map>
#include <random>

#include "proxy_fixture.h"
#include "push_stand_in.h"

namespace tandem::proxy {
namespace {

using namespace std::chrono_literals;
using test::error_answer;
using test::status_of;
using End = test::Behaviour::End;

class ProxyLoadTest : public ProxyTest {
 protected:
  /// The lowest score or number of requests in flight that the metrics show now.
  double lowest_count() const {
    double lowest = 0;
    std::istringstream lines(registry_.expose());
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("tandem:proxy_active_") || line.starts_with("tandem:proxy_inflight_"))
        lowest = std::min(lowest, std::stod(line.substr(line.rfind(' ') + 1)));
    }
    return lowest;
  }

  /// `count` requests by four clients, a quarter of which leave early; `before` each one something may be arranged.
  /// Looks at the counts all the time.
  void random_mix(int count, std::chrono::microseconds patience, const std::function<void(std::mt19937&)>& before) {
    constexpr int kClients = 4;
    std::atomic<int> answered{0};
    std::atomic<int> running{kClients};
    std::vector<std::thread> threads;
    for (int t = 0; t < kClients; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937 random(static_cast<unsigned>(t));
        for (int i = 0; i < count / kClients; ++i) {
          before(random);
          test::RawClient client(port_);
          client.send(test::post_text("/v1/completions", kStreamBody, "Connection: close\r\n"));
          if (random() % 4 == 0) {
            std::this_thread::sleep_for(random() % 1000 * patience / 1000);
            continue;
          }
          const auto response = client.read_all();
          const int status = status_of(response);
          EXPECT_TRUE(status == 200 || status >= 400) << response;
          const auto body = test::body_of(response);
          const bool whole = body.find("[DONE]") != std::string::npos;
          EXPECT_EQ(whole, status == 200 && body.find("\"error\"") == std::string::npos) << response;
          EXPECT_FALSE(body.empty()) << response;
          ++answered;
        }
        --running;
      });
    }
    while (running > 0) {
      EXPECT_GE(lowest_count(), 0.0);
      std::this_thread::sleep_for(2ms);
    }
    for (auto& thread : threads) thread.join();
    EXPECT_GT(answered, count / 2);
    EXPECT_TRUE(all_scores_zero());
  }

  static test::Behaviour broken(test::Behaviour behaviour) {
    behaviour.end = End::kBreak;
    return behaviour;
  }
};

TEST_F(ProxyLoadTest, RandomMixOfSuccessCancelRetryAndDeathPull) {
  auto slow_stream = test::event_stream(kEvents);
  slow_stream.gap = 1ms;
  const std::vector<test::Behaviour> prefill_ways = {
      test::json_answer(kPrefillAnswer),    test::json_answer("{}"), error_answer(500, "oops"),
      error_answer(400, R"({"error":{}})"), error_answer(503, "{}"), broken(test::hang())};
  const std::vector<test::Behaviour> decode_ways = {slow_stream,
                                                    slow_stream,
                                                    broken(slow_stream),
                                                    broken(test::hang()),
                                                    error_answer(500, "oops"),
                                                    error_answer(404, R"({"error":{}})")};
  start();
  random_mix(2000, 4ms, [&](std::mt19937& random) {
    p(random() % 2).then(prefill_ways[random() % prefill_ways.size()]);
    d(random() % 2).then(decode_ways[random() % decode_ways.size()]);
  });
}

TEST_F(ProxyLoadTest, RandomMixOfSuccessCancelRetryAndDeathLayerwise) {
  config_.connector = config::ProxyConnector::kLayerwise;
  const std::vector<test::Behaviour> ways = {test::json_answer("{}"), test::json_answer("{}"),
                                             error_answer(500, ""),   error_answer(400, R"({"error":{}})"),
                                             error_answer(503, "{}"), broken(test::hang())};
  for (auto& prefiller : prefillers_) prefiller->set_usual(test::json_answer("{}"));
  std::array<std::unique_ptr<PushDecoder>, 2> decoders;
  for (auto& decoder : decoders) decoder = std::make_unique<PushDecoder>(io_);
  decoders[1]->then = PushDecoder::Then::kBreakInStream;
  use({p(0).port(), p(1).port()}, {decoders[0]->port(), decoders[1]->port()});
  start();
  random_mix(2000, 8ms, [&](std::mt19937& random) { p(random() % 2).then(ways[random() % ways.size()]); });
  EXPECT_TRUE(test::eventually([this] { return p(0).num_active() + p(1).num_active() == 0; }));
  proxy_.reset();  // before the decoders
}

TEST_F(ProxyLoadTest, SharesFollowSpeed) {
  const std::array<std::chrono::milliseconds, 2> times = {200ms, 20ms};
  for (const std::size_t i : {0U, 1U}) {
    auto prefill = test::json_answer(kPrefillAnswer);
    prefill.delay = times[i];
    p(i).set_usual(prefill);
  }
  start();
  std::vector<std::thread> clients;
  for (int t = 0; t < 8; ++t) {
    clients.emplace_back([this] {
      for (int i = 0; i < 20; ++i) EXPECT_EQ(status_of(ask(kPlainBody)), 200);
    });
  }
  for (auto& client : clients) client.join();
  const auto slow = static_cast<double>(p(0).requests().size());
  const auto fast = static_cast<double>(p(1).requests().size());
  EXPECT_EQ(slow + fast, 160);
  // Ten times as fast; a busy machine adds to both times alike.
  EXPECT_GT(fast, 1.8 * slow) << fast << " and " << slow;
  EXPECT_GT(slow, 4) << "the slow one still works";
  EXPECT_TRUE(all_scores_zero());
}

TEST_F(ProxyLoadTest, AfterFiveFailuresAPrefillerIsBackAsSoonAsItIsWell) {
  start_one_each();
  for (int i = 0; i < 5; ++i) p().then(error_answer(500, "out of order"));
  for (int i = 0; i < 5; ++i) EXPECT_EQ(status_of(ask(kPlainBody)), 502);
  const std::string instance = "{instance=\"" + p().name() + "\",role=\"prefill\"}";
  EXPECT_EQ(metric("tandem:proxy_instance_failures_total" + instance), 5);
  EXPECT_EQ(metric("tandem:proxy_instance_up" + instance), 0);
  EXPECT_TRUE(d().requests().empty()) << "no decoder is asked without a prefill";
  EXPECT_EQ(status_of(ask(kPlainBody)), 200) << "the only one there is, is asked although it failed lately";
  EXPECT_EQ(metric("tandem:proxy_instance_up" + instance), 1);
  EXPECT_EQ(p().requests().size(), 6U);
  EXPECT_EQ(d().requests().size(), 1U);
  EXPECT_TRUE(all_scores_zero());
}

}  // namespace
}  // namespace tandem::proxy
