// SPDX-License-Identifier: Apache-2.0
// The rule of rank_choice.h, line by line.
#include "engine/rank_choice.h"

#include <gtest/gtest.h>

#include <numeric>

namespace tandem::engine {
namespace {

constexpr std::int32_t kBlockSize = 4;

std::vector<std::int32_t> prompt(std::int32_t length, std::int32_t first = 0) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(length));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

std::vector<RankLoad> idle(std::size_t count) { return std::vector<RankLoad>(count); }

TEST(RankChoice, IdleRanksTakeTurns) {
  RankChoice choice(3, kBlockSize, 100);
  for (std::int32_t i = 0; i < 7; ++i) EXPECT_EQ(choice.choose(idle(3), prompt(8, 1000 * i), ""), i % 3);
}

TEST(RankChoice, TheLeastLoadedTakesANewPrompt) {
  RankChoice choice(3, kBlockSize, 100);
  EXPECT_EQ(choice.choose(std::vector<RankLoad>{{3, 0}, {2, 0}, {4, 0}}, prompt(8), ""), 1);
  EXPECT_EQ(choice.choose(std::vector<RankLoad>{{3, 0}, {2, 1}, {4, 0}}, prompt(8, 50), ""), 0)
      << "one that waits weighs as much as four that run";
}

TEST(RankChoice, TheLongestPrefixDraws) {
  RankChoice choice(3, kBlockSize, 100);
  choice.placed(1, prompt(8), "");
  choice.placed(2, prompt(16), "");
  EXPECT_EQ(choice.choose(idle(3), prompt(8), ""), 1) << "two blocks on both: rank 1 comes first in turn";
  EXPECT_EQ(choice.choose(idle(3), prompt(20), ""), 2);
  EXPECT_EQ(choice.choose(idle(3), prompt(3), ""), 0) << "less than a block is nothing";
}

TEST(RankChoice, UnlessThatRankIsMuchMoreLoaded) {
  for (const std::int32_t least : {0, 5}) {
    for (const bool too_much : {false, true}) {
      RankChoice choice(2, kBlockSize, 100);
      choice.placed(0, prompt(40), "");
      const std::vector<RankLoad> loads{{2 * least + 4 + (too_much ? 1 : 0), 0}, {least, 0}};
      EXPECT_EQ(choice.choose(loads, prompt(40), ""), too_much ? 1 : 0) << least;
    }
  }
}

TEST(RankChoice, SiblingsMeetBeforeAnythingIsComputed) {
  RankChoice choice(4, kBlockSize, 100);
  std::vector<RankLoad> loads = idle(4);
  const std::int32_t first = choice.choose(loads, prompt(12), "");
  for (int sibling = 0; sibling < 4; ++sibling) {
    ++loads[static_cast<std::size_t>(first)].num_running;
    EXPECT_EQ(choice.choose(loads, prompt(12), ""), first);
  }
  loads[static_cast<std::size_t>(first)].num_running = 5;
  EXPECT_NE(choice.choose(loads, prompt(12), ""), first) << "the others are idle";
}

TEST(RankChoice, SaltsDoNotMeet) {
  RankChoice choice(3, kBlockSize, 100);
  choice.placed(2, prompt(12), "a");
  EXPECT_EQ(choice.choose(idle(3), prompt(12), "b"), 0);
  EXPECT_EQ(choice.choose(idle(3), prompt(12), "a"), 2);
}

TEST(RankChoice, RemembersAsMuchAsARankHolds) {
  RankChoice choice(3, kBlockSize, 4);
  choice.placed(2, prompt(16), "");
  choice.placed(2, prompt(8, 500), "");
  EXPECT_EQ(choice.choose(idle(3), prompt(8), ""), 2) << "the end of a prompt is forgotten before its start";
  for (std::int32_t i = 0; i < 4; ++i) choice.placed(2, prompt(4, 1000 * (i + 1)), "");
  EXPECT_EQ(choice.choose(idle(3), prompt(8, 500), ""), 0);
}

TEST(RankChoice, ForgetsAfterAReset) {
  RankChoice choice(2, kBlockSize, 100);
  choice.placed(1, prompt(12), "");
  choice.forget();
  EXPECT_EQ(choice.choose(idle(2), prompt(12), ""), 0);
}

}  // namespace
}  // namespace tandem::engine
