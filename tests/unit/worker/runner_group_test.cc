// SPDX-License-Identifier: Apache-2.0
// Runner threads of two processes with a group: a plan of one is a step of both.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <vector>

#include "comm/group.h"
#include "worker/runner_thread.h"

namespace tandem::worker {
namespace {

using namespace std::chrono_literals;

class Process {
 public:
  explicit Process(comm::Group& group) {
    const auto started = runner_.launch(
        [] { return Result<void>(); },
        [this, &group](const StepPlan& plan, const std::stop_token&) { return step(group, plan); }, &group);
    EXPECT_TRUE(started);
  }

  Result<StepResult> run(std::uint64_t number) {
    auto plan = std::make_shared<StepPlan>();
    plan->step = number;
    plan->sequences.resize(1);
    auto done = std::make_shared<std::promise<Result<StepResult>>>();
    auto result = done->get_future();
    runner_.submit(plan, [done](Result<StepResult> outcome) { done->set_value(std::move(outcome)); });
    if (result.wait_for(10s) != std::future_status::ready) return Status(Code::kInternal, "the step hangs");
    return result.get();
  }
  int num_steps() const { return steps_; }
  int num_empty() const { return empty_; }

 private:
  Result<StepResult> step(comm::Group& group, const StepPlan& plan) {
    TANDEM_TRY(group.start_step());
    TANDEM_TRY(group.begin(std::vector<comm::Bytes>(static_cast<std::size_t>(group.size()))));
    if (const auto received = group.finish(); !received) return received.error();
    ++steps_;
    if (plan.sequences.empty()) ++empty_;
    StepResult result;
    result.step = plan.step;
    return result;
  }

  std::atomic<int> steps_{0};
  std::atomic<int> empty_{0};
  RunnerThread runner_;
};

TEST(RunnerWithGroup, APlanOfOneProcessIsAStepOfAll) {
  const auto groups = comm::make_local_group(2);
  Process first(*groups[0]);
  Process second(*groups[1]);
  for (std::uint64_t step = 1; step <= 50; ++step) {
    const auto result = (step % 3 == 0 ? second : first).run(step);
    ASSERT_TRUE(result) << result.error().message();
    EXPECT_EQ(result->step, step);
  }
  // Who has no plan takes part a moment later than the other's answer is there.
  for (int i = 0; i < 1000 && first.num_steps() + second.num_steps() < 100; ++i) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(first.num_steps(), 50);
  EXPECT_EQ(second.num_steps(), 50);
  EXPECT_EQ(first.num_empty() + second.num_empty(), 50);
}

TEST(RunnerWithGroup, PlansOfBothAtOnceAreOneStep) {
  const auto groups = comm::make_local_group(2);
  Process first(*groups[0]);
  Process second(*groups[1]);
  for (std::uint64_t step = 1; step <= 50; ++step) {
    auto other = std::async(std::launch::async, [&] { return second.run(step); });
    EXPECT_TRUE(first.run(step));
    EXPECT_TRUE(other.get());
  }
}

}  // namespace
}  // namespace tandem::worker
