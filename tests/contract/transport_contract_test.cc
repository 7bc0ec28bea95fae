// SPDX-License-Identifier: Apache-2.0
// What every transport must do, over {shm, tcp, tcp with TLS} x {plain, behind a fault decorator that cuts every read
// into pieces}. Numbers in names of tests are those of the field's failures that they guard against (U005, ...).
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <thread>
#include <tuple>

#include "contract/transfer_fixture.h"

namespace tandem::transfer::test {
namespace {

using ::testing::HasSubstr;

using Param = std::tuple<Way, bool>;

class TransportContract : public ::testing::TestWithParam<Param> {
 protected:
  TransportChoice transport() const { return transport_of(std::get<0>(GetParam())); }
  const char* transport_name() const { return transport() == TransportChoice::kShm ? "shm" : "tcp"; }

  /// The faults of this parameter, plus the test's own.
  Faults base_faults() const {
    Faults faults;
    if (std::get<1>(GetParam())) faults.piece_bytes = 1000;  // not a multiple of anything in the layout
    return faults;
  }
  void set_faults(const std::function<void(Faults&)>& change) {
    Faults faults = base_faults();
    change(faults);
    d->faults->set(faults);
  }
  /// Everything arrives, but takes its time: pieces with pauses, long enough for the test to act in between.
  void make_slow(std::chrono::milliseconds pause = 5ms) {
    set_faults([&](Faults& faults) {
      faults.piece_bytes = 512;
      faults.piece_pause = pause;
    });
  }

  void start(std::chrono::milliseconds term = 30s, const std::function<void(TransferOptions&)>& change = {}) {
    TransferOptions p_options = prefiller_options(transport());
    TransferOptions d_options = decoder_options(transport());
    p_options.lease_term = d_options.lease_term = term;
    p_options.tls = d_options.tls = tls_of(std::get<0>(GetParam()));
    if (change) change(d_options);
    p = std::make_unique<Node>(p_options, small_layout());
    d = std::make_unique<Node>(d_options, small_layout());
    p->fill(11);
    d->faults->set(base_faults());
  }
  static std::vector<kv::BlockId> run(kv::BlockId first, int count) {
    std::vector<kv::BlockId> blocks(static_cast<std::size_t>(count));
    std::iota(blocks.begin(), blocks.end(), first);
    return blocks;
  }
  /// The next fetch works: nothing is left over from the failure before.
  void expect_healthy() {
    d->faults->set(base_faults());
    const Handover handover = p->lease({60, 62}, 16);
    const auto outcome = d->fetch(handover, {61, 63}, 0, 16);
    ASSERT_TRUE(outcome->wait()) << outcome->wait().error().to_string();
    EXPECT_TRUE(same_tokens(*p, {60, 62}, *d, {61, 63}, 0, 16));
    EXPECT_EQ(p->lease_end(handover.lease), LeaseEnd::kDone);
  }

  std::unique_ptr<Node> p;
  std::unique_ptr<Node> d;
};

TEST_P(TransportContract, AWholePromptArrivesAndTheLeaseIsDoneAtOnce) {
  start();
  const std::vector<kv::BlockId> from = {9, 3, 4, 5, 40};
  const std::vector<kv::BlockId> to = {1, 2, 50, 51, 8};
  const Handover handover = p->lease(from, 40);
  d->engine->hold(handover);
  const auto outcome = d->fetch(handover, to, 0, 40);
  ASSERT_TRUE(outcome->wait()) << outcome->wait().error().to_string();
  EXPECT_TRUE(same_tokens(*p, from, *d, to, 0, 40));
  EXPECT_EQ(p->lease_end(handover.lease), LeaseEnd::kDone);
  const FetchStats& stats = *outcome->wait();
  EXPECT_EQ(stats.transport, transport_name());
  EXPECT_EQ(stats.bytes, 40 * small_layout().bytes_per_token());
  // 9->1, 3->2, 4,5->50,51 (one run), 40->8 in each of the three layers.
  EXPECT_EQ(stats.copies, 12U);
  EXPECT_EQ(d->metric(std::string("tandem:kv_transfer_bytes_total{transport=\"") + transport_name() + "\"}"),
            static_cast<double>(stats.bytes));
  EXPECT_EQ(d->metric("tandem:kv_transfer_request_bytes_sum"), static_cast<double>(stats.bytes));
  EXPECT_EQ(d->metric("tandem:kv_transfer_request_copies_sum"), 12.0);
  EXPECT_EQ(p->metric("tandem:kv_leases_open"), 0.0);
  EXPECT_EQ(p->metric("tandem:kv_lease_ends_total{reason=\"done\"}"), 1.0);
}

TEST_P(TransportContract, U054PromptsShorterAndLongerThanBlocksTouchOnlyTheirTokens) {
  start();
  for (const std::int64_t tokens : {1, 2, 7, 8, 9, 15, 16, 17}) {
    std::memset(d->alias, 0, small_layout().total_bytes());
    const Handover handover = p->lease({20, 22, 24}, tokens);
    const auto outcome = d->fetch(handover, {30, 32, 34}, 0, tokens);
    ASSERT_TRUE(outcome->wait()) << tokens << ": " << outcome->wait().error().to_string();
    EXPECT_TRUE(same_tokens(*p, {20, 22, 24}, *d, {30, 32, 34}, 0, tokens)) << tokens;
    EXPECT_TRUE(untouched(*d, {0, 29, 31, 33, 35})) << tokens;
    EXPECT_EQ(outcome->wait()->bytes, static_cast<std::uint64_t>(tokens) * small_layout().bytes_per_token());
  }
}

TEST_P(TransportContract, U052APrefixThatIsHereAlreadyIsSkippedByPosition) {
  start();
  const std::vector<kv::BlockId> from = {5, 6, 7, 8};
  const Handover handover = p->lease(from, 30);
  d->engine->hold(handover);  // so that the lease outlives the fetches
  for (const auto& [first, end] : {std::pair<std::int64_t, std::int64_t>{8, 30}, {16, 29}, {24, 25}, {8, 16}}) {
    d->engine->hold(handover);
    const auto blocks = run(40, static_cast<int>((end - first + 7) / 8));
    std::memset(d->alias, 0, small_layout().total_bytes());
    const auto outcome = d->fetch(handover, blocks, first, end);
    ASSERT_TRUE(outcome->wait()) << first << ": " << outcome->wait().error().to_string();
    EXPECT_TRUE(same_tokens(*p, from, *d, blocks, first, end)) << first;
    EXPECT_TRUE(untouched(*d, {39, static_cast<kv::BlockId>(40 + static_cast<kv::BlockId>(blocks.size()))}));
  }
  EXPECT_EQ(p->num_lease_ends(), 0);
  d->engine->drop(handover);
  EXPECT_EQ(p->lease_end(handover.lease), LeaseEnd::kDone);
}

TEST_P(TransportContract, U010AFullyCachedPromptIsDroppedWithoutAFetch) {
  start();
  const Handover handover = p->lease({1}, 8);
  d->engine->hold(handover);
  d->engine->drop(handover);
  EXPECT_EQ(p->lease_end(handover.lease), LeaseEnd::kDropped);
  const Handover never_held = p->lease({2}, 8);
  d->engine->drop(never_held);
  EXPECT_EQ(p->lease_end(never_held.lease), LeaseEnd::kDropped);
}

TEST_P(TransportContract, SeveralFetchesShareOneHandover) {
  start();
  const Handover handover = p->lease({10, 11, 12}, 24);
  for (int i = 0; i < 3; ++i) d->engine->hold(handover);
  const auto a = d->fetch(handover, {20, 21, 22}, 0, 24);
  const auto b = d->fetch(handover, {30, 31, 32}, 0, 24);
  ASSERT_TRUE(a->wait()) << a->wait().error().to_string();
  ASSERT_TRUE(b->wait()) << b->wait().error().to_string();
  EXPECT_TRUE(same_tokens(*p, handover.blocks, *d, {30, 31, 32}, 0, 24));
  EXPECT_EQ(p->num_lease_ends(), 0) << "the third hold is still there";
  d->engine->drop(handover);
  EXPECT_EQ(p->lease_end(handover.lease), LeaseEnd::kDone);
}

TEST_P(TransportContract, U031ALeaseThatExpiredBeforeTheFetchIsAnError) {
  start(150ms);
  const Handover handover = p->lease({1, 2}, 16);
  EXPECT_EQ(p->lease_end(handover.lease), LeaseEnd::kExpired);
  const auto outcome = d->fetch(handover, {3, 4}, 0, 16);
  ASSERT_FALSE(outcome->wait());
  EXPECT_EQ(outcome->wait().error().code(), Code::kUnavailable);
  EXPECT_THAT(outcome->wait().error().message(), HasSubstr("expired"));
  EXPECT_TRUE(untouched(*d, {3, 4}));
}

TEST_P(TransportContract, HeartbeatsKeepALeaseOverManyTerms) {
  start(900ms);
  const Handover handover = p->lease({1, 2}, 16);
  d->engine->hold(handover);
  EXPECT_EQ(p->lease_end(handover.lease, 2500ms), std::nullopt);
  const auto outcome = d->fetch(handover, {3, 4}, 0, 16);
  ASSERT_TRUE(outcome->wait()) << outcome->wait().error().to_string();
  EXPECT_EQ(p->lease_end(handover.lease), LeaseEnd::kDone);
}

TEST_P(TransportContract, ALeaseThatExpiresDuringASlowFetchEndsIt) {
  start(200ms, [](TransferOptions& options) { options.hooks.send_heartbeats = false; });
  make_slow(20ms);
  const Handover handover = p->lease(run(0, 16), 128);
  const auto outcome = d->fetch(handover, run(16, 16), 0, 128);
  ASSERT_FALSE(outcome->wait());
  EXPECT_EQ(outcome->wait().error().code(), Code::kUnavailable) << outcome->wait().error().to_string();
  EXPECT_EQ(p->lease_end(handover.lease), LeaseEnd::kExpired);
}

TEST_P(TransportContract, RevokeEndsAFetchAndIsReportedWhenItsReaderHasStopped) {
  start();
  make_slow();
  const Handover handover = p->lease(run(0, 16), 128);
  const auto outcome = d->fetch(handover, run(16, 16), 0, 128);
  ASSERT_TRUE(eventually([&] { return !untouched(*d, {16}); }));
  p->engine->revoke(handover.lease);
  ASSERT_FALSE(outcome->wait());
  EXPECT_EQ(outcome->wait().error().code(), Code::kUnavailable);
  EXPECT_THAT(outcome->wait().error().message(), HasSubstr("revoked"));
  EXPECT_EQ(p->lease_end(handover.lease), LeaseEnd::kRevoked);
  p->engine->revoke(handover.lease);  // again: ignored
  expect_healthy();
  EXPECT_EQ(p->num_lease_ends(), 2);
}

TEST_P(TransportContract, U021DuplicateAndUnknownReleasesAreCountedAndIgnored) {
  start();
  const Handover handover = p->lease({1}, 8);
  const auto outcome = d->fetch(handover, {2}, 0, 8);
  ASSERT_TRUE(outcome->wait());
  EXPECT_EQ(p->lease_end(handover.lease), LeaseEnd::kDone);
  d->engine->drop(handover);
  Handover unknown = handover;
  unknown.lease.id ^= 0x55;
  d->engine->drop(unknown);
  EXPECT_TRUE(eventually([&] { return p->metric("tandem:kv_lease_messages_ignored_total") == 2.0; }));
  expect_healthy();
  EXPECT_EQ(p->num_lease_ends(), 2);
}

TEST_P(TransportContract, U005ADroppedConnectionIsAnErrorAndTheNextFetchWorks) {
  start();
  set_faults([](Faults& faults) { faults.drop_after = 700; });
  const Handover handover = p->lease({1, 2}, 16);
  const auto outcome = d->fetch(handover, {3, 4}, 0, 16);
  ASSERT_FALSE(outcome->wait());
  EXPECT_EQ(outcome->wait().error().code(), Code::kUnavailable);
  EXPECT_EQ(p->lease_end(handover.lease), LeaseEnd::kDropped) << "a failed fetch gives the blocks back";
  EXPECT_EQ(d->metric("tandem:kv_transfer_failures_total{reason=\"unavailable\"}"), 1.0);
  expect_healthy();
}

TEST_P(TransportContract, ARefusedReadIsAnErrorAndTheNextFetchWorks) {
  start();
  set_faults([](Faults& faults) { faults.refuse = true; });
  const Handover handover = p->lease({1, 2}, 16);
  const auto outcome = d->fetch(handover, {3, 4}, 0, 16);
  ASSERT_FALSE(outcome->wait());
  EXPECT_EQ(outcome->wait().error().code(), Code::kUnavailable);
  EXPECT_TRUE(untouched(*d, {3, 4}));
  expect_healthy();
}

TEST_P(TransportContract, AStalledReadEndsByTheDeadline) {
  start(30s, [](TransferOptions& options) { options.fetch_timeout = 200ms; });
  set_faults([](Faults& faults) { faults.stall_after = 100; });
  const Handover handover = p->lease({1, 2}, 16);
  const auto outcome = d->fetch(handover, {3, 4}, 0, 16);
  ASSERT_FALSE(outcome->wait());
  EXPECT_EQ(outcome->wait().error().code(), Code::kDeadlineExceeded);
  EXPECT_THAT(outcome->wait().error().message(), HasSubstr("200 ms"));
  expect_healthy();
}

TEST_P(TransportContract, ASlowReadWithProgressOutlivesTheDeadline) {
  start(30s, [](TransferOptions& options) { options.fetch_timeout = 900ms; });
  make_slow(60ms);
  const Handover handover = p->lease(run(0, 4), 32);  // 12288 bytes: 24 pieces, over 1400 ms
  const auto outcome = d->fetch(handover, run(16, 4), 0, 32);
  ASSERT_TRUE(outcome->wait()) << outcome->wait().error().to_string();
  EXPECT_TRUE(same_tokens(*p, run(0, 4), *d, run(16, 4), 0, 32));
}

TEST_P(TransportContract, ACorruptedByteIsFoundWhereverItIs) {
  start();
  const std::uint64_t bytes = 16 * small_layout().bytes_per_token();
  int found = 0;
  for (std::uint64_t byte = 0; byte < bytes; byte += 397, ++found) {
    set_faults([&](Faults& faults) { faults.corrupt_byte = byte; });
    const auto outcome = d->fetch(p->lease({1, 2}, 16), {3, 4}, 0, 16);
    ASSERT_FALSE(outcome->wait()) << byte;
    EXPECT_EQ(outcome->wait().error().code(), Code::kDataLoss) << byte;
    EXPECT_EQ(outcome->wait().error().scope(), Scope::kTransfer);
    EXPECT_THAT(outcome->wait().error().message(), HasSubstr("checksum"));
  }
  EXPECT_EQ(d->metric("tandem:kv_transfer_failures_total{reason=\"data_loss\"}"), static_cast<double>(found));
  expect_healthy();
}

TEST_P(TransportContract, MemoryThatChangedOnTheOwnerSinceTheLeaseIsFound) {
  start();
  const Handover handover = p->lease({1, 2}, 16);
  for (int i = 0; i < 2; ++i) d->engine->hold(handover);
  // Checksums are made when the lease is opened; a fetch shows that they are there.
  const auto before = d->fetch(handover, {3, 4}, 0, 16);
  ASSERT_TRUE(before->wait());
  p->alias[small_layout().offset(2, 2, 1, 1, 3)] ^= std::byte{1};
  const auto after = d->fetch(handover, {5, 6}, 0, 16);
  ASSERT_FALSE(after->wait());
  EXPECT_EQ(after->wait().error().code(), Code::kDataLoss);
  EXPECT_THAT(after->wait().error().message(), HasSubstr("block 2 (layer 2, V, KV head 1"));
}

TEST_P(TransportContract, U030AfterCancelNothingWritesAnyMore) {
  start();
  make_slow(1ms);
  for (int round = 0; round < 5; ++round) {
    const auto to = run(16, 16);
    std::memset(d->alias, 0, small_layout().total_bytes());
    const Handover handover = p->lease(run(0, 16), 128);
    const auto outcome = d->fetch(handover, to, 0, 128);
    ASSERT_TRUE(eventually([&] { return !untouched(*d, to); }));
    d->engine->cancel(d->last_fetch);
    ASSERT_FALSE(outcome->wait());
    EXPECT_EQ(outcome->wait().error().code(), Code::kCancelled);
    const std::vector<std::byte> snapshot = block_bytes(*d, to);
    EXPECT_EQ(p->lease_end(handover.lease), LeaseEnd::kDropped);
    std::this_thread::sleep_for(30ms);
    EXPECT_EQ(block_bytes(*d, to), snapshot);
  }
  expect_healthy();
}

TEST_P(TransportContract, CancelIsHarmlessAtAnyMoment) {
  start();
  for (int round = 0; round < 40; ++round) {
    const Handover handover = p->lease(run(0, 8), 64);
    const auto outcome = d->fetch(handover, run(16, 8), 0, 64);
    if (round % 4 != 0) std::this_thread::sleep_for(std::chrono::microseconds(round * 40));
    d->engine->cancel(d->last_fetch);
    d->engine->cancel(d->last_fetch + 1000);
    const Result<FetchStats>& result = outcome->wait();
    EXPECT_TRUE(result.has_value() || result.error().code() == Code::kCancelled);
    EXPECT_TRUE(p->lease_end(handover.lease).has_value());
  }
  expect_healthy();
  EXPECT_EQ(p->metric("tandem:kv_leases_open"), 0.0);
}

TEST_P(TransportContract, APrefillerThatDiesDuringAFetchIsAnError) {
  start();
  make_slow();
  const Handover handover = p->lease(run(0, 16), 128);
  const auto outcome = d->fetch(handover, run(16, 16), 0, 128);
  ASSERT_TRUE(eventually([&] { return !untouched(*d, {16}); }));
  p->kill();
  ASSERT_FALSE(outcome->wait());
  EXPECT_EQ(outcome->wait().error().code(), Code::kUnavailable);
}

TEST_P(TransportContract, U015ARestartedPrefillerOnTheSamePortIsRecognised) {
  start();
  const Handover before = p->lease({1, 2}, 16);
  d->engine->hold(before);
  const auto first = d->fetch(before, {3, 4}, 0, 16);
  ASSERT_TRUE(first->wait());
  const Handover stale = p->lease({1, 2}, 16);
  p->restart();
  std::string message;
  // The first may still go over the old connection, before its end is seen.
  ASSERT_TRUE(eventually([&] {
    const auto outcome = d->fetch(stale, {3, 4}, 0, 16);
    if (outcome->wait(5s)) return false;
    EXPECT_EQ(outcome->wait().error().code(), Code::kUnavailable);
    message = outcome->wait().error().message();
    return message.find("closed by the peer") == std::string::npos;
  }));
  for (const std::uint64_t incarnation : {stale.lease.incarnation, p->engine->incarnation()})
    EXPECT_THAT(message, HasSubstr(fmt::format("{:x}", incarnation)));
  expect_healthy();
}

TEST_P(TransportContract, U006SixtyFourFetchesAtATimeAllArrive) {
  start();
  std::vector<std::shared_ptr<Outcome>> outcomes;
  std::vector<Handover> handovers;
  for (int i = 0; i < 64; ++i) {
    handovers.push_back(p->lease({static_cast<kv::BlockId>(63 - i)}, 1 + i % 8));
    d->engine->hold(handovers.back());
    outcomes.push_back(d->fetch(handovers.back(), {static_cast<kv::BlockId>(i)}, 0, 1 + i % 8));
  }
  for (int i = 0; i < 64; ++i) {
    const auto at = static_cast<std::size_t>(i);
    ASSERT_TRUE(outcomes[at]->wait()) << i << ": " << outcomes[at]->wait().error().to_string();
    EXPECT_TRUE(same_tokens(*p, handovers[at].blocks, *d, {static_cast<kv::BlockId>(i)}, 0, 1 + i % 8));
    EXPECT_EQ(p->lease_end(handovers[at].lease), LeaseEnd::kDone);
  }
  EXPECT_EQ(p->num_lease_ends(), 64);
}

TEST_P(TransportContract, U006SixtyFourFetchesCancelledAtOnceLeaveNothingBehind) {
  start();
  make_slow();
  std::vector<std::shared_ptr<Outcome>> outcomes;
  std::vector<Handover> handovers;
  std::vector<FetchId> ids;
  for (int i = 0; i < 64; ++i) {
    handovers.push_back(p->lease(run(0, 4), 32));
    outcomes.push_back(d->fetch(handovers.back(), run(8, 4), 0, 32));
    ids.push_back(d->last_fetch);
  }
  for (const FetchId id : ids) d->engine->cancel(id);
  for (std::size_t i = 0; i < 64; ++i) {
    ASSERT_FALSE(outcomes[i]->wait());
    EXPECT_EQ(p->lease_end(handovers[i].lease), LeaseEnd::kDropped);
  }
  expect_healthy();
}

TEST_P(TransportContract, ABlockThatGotANewOwnerDuringTheReadIsFound) {
  start();
  const Handover handover = p->lease({1, 2}, 16);
  set_faults([](Faults& faults) {
    // Slow enough for an owner to give the block away under the reader.
    faults.piece_bytes = 1000;
    faults.piece_pause = 100ms;
  });
  const auto outcome = d->fetch(handover, {3, 4}, 0, 16);
  ASSERT_TRUE(eventually([&] { return !untouched(*d, {3}); }));
  p->memory->generations()[1].fetch_add(1);
  const std::size_t place = small_layout().offset(2, 1, 0, 0, 0);
  std::memset(p->alias + place, 0x7e, small_layout().block_bytes());
  ASSERT_FALSE(outcome->wait());
  EXPECT_EQ(outcome->wait().error().code(), Code::kDataLoss);
  if (transport() == TransportChoice::kShm) {
    EXPECT_THAT(outcome->wait().error().message(), HasSubstr("new owner"));
  }
}

TEST_P(TransportContract, WrongRangesAreRefusedBeforeAnythingMoves) {
  start();
  const Handover handover = p->lease({1, 2}, 16);
  for (int i = 0; i < 5; ++i) d->engine->hold(handover);
  EXPECT_EQ(d->fetch(handover, {3, 4}, 4, 16)->wait().error().code(), Code::kInvalidArgument);     // not a block border
  EXPECT_EQ(d->fetch(handover, {3, 4, 5}, 0, 17)->wait().error().code(), Code::kInvalidArgument);  // more than there is
  EXPECT_EQ(d->fetch(handover, {3}, 0, 16)->wait().error().code(), Code::kInvalidArgument);        // too few blocks
  EXPECT_EQ(d->fetch(handover, {3, 64}, 0, 16)->wait().error().code(), Code::kInvalidArgument);    // no such block
  Handover forged = handover;
  forged.blocks = {1, 3};
  EXPECT_EQ(d->fetch(forged, {3, 4}, 0, 16)->wait().error().code(), Code::kDataLoss);
  EXPECT_TRUE(untouched(*d, {3, 4, 5}));
  EXPECT_EQ(p->lease_end(handover.lease), LeaseEnd::kDropped);
}

std::string param_name(const ::testing::TestParamInfo<Param>& info) {
  return std::string(way_name(std::get<0>(info.param))) + (std::get<1>(info.param) ? "_in_pieces" : "_plain");
}
INSTANTIATE_TEST_SUITE_P(Transports, TransportContract,
                         ::testing::Combine(::testing::Values(Way::kShm, Way::kTcp, Way::kTls), ::testing::Bool()),
                         param_name);

}  // namespace
}  // namespace tandem::transfer::test
