// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "comm/group.h"

namespace tandem::comm {
namespace {

using namespace std::chrono_literals;

TEST(LocalGroup, EveryRoundCarriesOneMessageBetweenEachTwo) {
  constexpr int kSize = 3;
  auto members = make_local_group(kSize);
  const auto run = [&](int rank) {
    Group& group = *members[static_cast<std::size_t>(rank)];
    for (int round = 0; round < 100; ++round) {
      std::vector<std::vector<std::byte>> outgoing(kSize);
      std::vector<Bytes> views(kSize);
      for (int peer = 0; peer < kSize; ++peer) {
        // Of another length for each pair and round; empty ones too.
        outgoing[static_cast<std::size_t>(peer)].assign(static_cast<std::size_t>((round * rank + peer) % 5),
                                                        static_cast<std::byte>(10 * rank + peer));
        views[static_cast<std::size_t>(peer)] = outgoing[static_cast<std::size_t>(peer)];
      }
      ASSERT_TRUE(group.begin(views));
      const auto received = group.finish();
      ASSERT_TRUE(received);
      for (int peer = 0; peer < kSize; ++peer) {
        if (peer == rank) continue;
        const Bytes message = (*received)[static_cast<std::size_t>(peer)];
        ASSERT_EQ(message.size(), static_cast<std::size_t>((round * peer + rank) % 5));
        for (const std::byte byte : message) ASSERT_EQ(byte, static_cast<std::byte>(10 * peer + rank));
      }
    }
  };
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < kSize; ++rank) threads.emplace_back(run, rank);
}

TEST(LocalGroup, WaitsForOthersUntilTheyBeginOrSomebodyWakesIt) {
  auto members = make_local_group(2);
  EXPECT_FALSE(members[0]->wait_for_others(1ms));
  members[0]->wake();
  EXPECT_FALSE(members[0]->wait_for_others(1h));
  ASSERT_TRUE(members[1]->begin(std::vector<Bytes>(2)));
  EXPECT_TRUE(members[0]->wait_for_others(1h));
  ASSERT_TRUE(members[0]->begin(std::vector<Bytes>(2)));
  ASSERT_TRUE(members[0]->finish());
  EXPECT_FALSE(members[0]->wait_for_others(1ms));
}

}  // namespace
}  // namespace tandem::comm
