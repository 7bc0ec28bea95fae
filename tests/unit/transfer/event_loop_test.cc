// SPDX-License-Identifier: Apache-2.0
// The loop: order of tasks, timers, and handlers that go away in the middle of a turn; and sliced pool work on top.
#include "transfer/event_loop.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <string>
#include <thread>
#include <vector>

#include "base/tcp_socket.h"
#include "transfer/sliced_job.h"

namespace tandem::transfer {
namespace {

using namespace std::chrono_literals;

class EventLoopTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = EventLoop::create();
    ASSERT_TRUE(made) << made.error().to_string();
    loop = std::move(*made);
    loop->after(10s, [this] {
      ADD_FAILURE() << "the loop was not stopped in time";
      loop->stop();
    });
  }
  std::unique_ptr<EventLoop> loop;
};

TEST_F(EventLoopTest, TasksOfManyThreadsRunInEachThreadsOrder) {
  std::vector<std::vector<int>> seen(4);
  std::atomic<int> left{400};
  std::vector<std::jthread> threads;
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) {
        loop->post([&, t, i] {
          seen[t].push_back(i);
          if (--left == 0) loop->stop();
        });
      }
    });
  }
  loop->run();
  for (const auto& list : seen) {
    ASSERT_EQ(list.size(), 100U);
    EXPECT_TRUE(std::is_sorted(list.begin(), list.end()));
  }
}

TEST_F(EventLoopTest, WhatAPeerSentInTimeIsHeardBeforeADeadlineThatPassedDuringAPause) {
  int pair[2] = {-1, -1};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  const Socket ours(pair[0]);
  const Socket theirs(pair[1]);
  ASSERT_EQ(send(theirs.fd(), "x", 1, 0), 1);
  std::vector<std::string> order;
  EventLoop::WatchId watch = 0;
  watch = loop->watch(ours.fd(), EPOLLIN, [&](std::uint32_t) {
    order.emplace_back("message");
    loop->unwatch(watch, ours.fd());
  });
  loop->after(1ms, [&] {
    order.emplace_back("deadline");
    loop->stop();
  });
  loop->post([] { std::this_thread::sleep_for(20ms); });
  loop->run();
  EXPECT_EQ(order, (std::vector<std::string>{"message", "deadline"}));
}

TEST_F(EventLoopTest, TimersFireInOrderAndCancelledOnesDoNot) {
  std::vector<int> fired;
  loop->after(20ms, [&] {
    fired.push_back(2);
    loop->stop();
  });
  loop->after(5ms, [&] { fired.push_back(1); });
  loop->cancel(loop->after(1ms, [&] { fired.push_back(99); }));
  loop->run();
  EXPECT_EQ(fired, (std::vector<int>{1, 2}));
}

TEST_F(EventLoopTest, WaitingCostsNoProcessorTime) {
  loop->after(300ms, [&] { loop->stop(); });
  const std::clock_t before = std::clock();
  loop->run();
  EXPECT_LT(static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC, 0.1);
}

TEST_F(EventLoopTest, AHandlerCanRemoveAnotherOneOfTheSameTurn) {
  int fds[2][2];
  for (auto& pair : fds) ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
  EventLoop::WatchId watches[2] = {};
  int calls = 0;
  for (int i = 0; i < 2; ++i) {
    watches[i] = loop->watch(fds[i][0], EPOLLIN, [&, i](std::uint32_t) {
      ++calls;
      loop->unwatch(watches[i], fds[i][0]);
      loop->unwatch(watches[1 - i], fds[1 - i][0]);
      loop->after(20ms, [&] { loop->stop(); });
    });
    ASSERT_EQ(send(fds[i][1], "x", 1, 0), 1);
  }
  loop->run();
  EXPECT_EQ(calls, 1);
  for (auto& pair : fds) {
    Socket a(pair[0]);
    Socket b(pair[1]);
  }
}

TEST_F(EventLoopTest, SlicedWorkRunsEachSliceOnceAndReportsOnTheLoop) {
  WorkPool pool(2);
  for (const std::size_t slices : {0, 1, 2, 57}) {
    std::vector<std::atomic<int>> runs(slices);
    bool done = false;
    loop->post([&] {
      SlicedJob::start(
          *loop, pool, slices, [&](std::size_t i) { ++runs[i]; },
          [&] {
            done = true;
            loop->stop();
          });
    });
    auto again = EventLoop::create();
    ASSERT_TRUE(again);
    loop->run();
    EXPECT_TRUE(done);
    for (const auto& count : runs) EXPECT_EQ(count.load(), 1);
    loop = std::move(*again);  // a stopped loop stays stopped
    loop->after(10s, [this] { loop->stop(); });
  }
}

TEST_F(EventLoopTest, CancelledSlicedWorkStopsEarlyAndStillReports) {
  WorkPool pool(2);
  std::atomic<int> runs{0};
  std::shared_ptr<SlicedJob> job;
  loop->post([&] {
    job = SlicedJob::start(
        *loop, pool, 1'000'000,
        [&](std::size_t) {
          if (++runs == 10) loop->post([&] { job->cancel(); });
        },
        [&] { loop->stop(); });
  });
  loop->run();
  EXPECT_LT(runs.load(), 1'000'000);
  EXPECT_TRUE(job->cancelled());
}

}  // namespace
}  // namespace tandem::transfer
