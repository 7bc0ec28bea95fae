// SPDX-License-Identifier: Apache-2.0
// What the engine thread allocates to plan a decode step does not grow with the number of streams.
#include <gtest/gtest.h>

#include "support/count_allocations.h"
#include "unit/engine/hand_driven.h"

namespace tandem::engine {
namespace {

/// Of the last of some steps with so many streams, in which no stream takes a block.
int allocations_of_a_plan(std::int32_t num_streams) {
  constexpr std::int32_t kBlockSize = 64;
  testing::HandDriven engine({.max_num_seqs = num_streams, .max_num_batched_tokens = 4096}, 4 * num_streams,
                             kBlockSize);
  for (std::int32_t i = 1; i <= num_streams; ++i) engine.submit(static_cast<RequestHandle>(i), 8, 40);
  int allocations = 0;
  for (int step = 0; step < 20; ++step) {
    test::begin_counting_allocations();
    engine.ranks.start_steps();
    allocations = test::end_counting_allocations();
    EXPECT_EQ(engine.worker.plan()->sequences.size(), static_cast<std::size_t>(num_streams));
    engine.end();
  }
  return allocations;
}

TEST(PlanningMemory, IsTheSameForOneStreamAndForMany) {
  if (!test::can_count_allocations()) GTEST_SKIP() << "a sanitizer has replaced malloc";
  const int for_one = allocations_of_a_plan(1);
  EXPECT_LE(for_one, 4);
  EXPECT_EQ(allocations_of_a_plan(32), for_one);
}

}  // namespace
}  // namespace tandem::engine
