// SPDX-License-Identifier: Apache-2.0
// Layerwise push, over {shm, tcp, tcp with TLS} x {plain, behind a fault decorator that cuts every read into pieces}:
// KV arrives as it is published and never before, and every party may leave or die at every step. Numbers in names of
// tests are those of the field's failures that they guard against (W5, ...).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <future>
#include <numeric>
#include <thread>
#include <tuple>

#include "contract/tcp_relay.h"
#include "contract/transfer_fixture.h"

namespace tandem::transfer::test {
namespace {

using ::testing::HasSubstr;

using Param = std::tuple<Way, bool>;

constexpr std::uint64_t kHash = 0x1234567890abcdefULL;
constexpr std::int64_t kTokens = 30;  // three whole blocks of 8, and six tokens

/// What a prefiller was told about its offer.
class Told {
 public:
  std::function<void(Status)> callback() {
    return [promise = promise_](Status status) { promise->set_value(std::move(status)); };
  }
  Status wait() {
    auto future = promise_->get_future();
    if (future.wait_for(kPatience) != std::future_status::ready) {
      ADD_FAILURE() << "the prefiller was not told";
      return Status(Code::kInternal, "not told");
    }
    return future.get();
  }

 private:
  std::shared_ptr<std::promise<Status>> promise_ = std::make_shared<std::promise<Status>>();
};

struct Waiting {
  FetchId id = 0;
  Delivery delivery;
  std::shared_ptr<Outcome> outcome = std::make_shared<Outcome>();
  std::shared_ptr<std::atomic<int>> offers = std::make_shared<std::atomic<int>>(0);  ///< accepted ones
};

class LayerwiseContract : public ::testing::TestWithParam<Param> {
 protected:
  using Change = std::function<void(TransferOptions& p, TransferOptions& d)>;

  TransportChoice transport() const { return transport_of(std::get<0>(GetParam())); }
  void set_faults(const std::function<void(Faults&)>& change) {
    Faults faults;
    if (std::get<1>(GetParam())) faults.piece_bytes = 300;
    if (change) change(faults);
    d->faults->set(faults);
  }
  void start(const Change& change = {}, const std::function<void(kv::Layout&)>& change_d = {}) {
    TransferOptions p_options = prefiller_options(transport());
    TransferOptions d_options = decoder_options(transport());
    d_options.bind_host = "127.0.0.1";
    d_options.receiver = true;
    p_options.tls = d_options.tls = tls_of(std::get<0>(GetParam()));
    if (change) change(p_options, d_options);
    kv::Layout d_layout = small_layout();
    if (change_d) change_d(d_layout);
    p = std::make_unique<Node>(p_options, small_layout());
    d = std::make_unique<Node>(d_options, d_layout);
    p->fill(11);
    set_faults({});
  }
  Waiting receive(std::vector<kv::BlockId> destination = {20, 31, 22, 23}, std::int64_t first = 0,
                  std::int64_t end = kTokens) {
    Waiting waiting;
    std::tie(waiting.id, waiting.delivery) = d->engine->receive(
        {std::move(destination), first, end, kTokens, kHash, [offers = waiting.offers] { ++*offers; }},
        [outcome = waiting.outcome](FetchId id, Result<FetchStats> result) { outcome->set(id, std::move(result)); });
    return waiting;
  }
  /// Opens a growing lease with all its blocks.
  Handover grow(std::uint64_t hash = kHash) {
    const Handover source = p->engine->open_growing_lease(kTokens, hash);
    p->engine->extend(source.lease, from);
    return source;
  }
  Status offer(const Delivery& decoder, const Handover& source) {
    Told told;
    p->engine->offer(decoder, source, told.callback());
    return told.wait();
  }
  void publish_all(const Handover& source, std::int32_t first_layer = 0) {
    for (std::int32_t layer = first_layer; layer < 3; ++layer) {
      p->engine->publish(source.lease, layer, layer + 1, kTokens);
    }
  }
  /// Layer `layer` of the tokens is the same in both.
  bool layer_arrived(std::int32_t layer, const std::vector<kv::BlockId>& at, std::int64_t end) const {
    const kv::Layout layout = small_layout();
    for (std::int64_t token = 0; token < end; ++token) {
      const auto block = static_cast<std::size_t>(token / 8);
      for (int k_or_v = 0; k_or_v < 2; ++k_or_v) {
        for (std::int32_t head = 0; head < 2; ++head) {
          const auto place = static_cast<std::int32_t>(token % 8);
          if (std::memcmp(p->alias + layout.offset(layer, from[block], k_or_v, head, place),
                          d->alias + layout.offset(layer, at[block], k_or_v, head, place), layout.token_bytes()) != 0) {
            return false;
          }
        }
      }
    }
    return true;
  }
  bool layer_untouched(std::int32_t layer, const std::vector<kv::BlockId>& blocks) const {
    const kv::Layout layout = small_layout();
    return std::all_of(blocks.begin(), blocks.end(), [&](kv::BlockId block) {
      const std::byte* start = d->alias + layout.offset(layer, block, 0, 0, 0);
      return std::all_of(start, start + layout.block_bytes(), [](std::byte b) { return b == std::byte{0}; });
    });
  }
  /// Nothing changes in the blocks any more.
  void expect_quiet(const std::vector<kv::BlockId>& blocks) const {
    const std::vector<std::byte> snapshot = block_bytes(*d, blocks);
    std::this_thread::sleep_for(20ms);
    EXPECT_EQ(block_bytes(*d, blocks), snapshot);
  }
  /// The next push works: nothing is left over from the failure before.
  void expect_healthy() {
    set_faults({});
    const Waiting waiting = receive({50, 51, 52, 53});
    const Handover source = grow();
    ASSERT_TRUE(offer(waiting.delivery, source).ok());
    publish_all(source);
    ASSERT_TRUE(waiting.outcome->wait()) << waiting.outcome->wait().error().to_string();
    EXPECT_TRUE(same_tokens(*p, from, *d, {50, 51, 52, 53}, 0, kTokens));
    EXPECT_EQ(p->lease_end(source.lease), LeaseEnd::kDone);
    EXPECT_TRUE(eventually([&] { return p->metric("tandem:kv_leases_open") == 0.0; }));
  }

  const std::vector<kv::BlockId> from = {9, 3, 4, 40};
  const std::vector<kv::BlockId> to = {20, 31, 22, 23};
  std::unique_ptr<Node> p;
  std::unique_ptr<Node> d;
};

TEST_P(LayerwiseContract, KvArrivesLayerByLayerAndNeverBeforeItIsPublished) {
  start();
  const Waiting waiting = receive();
  EXPECT_EQ(waiting.delivery.engine_id, "decoder-0");
  EXPECT_EQ(waiting.delivery.port, d->engine->port());
  EXPECT_EQ(waiting.delivery.incarnation, d->engine->incarnation());
  EXPECT_EQ(waiting.delivery.blocks, to);
  const Handover source = p->engine->open_growing_lease(kTokens, kHash);
  EXPECT_EQ(*waiting.offers, 0);
  ASSERT_TRUE(offer(waiting.delivery, source).ok());
  EXPECT_EQ(*waiting.offers, 1);
  ASSERT_TRUE(offer(waiting.delivery, source).ok()) << "said twice";
  EXPECT_EQ(*waiting.offers, 1);
  p->engine->extend(source.lease, {9, 3});
  p->engine->extend(source.lease, {4, 40});
  for (std::int32_t layer = 0; layer < 3; ++layer) {
    EXPECT_FALSE(waiting.outcome->finished());
    EXPECT_TRUE(layer_untouched(layer, to)) << layer;
    // What is there now is not what is published: it must not be taken, or summed, before.
    std::memset(p->alias + small_layout().offset(layer, 3, 0, 0, 0), 0x40 + layer, small_layout().block_bytes());
    p->engine->publish(source.lease, layer, layer + 1, kTokens);
    EXPECT_TRUE(eventually([&] { return layer_arrived(layer, to, kTokens); })) << layer;
  }
  ASSERT_TRUE(waiting.outcome->wait()) << waiting.outcome->wait().error().to_string();
  EXPECT_EQ(waiting.outcome->wait()->bytes, kTokens * small_layout().bytes_per_token());
  EXPECT_EQ(p->lease_end(source.lease), LeaseEnd::kDone);
  EXPECT_TRUE(untouched(*d, {19, 21, 24, 30, 32}));
}

TEST_P(LayerwiseContract, ChunksMayEndWithinBlocksAndTheDecodersPrefixIsSkipped) {
  start();
  for (const std::int64_t first : {0, 8, 16}) {
    std::memset(d->alias, 0, small_layout().total_bytes());
    const std::vector<kv::BlockId> tail(to.begin() + first / 8, to.end());
    const Waiting waiting = receive(tail, first, kTokens - 1);
    const Handover source = p->engine->open_growing_lease(kTokens, kHash);
    ASSERT_TRUE(offer(waiting.delivery, source).ok());
    std::size_t given = 0;
    for (const std::int64_t end : {5, 11, 12, 24, 30}) {
      const auto needed = static_cast<std::size_t>((end + 7) / 8);
      p->engine->extend(source.lease, {from.begin() + static_cast<std::ptrdiff_t>(given),
                                       from.begin() + static_cast<std::ptrdiff_t>(needed)});
      given = needed;
      for (std::int32_t layer = 0; layer < 3; ++layer) p->engine->publish(source.lease, layer, layer + 1, end);
    }
    ASSERT_TRUE(waiting.outcome->wait()) << first << ": " << waiting.outcome->wait().error().to_string();
    EXPECT_TRUE(same_tokens(*p, from, *d, tail, first, kTokens - 1)) << first;
    EXPECT_EQ(p->lease_end(source.lease), LeaseEnd::kDone);
  }
}

TEST_P(LayerwiseContract, ADecoderThatComesLateGetsAllAtOnce) {
  start();
  const Waiting waiting = receive();
  const Handover source = grow();
  publish_all(source);
  ASSERT_TRUE(offer(waiting.delivery, source).ok());
  ASSERT_TRUE(waiting.outcome->wait()) << waiting.outcome->wait().error().to_string();
  EXPECT_TRUE(same_tokens(*p, from, *d, to, 0, kTokens));
  EXPECT_EQ(p->lease_end(source.lease), LeaseEnd::kDone);
}

TEST_P(LayerwiseContract, PublishFromTheWorkersThreadOfManyPromptsAtATime) {
  start();
  constexpr int kPrompts = 16;
  std::vector<Waiting> waiting;
  std::vector<Handover> sources;
  for (int i = 0; i < kPrompts; ++i) {
    const kv::BlockId block = 4 * i % 60;
    waiting.push_back(receive({block, block + 1, block + 2, block + 3}));
    sources.push_back(grow());
    p->engine->offer(waiting.back().delivery, sources.back(), [](const Status& told) { EXPECT_TRUE(told.ok()); });
  }
  std::jthread worker([&] {
    for (std::int32_t layer = 0; layer < 3; ++layer) {
      for (const Handover& source : sources) p->engine->publish(source.lease, layer, layer + 1, kTokens);
    }
  });
  for (int i = 0; i < kPrompts; ++i) {
    const auto at = static_cast<std::size_t>(i);
    ASSERT_TRUE(waiting[at].outcome->wait()) << waiting[at].outcome->wait().error().to_string();
    EXPECT_EQ(p->lease_end(sources[at].lease), LeaseEnd::kDone);
  }
  EXPECT_TRUE(same_tokens(*p, from, *d, {0, 1, 2, 3}, 0, kTokens));
}

// ---- offers that are refused

TEST_P(LayerwiseContract, W5AnOfferThatNobodyWaitsForIsRefusedAndTheLeaseCanEnd) {
  start();
  const Waiting waiting = receive();
  Delivery unknown = waiting.delivery;
  unknown.reception ^= 0x55;
  const Handover source = grow();
  const Status told = offer(unknown, source);
  EXPECT_EQ(told.code(), Code::kNotFound);
  EXPECT_THAT(told.message(), HasSubstr("decoder-0"));
  p->engine->revoke(source.lease);
  EXPECT_EQ(p->lease_end(source.lease), LeaseEnd::kRevoked);
  Delivery restarted = waiting.delivery;
  restarted.incarnation += 1;
  EXPECT_THAT(offer(restarted, source).message(), HasSubstr("restarted"));
  EXPECT_FALSE(waiting.outcome->finished());
  d->engine->cancel(waiting.id);
  EXPECT_EQ(waiting.outcome->wait().error().code(), Code::kCancelled);
  EXPECT_EQ(offer(waiting.delivery, source).code(), Code::kNotFound);
  expect_healthy();
}

TEST_P(LayerwiseContract, OffersOfAnotherPromptAreRefusedNamingBoth) {
  start();
  const Waiting waiting = receive();
  const Handover other = grow(kHash + 1);
  const Status told = offer(waiting.delivery, other);
  EXPECT_EQ(told.code(), Code::kFailedPrecondition);
  EXPECT_THAT(told.message(), HasSubstr("1234567890abcdf0"));
  EXPECT_THAT(told.message(), HasSubstr("1234567890abcdef"));
  const Handover longer = p->engine->open_growing_lease(kTokens + 1, kHash);
  EXPECT_THAT(offer(waiting.delivery, longer).message(), HasSubstr("31 tokens"));
  // The right one is still welcome.
  const Handover source = grow();
  ASSERT_TRUE(offer(waiting.delivery, source).ok());
  publish_all(source);
  ASSERT_TRUE(waiting.outcome->wait());
}

TEST_P(LayerwiseContract, LayoutsThatDoNotFitAreNamed) {
  start({}, [](kv::Layout& layout) { layout.fingerprint = "another-model"; });
  const Waiting waiting = receive();
  const Status told = offer(waiting.delivery, grow());
  EXPECT_EQ(told.code(), Code::kFailedPrecondition);
  EXPECT_THAT(told.message(), HasSubstr("another-model"));
  EXPECT_FALSE(waiting.outcome->finished());
}

TEST_P(LayerwiseContract, AnOfferTwiceIsOneAndASecondLeaseIsRefused) {
  start();
  const Waiting waiting = receive();
  const Handover source = grow();
  ASSERT_TRUE(offer(waiting.delivery, source).ok());
  EXPECT_TRUE(offer(waiting.delivery, source).ok());
  const Handover second = grow();
  EXPECT_EQ(offer(waiting.delivery, second).code(), Code::kAlreadyExists);
  publish_all(source);
  ASSERT_TRUE(waiting.outcome->wait()) << waiting.outcome->wait().error().to_string();
  EXPECT_EQ(p->lease_end(source.lease), LeaseEnd::kDone);
}

TEST_P(LayerwiseContract, NobodyThereOrNobodyWhoListensIsToldWithinTheConnectTimeout) {
  start([](TransferOptions& p_options, TransferOptions&) { p_options.connect_timeout = 300ms; });
  const Waiting waiting = receive();
  auto silent = listen_tcp("127.0.0.1", 0, "a test");
  ASSERT_TRUE(silent);
  Delivery to_silent = waiting.delivery;
  to_silent.port = bound_port(*silent);
  const Handover source = grow();
  EXPECT_THAT(offer(to_silent, source).message(), HasSubstr("within 300 ms"));
  Delivery to_prefiller = waiting.delivery;
  to_prefiller.port = p->engine->port();
  EXPECT_THAT(offer(to_prefiller, source).message(), HasSubstr("takes no layerwise pushes"));
  d->kill();
  EXPECT_EQ(waiting.outcome->wait().error().code(), Code::kCancelled);
  const Status told = offer(waiting.delivery, source);
  EXPECT_EQ(told.code(), Code::kUnavailable);
  EXPECT_THAT(told.message(), HasSubstr("127.0.0.1:" + std::to_string(waiting.delivery.port)));
}

TEST_P(LayerwiseContract, W5AReceptionThatNoOfferReachesEndsByItsTimeout) {
  start([](TransferOptions&, TransferOptions& d_options) { d_options.offer_timeout = 100ms; });
  const Waiting waiting = receive();
  ASSERT_FALSE(waiting.outcome->wait(3s));
  EXPECT_EQ(waiting.outcome->wait().error().code(), Code::kDeadlineExceeded);
  EXPECT_THAT(waiting.outcome->wait().error().message(), HasSubstr("100 ms"));
  expect_healthy();
}

TEST_P(LayerwiseContract, WrongRangesAreRefusedAtOnce) {
  start();
  EXPECT_EQ(receive({20}, 0, kTokens).outcome->wait().error().code(), Code::kInvalidArgument);
  EXPECT_EQ(receive(to, 4, kTokens).outcome->wait().error().code(), Code::kInvalidArgument);
  EXPECT_EQ(receive({20, 21, 22, 64}).outcome->wait().error().code(), Code::kInvalidArgument);
  EXPECT_EQ(receive(to, 0, kTokens + 1).outcome->wait().error().code(), Code::kInvalidArgument);
}

// ---- somebody leaves

TEST_P(LayerwiseContract, CancelAfterTheOfferAndBeforeAnyPieceDropsTheLease) {
  start();
  const Waiting waiting = receive();
  const Handover source = grow();
  ASSERT_TRUE(offer(waiting.delivery, source).ok());
  d->engine->cancel(waiting.id);
  EXPECT_EQ(waiting.outcome->wait().error().code(), Code::kCancelled);
  EXPECT_EQ(p->lease_end(source.lease), LeaseEnd::kDropped);
  // Whoever computes does not know yet.
  p->engine->extend(source.lease, {});
  publish_all(source);
  expect_healthy();
}

TEST_P(LayerwiseContract, CancelMidwayDropsTheLeaseAndNothingWritesAnyMore) {
  start();
  set_faults([](Faults& faults) {
    faults.piece_bytes = 256;
    faults.piece_pause = 3ms;
  });
  const Waiting waiting = receive();
  const Handover source = grow();
  ASSERT_TRUE(offer(waiting.delivery, source).ok());
  publish_all(source);
  ASSERT_TRUE(eventually([&] { return !untouched(*d, to); }));
  d->engine->cancel(waiting.id);
  EXPECT_EQ(waiting.outcome->wait().error().code(), Code::kCancelled);
  expect_quiet(to);
  EXPECT_EQ(p->lease_end(source.lease), LeaseEnd::kDropped);
  expect_healthy();
}

TEST_P(LayerwiseContract, CancelIsHarmlessAtAnyMoment) {
  start();
  for (int round = 0; round < 30; ++round) {
    const Waiting waiting = receive();
    const Handover source = grow();
    std::shared_ptr<std::promise<Status>> told = std::make_shared<std::promise<Status>>();
    p->engine->offer(waiting.delivery, source, [told](Status status) { told->set_value(std::move(status)); });
    if (round % 3 != 0) std::this_thread::sleep_for(std::chrono::microseconds(round * 30));
    publish_all(source);
    d->engine->cancel(waiting.id);
    const Result<FetchStats>& result = waiting.outcome->wait();
    EXPECT_TRUE(result.has_value() || result.error().code() == Code::kCancelled);
    auto future = told->get_future();
    ASSERT_EQ(future.wait_for(kPatience), std::future_status::ready);
    if (!future.get().ok()) p->engine->revoke(source.lease);
    EXPECT_TRUE(p->lease_end(source.lease).has_value());
  }
  expect_healthy();
}

TEST_P(LayerwiseContract, W5RevokeMidwayEndsTheReception) {
  start();
  const Waiting waiting = receive();
  const Handover source = grow();
  ASSERT_TRUE(offer(waiting.delivery, source).ok());
  p->engine->publish(source.lease, 0, 1, 24);
  ASSERT_TRUE(eventually([&] { return layer_arrived(0, to, 24); }));
  p->engine->revoke(source.lease);
  ASSERT_FALSE(waiting.outcome->wait());
  EXPECT_EQ(waiting.outcome->wait().error().code(), Code::kUnavailable);
  EXPECT_THAT(waiting.outcome->wait().error().message(), HasSubstr("revoked"));
  publish_all(source, 1);  // ignored
  expect_quiet(to);
  EXPECT_EQ(p->lease_end(source.lease), LeaseEnd::kRevoked);
  expect_healthy();
}

TEST_P(LayerwiseContract, RevokeWhilePiecesMoveOrAreSummed) {
  start();
  for (int round = 0; round < 20; ++round) {
    const Waiting waiting = receive();
    const Handover source = grow();
    ASSERT_TRUE(offer(waiting.delivery, source).ok());
    publish_all(source);
    std::this_thread::sleep_for(std::chrono::microseconds(round * 25));
    p->engine->revoke(source.lease);
    const Result<FetchStats>& result = waiting.outcome->wait();
    EXPECT_TRUE(result.has_value() || result.error().code() == Code::kUnavailable) << result.error().to_string();
    EXPECT_TRUE(p->lease_end(source.lease).has_value());
  }
  expect_healthy();
}

TEST_P(LayerwiseContract, W5APrefillerThatDiesOrComesBackAnotherIsAnErrorSoon) {
  start();
  for (const bool back : {false, true}) {
    const Waiting waiting = receive();
    const Handover source = grow();
    ASSERT_TRUE(offer(waiting.delivery, source).ok());
    p->engine->publish(source.lease, 0, 1, kTokens);
    ASSERT_TRUE(eventually([&] { return layer_arrived(0, to, kTokens); }));
    if (back) {
      p->restart();
    } else {
      p->kill();
    }
    ASSERT_FALSE(waiting.outcome->wait(5s));
    EXPECT_EQ(waiting.outcome->wait().error().code(), Code::kUnavailable);
    expect_quiet(to);
    if (!back) p->restart();
    expect_healthy();
  }
}

TEST_P(LayerwiseContract, APrefillerThatStopsPublishingIsAnErrorByTheDeadline) {
  start([](TransferOptions&, TransferOptions& d_options) { d_options.fetch_timeout = 200ms; });
  const Waiting waiting = receive();
  const Handover source = grow();
  ASSERT_TRUE(offer(waiting.delivery, source).ok());
  p->engine->publish(source.lease, 0, 1, kTokens);
  ASSERT_FALSE(waiting.outcome->wait(5s));
  EXPECT_EQ(waiting.outcome->wait().error().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(p->lease_end(source.lease), LeaseEnd::kDropped);
  expect_healthy();
}

TEST_P(LayerwiseContract, ADecoderThatFallsSilentLosesTheLease) {
  start([](TransferOptions& p_options, TransferOptions& d_options) {
    p_options.lease_term = d_options.lease_term = 200ms;
    d_options.hooks.send_heartbeats = false;
  });
  const Waiting waiting = receive();
  const Handover source = grow();
  ASSERT_TRUE(offer(waiting.delivery, source).ok());
  EXPECT_EQ(p->lease_end(source.lease), LeaseEnd::kExpired);
  EXPECT_EQ(waiting.outcome->wait().error().code(), Code::kUnavailable);
}

TEST_P(LayerwiseContract, HeartbeatsKeepAGrowingLeaseOverManyTerms) {
  start([](TransferOptions& p_options, TransferOptions& d_options) {
    p_options.lease_term = d_options.lease_term = 600ms;
  });
  const Waiting waiting = receive();
  const Handover source = grow();
  ASSERT_TRUE(offer(waiting.delivery, source).ok());
  EXPECT_EQ(p->lease_end(source.lease, 1500ms), std::nullopt);
  publish_all(source);
  ASSERT_TRUE(waiting.outcome->wait()) << waiting.outcome->wait().error().to_string();
}

TEST_P(LayerwiseContract, ALostControlConnectionBetweenPiecesCostsNothing) {
  start();
  TcpRelay relay(p->engine->port());
  const Waiting waiting = receive();
  Handover source = grow();
  source.port = relay.port();
  ASSERT_TRUE(offer(waiting.delivery, source).ok());
  p->engine->publish(source.lease, 0, 1, kTokens);
  ASSERT_TRUE(eventually([&] { return layer_arrived(0, to, kTokens); }));
  std::this_thread::sleep_for(20ms);  // the piece is verified
  relay.cut_all();
  publish_all(source, 1);
  ASSERT_TRUE(waiting.outcome->wait()) << waiting.outcome->wait().error().to_string();
  EXPECT_TRUE(same_tokens(*p, from, *d, to, 0, kTokens));
  EXPECT_EQ(p->lease_end(source.lease), LeaseEnd::kDone);
}

TEST_P(LayerwiseContract, ADeadDecoderLosesTheLeaseAfterAThirdOfATerm) {
  start([](TransferOptions& p_options, TransferOptions& d_options) {
    p_options.lease_term = d_options.lease_term = 3000ms;
  });
  TcpRelay relay(p->engine->port());
  const Waiting waiting = receive();
  Handover source = grow();
  source.port = relay.port();
  ASSERT_TRUE(offer(waiting.delivery, source).ok());
  p->engine->publish(source.lease, 0, 1, kTokens);
  ASSERT_TRUE(eventually([&] { return layer_arrived(0, to, kTokens); }));
  const auto cut = std::chrono::steady_clock::now();
  relay.refuse_new();
  relay.cut_all();
  EXPECT_EQ(p->lease_end(source.lease), LeaseEnd::kPeerDied);
  EXPECT_LT(std::chrono::steady_clock::now() - cut, 2500ms);
  EXPECT_EQ(waiting.outcome->wait().error().code(), Code::kUnavailable);
}

// ---- bytes that are wrong

TEST_P(LayerwiseContract, ACorruptedByteInAnyPieceIsFound) {
  start();
  for (std::uint64_t byte = 0; byte < 1500; byte += 211) {
    set_faults([&](Faults& faults) { faults.corrupt_byte = byte; });
    const Waiting waiting = receive();
    const Handover source = grow();
    ASSERT_TRUE(offer(waiting.delivery, source).ok());
    publish_all(source);
    ASSERT_FALSE(waiting.outcome->wait()) << byte;
    EXPECT_EQ(waiting.outcome->wait().error().code(), Code::kDataLoss);
    EXPECT_EQ(p->lease_end(source.lease), LeaseEnd::kDropped);
  }
  expect_healthy();
}

TEST_P(LayerwiseContract, OneInstanceCanBeBothSides) {
  TransferOptions options = prefiller_options(transport());
  options.consumer = options.receiver = true;
  options.transport = transport();
  Node node(options, small_layout());
  node.fill(5);
  auto outcome = std::make_shared<Outcome>();
  const auto [id, delivery] = node.engine->receive(
      {{20, 21, 22, 23}, 0, kTokens, kTokens, kHash},
      [outcome](FetchId which, Result<FetchStats> result) { outcome->set(which, std::move(result)); });
  const Handover source = node.engine->open_growing_lease(kTokens, kHash);
  node.engine->extend(source.lease, from);
  Told told;
  node.engine->offer(delivery, source, told.callback());
  ASSERT_TRUE(told.wait().ok());
  node.engine->publish(source.lease, 0, 3, 16);
  node.engine->publish(source.lease, 0, 3, kTokens);
  ASSERT_TRUE(outcome->wait()) << outcome->wait().error().to_string();
  EXPECT_TRUE(same_tokens(node, from, node, {20, 21, 22, 23}, 0, kTokens));
  EXPECT_EQ(node.lease_end(source.lease), LeaseEnd::kDone);
}

TEST_P(LayerwiseContract, StopEndsReceptionsAndOffersAndSaysSo) {
  start();
  const Waiting idle = receive();
  const Waiting offered = receive({30, 31, 32, 33});
  const Handover source = grow();
  ASSERT_TRUE(offer(offered.delivery, source).ok());
  p->engine->publish(source.lease, 0, 1, kTokens);
  ASSERT_TRUE(eventually([&] { return layer_arrived(0, {30, 31, 32, 33}, kTokens); }));
  d->engine->stop();
  EXPECT_EQ(idle.outcome->wait().error().code(), Code::kCancelled);
  EXPECT_EQ(offered.outcome->wait().error().code(), Code::kCancelled);
  EXPECT_EQ(receive().outcome->wait().error().code(), Code::kCancelled);
  EXPECT_EQ(p->lease_end(source.lease), LeaseEnd::kDropped);
  auto silent = listen_tcp("127.0.0.1", 0, "a test");
  ASSERT_TRUE(silent);
  Delivery nowhere = idle.delivery;
  nowhere.port = bound_port(*silent);
  Told told;
  p->engine->offer(nowhere, grow(), told.callback());
  p->engine->stop();
  EXPECT_EQ(told.wait().code(), Code::kCancelled);
  EXPECT_EQ(offer(nowhere, source).code(), Code::kCancelled);
}

TEST_P(LayerwiseContract, AnInstanceThatDoesNotListenCannotReceive) {
  start([](TransferOptions&, TransferOptions& d_options) { d_options.receiver = false; });
  EXPECT_EQ(receive().outcome->wait().error().code(), Code::kFailedPrecondition);
}

std::string param_name(const ::testing::TestParamInfo<Param>& info) {
  return std::string(way_name(std::get<0>(info.param))) + (std::get<1>(info.param) ? "_in_pieces" : "_plain");
}
INSTANTIATE_TEST_SUITE_P(Transports, LayerwiseContract,
                         ::testing::Combine(::testing::Values(Way::kShm, Way::kTcp, Way::kTls), ::testing::Bool()),
                         param_name);

}  // namespace
}  // namespace tandem::transfer::test
