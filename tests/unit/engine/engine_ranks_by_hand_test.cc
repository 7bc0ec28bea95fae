// SPDX-License-Identifier: Apache-2.0
// What the ranks plan next, step by step, without threads: nothing may wait that could run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/engine/hand_driven.h"

namespace tandem::engine {
namespace {

using ::testing::ElementsAre;
using testing::HandDriven;
using ::testing::IsEmpty;

transfer::Handover handover_of(RequestHandle handle, std::int32_t num_tokens) {
  const std::vector<std::int32_t> tokens(static_cast<std::size_t>(num_tokens), static_cast<std::int32_t>(handle));
  transfer::Handover handover;
  handover.num_tokens = num_tokens;
  handover.block_size = 4;
  handover.blocks = {0, 1};
  handover.prompt_hash = kv::token_hash(tokens);
  return handover;
}

TEST(EngineRanksByHand, WhenAllThatRunsGivesWayWhoHasItsKvGoesOnAtOnce) {
  HandDriven engine({.max_num_seqs = 1, .max_num_batched_tokens = 100, .enable_prefix_caching = false},
                    /*num_blocks=*/4);
  engine.submit(2, 8, 8, handover_of(2, 8));
  EXPECT_THAT(engine.plan(), IsEmpty()) << "its KV is on its way";
  engine.submit(1, 7, 8);
  EXPECT_THAT(engine.plan(), ElementsAre(1));
  engine.ranks.handle(FetchEndedCommand{2, transfer::FetchStats{}});
  engine.end();
  EXPECT_THAT(engine.plan(), ElementsAre(1)) << "there is one seat";
  engine.end();
  // 1 needs a third block, of four; 2 holds two.
  EXPECT_THAT(engine.plan(), ElementsAre(2)) << "no event would say that it can run";
}

}  // namespace
}  // namespace tandem::engine
