// SPDX-License-Identifier: Apache-2.0
#include "kernels/thread_team.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <set>
#include <thread>

namespace tandem::kernels {
namespace {

TEST(ThreadTeam, CallsEachThreadOnceAndTheCallerIsThreadZero) {
  for (const int size : {1, 2, 3, 7}) {
    ThreadTeam team(size);
    EXPECT_EQ(team.size(), size);
    std::vector<int> calls(static_cast<std::size_t>(size), 0);
    std::thread::id zero;
    team.run([&](int thread) {
      ++calls[static_cast<std::size_t>(thread)];
      if (thread == 0) zero = std::this_thread::get_id();
    });
    EXPECT_EQ(calls, std::vector<int>(static_cast<std::size_t>(size), 1));
    EXPECT_EQ(zero, std::this_thread::get_id());
  }
}

TEST(ThreadTeam, RoundsSeeWhatTheRoundBeforeWrote) {
  ThreadTeam team(3);
  std::vector<std::int64_t> value(3, 0);
  for (int round = 0; round < 5000; ++round) {
    std::vector<std::int64_t> next(3);
    team.run([&](int thread) {
      const auto index = static_cast<std::size_t>(thread);
      next[index] = value[(index + 1) % 3] + 1;  // written by another thread
    });
    value = next;
  }
  EXPECT_EQ(value, (std::vector<std::int64_t>{5000, 5000, 5000}));
}

TEST(ThreadTeam, WorksAfterItsThreadsWentToSleep) {
  ThreadTeam team(2);
  std::atomic<int> calls{0};
  for (int round = 0; round < 5; ++round) {
    // Longer than the spinning phase; the point is the wake-up, no result depends on the time.
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(3);
    while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
    team.run([&](int) { ++calls; });
  }
  EXPECT_EQ(calls, 10);
}

TEST(ThreadTeam, EndsWithoutARound) {
  for (int i = 0; i < 50; ++i) ThreadTeam team(3);
}

TEST(ThreadTeam, PinsToUsableCpus) {
  const auto cpus = usable_cpus();
  ASSERT_FALSE(cpus.empty());
  EXPECT_EQ(std::set<int>(cpus.begin(), cpus.end()).size(), cpus.size());
  std::thread([&] {  // pinning stays with the calling thread, so not with the test's own
    ThreadTeam team(2, {{cpus.front()}, {cpus.back()}});
    std::vector<int> seen(2, -1);
    team.run([&](int thread) {
      const auto own = usable_cpus();
      if (own.size() == 1) seen[static_cast<std::size_t>(thread)] = own.front();
    });
    EXPECT_EQ(seen, (std::vector<int>{cpus.front(), cpus.back()}));
  })
      .join();
}

TEST(ThreadTeam, ScratchGrowsAndIsAligned) {
  ThreadTeam team(2);
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{100}, std::size_t{1} << 20, std::size_t{64}}) {
    std::byte* memory = team.scratch(bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % 64, 0U);
    std::memset(memory, 1, bytes);
  }
  EXPECT_EQ(team.scratch(10), team.scratch(1000));
}

}  // namespace
}  // namespace tandem::kernels
