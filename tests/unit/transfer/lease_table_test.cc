// SPDX-License-Identifier: Apache-2.0
// The lease state machine on virtual time.
#include "transfer/lease_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace tandem::transfer {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using Release = LeaseTable::Release;

class LeaseTableTest : public ::testing::Test {
 protected:
  TimePoint now() const { return clock.now(); }
  FakeClock clock;
  LeaseTable table{30s};
};

TEST_F(LeaseTableTest, TheFirstTermCountsFromOpening) {
  table.open(1, now());
  EXPECT_EQ(table.state(1), LeaseState::kOpen);
  clock.advance(29s);
  EXPECT_THAT(table.expire(now()), IsEmpty());
  clock.advance(1s);
  EXPECT_THAT(table.expire(now()), ElementsAre(Pair(1, LeaseEnd::kExpired)));
  EXPECT_FALSE(table.alive(1));
  EXPECT_EQ(table.ended_as(1), LeaseEnd::kExpired);
  EXPECT_THAT(table.expire(now()), IsEmpty()) << "an end is reported once";
}

TEST_F(LeaseTableTest, RenewalsGiveFullTerms) {
  table.open(1, now());
  for (int i = 0; i < 100; ++i) {
    clock.advance(29s);
    EXPECT_TRUE(table.renew(1, 7, now()));
    EXPECT_THAT(table.expire(now()), IsEmpty());
  }
  EXPECT_EQ(table.state(1), LeaseState::kHeld);
  clock.advance(30s);
  EXPECT_THAT(table.expire(now()), ElementsAre(Pair(1, LeaseEnd::kExpired)));
  EXPECT_FALSE(table.renew(1, 7, now()));
}

TEST_F(LeaseTableTest, ALostHolderHasAThirdOfATerm) {
  table.open(1, now());
  table.renew(1, 7, now());
  table.holder_lost(7, now());
  EXPECT_EQ(table.state(1), LeaseState::kOrphaned);
  clock.advance(9s);
  EXPECT_THAT(table.expire(now()), IsEmpty());
  clock.advance(1s);
  EXPECT_THAT(table.expire(now()), ElementsAre(Pair(1, LeaseEnd::kPeerDied)));
}

TEST_F(LeaseTableTest, AHolderThatComesBackInTimeKeepsTheLease) {
  table.open(1, now());
  table.renew(1, 7, now());
  table.holder_lost(7, now());
  clock.advance(9s);
  EXPECT_TRUE(table.renew(1, 7, now()));
  EXPECT_EQ(table.state(1), LeaseState::kHeld);
  clock.advance(29s);
  EXPECT_THAT(table.expire(now()), IsEmpty());
}

TEST_F(LeaseTableTest, GraceDoesNotLengthenATerm) {
  table.open(1, now());
  table.renew(1, 7, now());
  clock.advance(28s);
  table.holder_lost(7, now());
  clock.advance(2s);
  EXPECT_THAT(table.expire(now()), ElementsAre(Pair(1, LeaseEnd::kPeerDied)));
}

TEST_F(LeaseTableTest, ReleasesEndAtOnceAndOnce) {
  table.open(1, now());
  table.renew(1, 7, now());
  EXPECT_EQ(table.release(1, 7, LeaseEnd::kDone), Release::kEnded);
  EXPECT_EQ(table.release(1, 7, LeaseEnd::kDone), Release::kIgnored);
  EXPECT_EQ(table.release(99, 7, LeaseEnd::kDropped), Release::kIgnored);
  EXPECT_EQ(table.ended_as(1), LeaseEnd::kDone);
}

TEST_F(LeaseTableTest, ALeaseThatNobodyHoldsCanBeGivenUpByWhoeverKnowsIt) {
  table.open(1, now());
  EXPECT_EQ(table.release(1, 7, LeaseEnd::kDropped), Release::kEnded);
}

TEST_F(LeaseTableTest, TheLastOfSeveralHoldersEndsIt) {
  table.open(1, now());
  table.renew(1, 7, now());
  table.renew(1, 8, now());
  EXPECT_EQ(table.release(1, 9, LeaseEnd::kDropped), Release::kIgnored) << "a stranger cannot end a held lease";
  EXPECT_EQ(table.release(1, 7, LeaseEnd::kDone), Release::kStillHeld);
  table.holder_lost(8, now());
  EXPECT_EQ(table.state(1), LeaseState::kOrphaned);
  clock.advance(10s);
  EXPECT_THAT(table.expire(now()), ElementsAre(Pair(1, LeaseEnd::kPeerDied)));
}

TEST_F(LeaseTableTest, RevokeEndsAnyLeaseOnce) {
  table.open(1, now());
  EXPECT_TRUE(table.revoke(1));
  EXPECT_FALSE(table.revoke(1));
  EXPECT_EQ(table.ended_as(1), LeaseEnd::kRevoked);
}

TEST_F(LeaseTableTest, EndedLeasesAreForgottenInTheEnd) {
  for (std::uint64_t id = 0; id < 10'000; ++id) {
    table.open(id, now());
    table.revoke(id);
  }
  EXPECT_EQ(table.size(), 0U);
  EXPECT_EQ(table.ended_as(0), std::nullopt);
  EXPECT_EQ(table.ended_as(9'999), LeaseEnd::kRevoked);
}

/// Whatever happens in whatever order: a lease ends exactly once, and in the end all are gone.
TEST_F(LeaseTableTest, EveryLeaseEndsExactlyOnceWhateverHappens) {
  for (std::uint32_t seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    LeaseTable random_table(30s);
    std::map<std::uint64_t, int> ends;
    std::set<std::uint64_t> opened;
    const auto expire = [&] {
      for (const auto& [id, end] : random_table.expire(now())) ++ends[id];
    };
    for (int step = 0; step < 2'000; ++step) {
      const std::uint64_t id = random() % 20 + static_cast<std::uint64_t>(step / 100) * 20;
      const std::uint64_t holder = random() % 3;
      switch (random() % 7) {
        case 0:
          if (opened.insert(id).second) random_table.open(id, now());
          break;
        case 1:
        case 2:
          EXPECT_EQ(random_table.renew(id, holder, now()), opened.contains(id) && ends[id] == 0);
          break;
        case 3:
          if (random_table.release(id, holder, LeaseEnd::kDone) == Release::kEnded) ++ends[id];
          break;
        case 4:
          random_table.holder_lost(holder, now());
          break;
        case 5:
          if (random_table.revoke(id)) ++ends[id];
          break;
        default:
          clock.advance(std::chrono::seconds(random() % 8));
          expire();
      }
    }
    clock.advance(31s);
    expire();
    EXPECT_EQ(random_table.size(), 0U);
    for (const std::uint64_t id : opened) EXPECT_EQ(ends[id], 1) << "seed " << seed << " lease " << id;
  }
}

}  // namespace
}  // namespace tandem::transfer
