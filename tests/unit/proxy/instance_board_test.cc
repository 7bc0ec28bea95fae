// SPDX-License-Identifier: Apache-2.0
#include "proxy/instance_board.h"

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <random>

namespace tandem::proxy {
namespace {

using namespace std::chrono_literals;

class InstanceBoardTest : public testing::Test {
 protected:
  static config::ProxyConfig two_and_two() {
    config::ProxyConfig config;
    config.prefillers = {{"p0", 1}, {"p1", 2}};
    config.decoders = {{"d0", 3}, {"::1", 4}};
    return config;
  }
  std::size_t pick(Role role, Tried tried = {}) {
    return board_.choose(role, std::nullopt, tried, clock_.now())->ordinal - (role == Role::kDecode ? 2 : 0);
  }

  boost::asio::io_context io_;
  obs::Registry registry_;
  FakeClock clock_;
  InstanceBoard board_{io_.get_executor(), two_and_two(), registry_};
};

TEST_F(InstanceBoardTest, ScoresAreThoseOfTheProtocol) {
  const auto& p0 = board_.of(Role::kPrefill)[0];
  auto share = InstanceBoard::take_prefill(p0, 4000);
  EXPECT_EQ(p0->active_tokens, 154'574'500);  // 4000 / 4 * 0.0345 + 120.0745
  EXPECT_EQ(p0->active_kv, 154'574'500);
  EXPECT_DOUBLE_EQ(p0->tokens_gauge.value(), 154.5745);
  share.release_tokens();
  share.release_tokens();
  EXPECT_EQ(p0->active_tokens, 0);
  EXPECT_EQ(p0->priority(), 3 * 154'574'500LL) << "0.3 * active_kv, times ten";
  share = LoadShare();
  EXPECT_EQ(p0->active_kv, 0);
  const auto& d1 = board_.of(Role::kDecode)[1];
  EXPECT_EQ(d1->name, "[::1]:4");
  const auto decode = InstanceBoard::take_decode(d1, 77);
  EXPECT_DOUBLE_EQ(d1->tokens_gauge.value(), 77.0);
}

TEST_F(InstanceBoardTest, LeastLoadedAndEqualsTakeTurns) {
  for (const std::size_t turn : {0U, 1U, 0U, 1U}) EXPECT_EQ(pick(Role::kPrefill), turn);
  Tried tried;
  const auto next = board_.best(Role::kPrefill, std::nullopt, tried, clock_.now());
  EXPECT_EQ(board_.best(Role::kPrefill, std::nullopt, tried, clock_.now()), next) << "to look is no turn";
  const auto busy = InstanceBoard::take_prefill(board_.of(Role::kPrefill)[0], 10);
  EXPECT_EQ(pick(Role::kPrefill), 1U);
  const auto busier = InstanceBoard::take_prefill(board_.of(Role::kPrefill)[1], 10'000);
  EXPECT_EQ(pick(Role::kPrefill), 0U);
}

TEST_F(InstanceBoardTest, ARequestTriesEveryInstanceBeforeOneTwice) {
  Tried tried;
  std::vector<std::size_t> order;
  for (int i = 0; i < 4; ++i)
    order.push_back(board_.choose(Role::kDecode, std::nullopt, tried, clock_.now())->ordinal - 2);
  EXPECT_EQ(order, (std::vector<std::size_t>{0, 1, 0, 1}));
}

TEST_F(InstanceBoardTest, ADecoderWithoutAPrefillerGetsNoTurn) {
  for (const auto& prefiller : board_.of(Role::kPrefill)) prefiller->connector = Connector::kPull;
  const auto& decoders = board_.of(Role::kDecode);
  decoders[0]->connector = Connector::kLayerwise;
  decoders[1]->connector = Connector::kPull;
  EXPECT_EQ(pick(Role::kDecode), 1U);
  EXPECT_EQ(pick(Role::kDecode), 1U);
  board_.of(Role::kPrefill)[1]->connector = Connector::kLayerwise;
  EXPECT_EQ(pick(Role::kDecode), 0U);
}

TEST_F(InstanceBoardTest, ASilentInstanceIsTheLastResort) {
  auto& p0 = *board_.of(Role::kPrefill)[0];
  auto& p1 = *board_.of(Role::kPrefill)[1];
  p0.silent = true;
  const auto busy = InstanceBoard::take_prefill(board_.of(Role::kPrefill)[1], 10'000);
  Tried tried;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(board_.choose(Role::kPrefill, std::nullopt, tried, clock_.now())->name, p1.name)
        << "rather one that had no room again than one that may hold the request for ever";
  }
  InstanceBoard::failed(p1, clock_.now());
  EXPECT_EQ(pick(Role::kPrefill), 1U) << "it answers, at least";
  tried.spend(p1);
  EXPECT_EQ(board_.choose(Role::kPrefill, std::nullopt, tried, clock_.now())->name, p0.name);
  InstanceBoard::succeeded(p0);
  EXPECT_EQ(pick(Role::kPrefill), 0U);
}

TEST_F(InstanceBoardTest, OneInstanceIsThereOnceUnderAllItsNames) {
  config::ProxyConfig config;
  config.prefillers = {
      {"localhost", 1}, {"127.0.0.1", 1}, {"127.0.0.1", 2}, {"LocalHost", 1}, {"localhost.example", 1}};
  config.decoders = {{"127.0.0.1", 1}};
  const InstanceBoard board(io_.get_executor(), config, registry_);
  std::vector<std::string> names;
  for (const auto& each : board.of(Role::kPrefill)) names.push_back(each->name);
  EXPECT_EQ(names, (std::vector<std::string>{"localhost:1", "127.0.0.1:2", "localhost.example:1"}));
  EXPECT_EQ(board.of(Role::kDecode).size(), 1U) << "one instance may have both roles";
  EXPECT_EQ(board.find(Role::kPrefill, "127.0.0.1:1"), board.of(Role::kPrefill)[0]);
}

TEST_F(InstanceBoardTest, SeriesComeAndGoWithTheirInstance) {
  const auto has = [this](std::string_view name) { return registry_.expose().find(name) != std::string::npos; };
  const auto added = board_.make(Role::kPrefill, net::Endpoint("new", 5));
  EXPECT_FALSE(has("new:5")) << "not admitted yet";
  InstanceBoard::failed(*added, clock_.now());
  board_.add(added);
  EXPECT_TRUE(has("new:5"));
  auto running = InstanceBoard::take_prefill(added, 10);
  EXPECT_TRUE(board_.remove(Role::kPrefill, "new:5"));
  EXPECT_FALSE(board_.remove(Role::kPrefill, "new:5"));
  EXPECT_FALSE(has("new:5")) << registry_.expose();
  EXPECT_TRUE(has("p0:1"));
  InstanceBoard::failed(*added, clock_.now());
  InstanceBoard::succeeded(*added);
  running = LoadShare();  // its requests end later
  EXPECT_EQ(added->active_tokens, 0);
  board_.add(board_.make(Role::kPrefill, net::Endpoint("new", 5)));
  EXPECT_TRUE(has("tandem:proxy_instance_failures_total{instance=\"new:5\",role=\"prefill\"} 0"));
}

TEST_F(InstanceBoardTest, WhatFailedARequestOnceDoesNotGetItAgain) {
  Tried tried;
  const auto first = board_.choose(Role::kPrefill, std::nullopt, tried, clock_.now());
  tried.spend(*first);
  for (int i = 0; i < 3; ++i) {
    const auto next = board_.choose(Role::kPrefill, std::nullopt, tried, clock_.now());
    ASSERT_TRUE(next);
    EXPECT_NE(next, first);
  }
  tried.spend(*board_.of(Role::kPrefill)[1]);
  EXPECT_FALSE(board_.choose(Role::kPrefill, std::nullopt, tried, clock_.now()));
  EXPECT_EQ(pick(Role::kPrefill), 0U) << "other requests may ask them";
}

TEST_F(InstanceBoardTest, FailedInstancesAreAvoidedForAWhile) {
  auto& p0 = *board_.of(Role::kPrefill)[0];
  InstanceBoard::failed(p0, clock_.now());
  EXPECT_EQ(p0.up_gauge.value(), 0);
  EXPECT_EQ(pick(Role::kPrefill), 1U);
  clock_.advance(1001ms);
  InstanceBoard::publish_up(p0, clock_.now());
  EXPECT_EQ(p0.up_gauge.value(), 1) << "it is in use again";
  EXPECT_EQ(pick(Role::kPrefill), 0U) << "after the pause it is asked again";
  InstanceBoard::failed(p0, clock_.now());
  clock_.advance(1500ms);
  EXPECT_EQ(pick(Role::kPrefill), 1U) << "the pause doubles";
  for (int i = 0; i < 40; ++i) InstanceBoard::failed(p0, clock_.now());
  clock_.advance(30'001ms);
  EXPECT_EQ(pick(Role::kPrefill), 0U) << "and is bounded";
  InstanceBoard::failed(p0, clock_.now());
  InstanceBoard::failed(*board_.of(Role::kPrefill)[1], clock_.now());
  for (const std::size_t turn : {1U, 0U})
    EXPECT_EQ(pick(Role::kPrefill), turn) << "if all failed, they are still tried";
  InstanceBoard::succeeded(p0);
  EXPECT_EQ(p0.up_gauge.value(), 1);
  EXPECT_EQ(p0.failures_in_a_row, 0);
}

TEST_F(InstanceBoardTest, AnyOrderOfTakingAndGivingBackEndsAtZero) {
  std::mt19937 random(7);
  std::vector<LoadShare> shares;
  for (int i = 0; i < 5000; ++i) {
    const Role role = random() % 2 == 0 ? Role::kPrefill : Role::kDecode;
    const auto& instance = board_.of(role)[random() % 2];
    const std::size_t bytes = random() % 1'000'003;
    shares.push_back(role == Role::kPrefill ? InstanceBoard::take_prefill(instance, bytes)
                                            : InstanceBoard::take_decode(instance, bytes));
    auto& some = shares[random() % shares.size()];
    if (random() % 3 == 0) some.release_tokens();
    if (random() % 3 == 0) some.release_kv();
    if (random() % 3 == 0) some = LoadShare();
    if (random() % 5 == 0) std::swap(shares.front(), some);
  }
  for (const Role role : {Role::kPrefill, Role::kDecode}) {
    for (const auto& instance : board_.of(role)) {
      EXPECT_GE(instance->active_tokens, 0);
      EXPECT_GE(instance->active_kv, 0);
    }
  }
  shares.clear();
  for (const Role role : {Role::kPrefill, Role::kDecode}) {
    for (const auto& instance : board_.of(role)) {
      EXPECT_EQ(instance->active_tokens, 0);
      EXPECT_EQ(instance->active_kv, 0);
      EXPECT_EQ(instance->tokens_gauge.value(), 0.0);
    }
  }
}

}  // namespace
}  // namespace tandem::proxy
