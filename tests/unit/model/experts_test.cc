// SPDX-License-Identifier: Apache-2.0
// Where experts are, and what processes say to each other about them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "comm/group.h"
#include "model/expert_messages.h"
#include "model/expert_placement.h"

namespace tandem::model {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ExpertPlacement, TheFirstRanksTakeTheRemainder) {
  const auto sizes = [](std::int32_t experts, std::int32_t ranks) {
    std::vector<std::int32_t> list;
    std::int32_t next = 0;
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
      const ExpertRange range = experts_of_rank(experts, ranks, rank);
      EXPECT_EQ(range.begin, next) << "consecutive";
      next = range.end;
      list.push_back(range.size());
    }
    EXPECT_EQ(next, experts);
    return list;
  };
  using List = std::vector<std::int32_t>;
  EXPECT_EQ(sizes(6, 4), (List{2, 2, 1, 1}));
  EXPECT_EQ(sizes(6, 3), (List{2, 2, 2}));
  EXPECT_EQ(sizes(6, 1), (List{6}));
  EXPECT_EQ(sizes(128, 16), List(16, 8));
  EXPECT_EQ(sizes(7, 5), (List{2, 2, 1, 1, 1}));
  EXPECT_EQ(sizes(2, 4), (List{1, 1, 0, 0}));
}

TEST(ExpertPlacement, AProcessHasTheExpertsOfItsRanks) {
  const auto groups = comm::make_local_group(3);
  ExpertPlacement placement{4, {0, 1, 1, 4}, groups[2].get()};
  EXPECT_EQ(experts_of_process(placement, 6, 0), (ExpertRange{0, 2}));
  EXPECT_EQ(experts_of_process(placement, 6, 1).size(), 0);
  EXPECT_EQ(experts_of_process(placement, 6, 2), (ExpertRange{2, 6}));
  EXPECT_EQ(own_experts(placement, 6), (ExpertRange{2, 6}));
  EXPECT_EQ(own_experts({4, {}, nullptr}, 6), (ExpertRange{0, 6})) << "without a group all are here";
}

constexpr RoundId kRound{0x1122334455667788U, 6};
constexpr std::int64_t kHidden = 3;
constexpr ExpertRange kOwn{2, 5};

Message dispatch_of(std::uint32_t rows, const std::vector<TokenExpert>& pairs, const RoundId& id = kRound) {
  Message message;
  write_dispatch_head(id, rows, pairs, message);
  for (std::uint32_t row = 0; row < rows; ++row) {
    const float values[kHidden] = {static_cast<float>(row), 0.5F, -1.0F};
    append_row(values, kHidden, message);
  }
  return message;
}

std::string dispatch_error(const Message& message) {
  const auto read = read_dispatch(message, kRound, kHidden, kOwn);
  return read ? std::string() : read.error().message();
}

TEST(ExpertMessages, DispatchComesBack) {
  const std::vector<TokenExpert> pairs = {{0, 2}, {0, 4}, {1, 3}};
  const auto read = read_dispatch(dispatch_of(2, pairs), kRound, kHidden, kOwn);
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(read->rows, 2);
  EXPECT_EQ(read->pairs, pairs);
  const Message message = dispatch_of(2, pairs);
  const auto again = read_dispatch(message, kRound, kHidden, kOwn);
  float values[2 * kHidden];
  ASSERT_EQ(again->values.size(), sizeof(values));
  std::memcpy(values, again->values.data(), sizeof(values));
  EXPECT_EQ(values[3], 1.0F);
  const auto empty = read_dispatch(dispatch_of(0, {}), kRound, kHidden, kOwn);
  ASSERT_TRUE(empty);
  EXPECT_TRUE(empty->pairs.empty());
  EXPECT_TRUE(empty->values.empty());
}

TEST(ExpertMessages, EveryNumberOfADispatchIsChecked) {
  EXPECT_THAT(dispatch_error({}), HasSubstr("0 bytes"));
  EXPECT_THAT(dispatch_error(Message(23)), HasSubstr("23 bytes"));
  Message longer = dispatch_of(1, {{0, 2}});
  longer.push_back(std::byte{0});
  EXPECT_THAT(dispatch_error(longer), HasSubstr("expected 44"));
  Message huge = dispatch_of(1, {{0, 2}});
  std::memset(huge.data() + 16, 0xff, 8);  // rows and pairs
  EXPECT_THAT(dispatch_error(huge), HasSubstr("4294967295 rows and 4294967295 pairs"));
  EXPECT_THAT(dispatch_error(dispatch_of(1, {{1, 2}})), HasSubstr("on row 1; there are 1 rows"));
  EXPECT_THAT(dispatch_error(dispatch_of(1, {{0, 1}})), AllOf(HasSubstr("expert 1"), HasSubstr("[2, 5)")));
  EXPECT_THAT(dispatch_error(dispatch_of(1, {{0, 5}})), HasSubstr("expert 5"));
  EXPECT_THAT(dispatch_error(dispatch_of(1, {{0, 0xffffffffU}})), HasSubstr("expert 4294967295"));
  EXPECT_THAT(dispatch_error(dispatch_of(1, {{0, 3}, {0, 3}})), HasSubstr("pair 1"));
  EXPECT_THAT(dispatch_error(dispatch_of(2, {{1, 3}, {0, 4}})), HasSubstr("pair 1"));
}

TEST(ExpertMessages, WhoIsNotInTheSameRoundOfTheSameModelIsFoundOut) {
  EXPECT_THAT(dispatch_error(dispatch_of(0, {}, {kRound.model + 1, kRound.round})), HasSubstr("another model"));
  EXPECT_THAT(dispatch_error(dispatch_of(0, {}, {kRound.model, 3})),
              AllOf(HasSubstr("combine of layer 1"), HasSubstr("dispatch of layer 3")));
  Message state = dispatch_of(0, {});
  state[12] = std::byte{7};
  EXPECT_THAT(dispatch_error(state), HasSubstr("state 7"));
}

TEST(ExpertMessages, CombineAndFailures) {
  Message message;
  write_combine_head(kRound, 1, message);
  const float row[kHidden] = {1.0F, 2.0F, 3.0F};
  append_row(row, kHidden, message);
  const auto read = read_combine(message, kRound, kHidden, 1);
  ASSERT_TRUE(read);
  EXPECT_EQ(std::memcmp(read->data(), row, sizeof(row)), 0);
  EXPECT_THAT(read_combine(message, kRound, kHidden, 2).error().message(),
              HasSubstr("1 rows has 36 bytes, expected 2"));
  message.pop_back();
  EXPECT_THAT(read_combine(message, kRound, kHidden, 1).error().message(), HasSubstr("35 bytes"));
  Message failure;
  write_failure(kRound, "the cat " + std::string(5000, 'x'), failure);
  EXPECT_LT(failure.size(), 1100U);
  const auto failed = read_combine(failure, {kRound.model, 9}, kHidden, 1);
  EXPECT_EQ(failed.error().scope(), Scope::kPeer);
  EXPECT_THAT(failed.error().message(), HasSubstr("could not go on: the cat xxx"));
  EXPECT_THAT(dispatch_error(failure), HasSubstr("the cat"));
}

}  // namespace
}  // namespace tandem::model
