// SPDX-License-Identifier: Apache-2.0
#include "cluster/check_agent.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cluster/network_check.h"
#include "support/hccn_stand_in.h"

namespace tandem::cluster {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

constexpr milliseconds kTime{5000};

bool everything_exists(const std::string&) { return true; }

class Agent : public testing::Test {
 protected:
  NodeTools tools(int n) {
    return NodeTools{.runner = runners_[n],
                     .hccn_tool = "hccn_tool",
                     .hccn_conf = "tests/support/hccn/hccn.conf",
                     .timeout = kTime,
                     .exists = everything_exists};
  }
  std::unique_ptr<CheckAgent> start(int n) {
    auto listener = Listener::open("127.0.0.1", 0);
    EXPECT_TRUE(listener) << listener.error().message();
    return std::make_unique<CheckAgent>(std::move(*listener), tools(n));
  }
  static std::string ask_raw(std::uint16_t port, const std::string& line) {
    const TimePoint deadline = std::chrono::steady_clock::now() + kTime;
    auto socket = LineSocket::connect("127.0.0.1", port, deadline);
    if (!socket || !socket->send(line + "\n", deadline)) return "";
    return socket->receive_line(1 << 20, deadline).value_or("");
  }

  HccnStandIn runners_[2] = {HccnStandIn(0), HccnStandIn(1)};
};

TEST_F(Agent, GivesItsFacts) {
  const auto agent = start(1);
  const auto facts = ask_facts("127.0.0.1", agent->port(), {2, true, false}, kTime, kTime);
  ASSERT_TRUE(facts) << facts.error().message();
  ASSERT_EQ(facts->devices.size(), 2U);
  EXPECT_EQ(facts->devices[1].readings.at("ip").value, "10.20.1.2");
  EXPECT_EQ(facts->devices[1].readings.at("vnic").value, "192.168.1.2");
  EXPECT_EQ(facts->conf.at(0).at("address"), "10.20.0.1");
  EXPECT_FALSE(facts->interfaces.empty());
}

TEST_F(Agent, PingsAndMeasures) {
  const auto one = start(0);
  const auto other = start(1);
  ProbesRequest request;
  request.devices = {0, 1};
  request.ping_addresses = {"10.20.1.1", "10.20.1.2"};
  request.peers = {{"127.0.0.1", other->port()}};
  request.measure = milliseconds(50);
  const auto probes = ask_probes("127.0.0.1", one->port(), request, kTime, kTime * 4);
  ASSERT_TRUE(probes) << probes.error().message();
  EXPECT_EQ(probes->pings.size(), 4U);
  ASSERT_EQ(probes->paths.size(), 1U);
  const PathResult& path = probes->paths[0];
  EXPECT_TRUE(path.route.ok && path.connect.ok) << path.connect.value;
  EXPECT_TRUE(path.latency.ok) << path.latency.value;
  EXPECT_GT(path.latency_us, 0);
  EXPECT_TRUE(path.bandwidth.ok) << path.bandwidth.value;
  EXPECT_GT(path.gbit_per_s, 0);
  EXPECT_GT(path.mtu, 0);
}

TEST_F(Agent, RefusesWhatItDoesNotUnderstand) {
  const auto agent = start(0);
  EXPECT_THAT(ask_raw(agent->port(), "GET / HTTP/1.1"), HasSubstr("error"));
  EXPECT_THAT(ask_raw(agent->port(), "[1]"), HasSubstr("expected one JSON object a line"));
  EXPECT_THAT(ask_raw(agent->port(), "{}"), HasSubstr("ask: expected facts"));
  EXPECT_THAT(ask_raw(agent->port(), R"({"ask": 3})"), HasSubstr("error"));
  EXPECT_THAT(ask_raw(agent->port(), R"({"ask": "facts", "num_devices": 100000})"), HasSubstr("num_devices"));
  EXPECT_EQ(ask_raw(agent->port(), std::string(2U << 20, 'x')), "");
  EXPECT_TRUE(runners_[0].asked().empty());
  EXPECT_TRUE(ask_facts("127.0.0.1", agent->port(), {0, false, true}, kTime, kTime));
}

TEST_F(Agent, SomethingElseAtThePortIsNamed) {
  EXPECT_THAT(check_agent_answer("HTTP/1.1 400 Bad Request").error().message(),
              HasSubstr("something else than a tandem check agent answers there: 'HTTP/1.1 400"));
  EXPECT_THAT(check_agent_answer("{\"a\": 1}").error().message(), HasSubstr("something else"));
}

TEST_F(Agent, NobodyAtThePortIsAnError) {
  std::uint16_t port = 0;
  {
    const auto listener = Listener::open("127.0.0.1", 0);
    port = listener->port();
  }
  const auto facts = ask_facts("127.0.0.1", port, {0, false, true}, kTime, kTime);
  ASSERT_FALSE(facts);
  EXPECT_THAT(facts.error().message(), HasSubstr(fmt::format("connect to 127.0.0.1:{}: Connection refused", port)));
}

TEST_F(Agent, ASilentPeerIsLeftAtTheDeadline) {
  const auto listener = Listener::open("127.0.0.1", 0);  // accepts into its backlog and never answers
  const auto facts = ask_facts("127.0.0.1", listener->port(), {0, false, true}, kTime, milliseconds(100));
  ASSERT_FALSE(facts);
  EXPECT_EQ(facts.error().code(), Code::kDeadlineExceeded);
}

TEST_F(Agent, EndsAtOnceWithAConnectionOpen) {
  auto agent = start(0);
  const TimePoint deadline = std::chrono::steady_clock::now() + kTime;
  auto idle = LineSocket::connect("127.0.0.1", agent->port(), deadline);
  ASSERT_TRUE(idle);
  ASSERT_TRUE(ask_facts("127.0.0.1", agent->port(), {0, false, true}, kTime, kTime));
  const auto start = std::chrono::steady_clock::now();
  agent.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(3));
}

TEST_F(Agent, AWholeInspectionOverLoopback) {
  const auto one = start(0);
  const auto other = start(1);
  config::CheckNetworkConfig config;
  config.nodes = {{"127.0.0.1", one->port(), true}, {"127.0.0.1", other->port(), true}};
  config.host_only = true;
  config.measure = milliseconds(20);
  config.timeout = kTime;
  const auto nodes = inspect_network(config, tools(0));
  ASSERT_EQ(nodes.size(), 3U);  // and this host
  const auto rows = assess_network(nodes, config);
  EXPECT_EQ(num_failed(rows), 0U) << check_table_text(rows);
  EXPECT_EQ(nodes[0].probes.paths.size(), 2U);
}

}  // namespace
}  // namespace tandem::cluster
