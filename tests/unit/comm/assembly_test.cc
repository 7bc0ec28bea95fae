// SPDX-License-Identifier: Apache-2.0
#include "comm/assembly.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tandem::comm {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::IsEmpty;

class AssemblyTest : public testing::Test {
 protected:
  AssemblyTest() : AssemblyTest(true) {}
  explicit AssemblyTest(bool links)
      : assembly_({.total_ranks = 4, .properties = {{"model", "a"}}, .links = links, .first_epoch = 100}) {}

  static Hello hello(std::int32_t first, std::int32_t count, std::string model = "a") {
    return {4, {first, count, "host" + std::to_string(first), 5000, ""}, {{"model", std::move(model)}}};
  }
  /// What was said to a link, of one kind.
  template <class T>
  static std::vector<T> to(LinkId link, const Orders& orders) {
    std::vector<T> found;
    for (const Order& order : orders)
      if (order.to == link && std::holds_alternative<T>(order.message)) found.push_back(std::get<T>(order.message));
    return found;
  }
  std::string refusal(LinkId link, const Hello& message) {
    const auto refused = to<Refused>(link, assembly_.join(link, message, now_));
    EXPECT_FALSE(assembly_.joined(link));
    return refused.size() == 1 ? refused[0].why : "(was let in)";
  }
  /// Two processes, all linked.
  std::uint64_t bring_up() {
    assembly_.join(1, hello(0, 2), now_);
    assembly_.join(2, hello(2, 2), now_);
    assembly_.hear(1, Ready{}, now_);
    const auto forms = to<Form>(1, assembly_.hear(2, Ready{}, now_));
    EXPECT_EQ(forms.size(), 1U);
    if (forms.empty()) return 0;
    assembly_.hear(1, Linked{forms[0].epoch}, now_);
    const Orders up = assembly_.hear(2, Linked{forms[0].epoch}, now_);
    EXPECT_EQ(to<Up>(1, up).size(), 1U);
    EXPECT_EQ(to<Up>(2, up).size(), 1U);
    EXPECT_TRUE(assembly_.up());
    return forms[0].epoch;
  }

  Assembly assembly_;
  TimePoint now_{1h};
};

TEST_F(AssemblyTest, TellsWhoIsMissingAndGivesTheRosterOnceAllRanksHaveAProcess) {
  Orders orders = assembly_.join(1, hello(2, 2), now_);
  EXPECT_THAT(to<Roster>(1, orders), IsEmpty());
  EXPECT_EQ(to<Waiting>(1, orders)[0].text, "a process with data-parallel ranks 0 to 1 to join");
  orders = assembly_.join(2, hello(0, 2), now_);
  ASSERT_EQ(to<Roster>(1, orders).size(), 1U);
  EXPECT_EQ(to<Roster>(1, orders)[0].processes[0].first_rank, 0) << "in the order of the ranks, not of coming";
  ASSERT_EQ(to<Roster>(2, orders).size(), 1U);
  EXPECT_THAT(assembly_.waiting_for(), HasSubstr("to load"));
}

TEST_F(AssemblyTest, OneThatLeavesBeforeAllAreThereIsForgotten) {
  assembly_.join(1, hello(0, 2), now_);
  assembly_.join(2, hello(2, 1), now_);
  assembly_.lose(2, "closed", now_);
  assembly_.join(3, hello(2, 2), now_);  // may be laid out otherwise now
  EXPECT_TRUE(assembly_.roster_known());
}

TEST_F(AssemblyTest, RefusesWhatDoesNotFitAndSaysWhy) {
  assembly_.join(1, hello(0, 2), now_);
  EXPECT_THAT(refusal(2, hello(1, 2)), HasSubstr("overlap with the process with data-parallel ranks 0 to 1"));
  EXPECT_THAT(refusal(2, hello(2, 2, "b")), HasSubstr("model is b there and a in the first process"));
  EXPECT_THAT(refusal(2, hello(2, 3)), HasSubstr("--data-parallel-size is 4"));
  Hello other = hello(2, 2);
  other.total_ranks = 8;
  EXPECT_THAT(refusal(2, other), HasSubstr("--data-parallel-size is 8 there and 4"));
  const auto again = to<Refused>(2, assembly_.join(2, hello(0, 2), now_));
  ASSERT_EQ(again.size(), 1U);
  EXPECT_FALSE(again[0].final) << "it may have come back before its end was noticed";
}

TEST_F(AssemblyTest, StepsMayStartOnceAllAreLinked) {
  EXPECT_EQ(bring_up(), 100U);
  EXPECT_EQ(assembly_.waiting_for(), "");
}

TEST_F(AssemblyTest, ALossEndsTheEpochForAllAndAReturnBeginsAnother) {
  const std::uint64_t epoch = bring_up();
  const Orders lost = assembly_.lose(2, "closed", now_);
  ASSERT_EQ(to<Drop>(1, lost).size(), 1U);
  EXPECT_EQ(to<Drop>(1, lost)[0].process, 1);
  EXPECT_EQ(to<Drop>(1, lost)[0].epoch, epoch);
  EXPECT_THAT(to<Drop>(2, lost), IsEmpty());
  EXPECT_FALSE(assembly_.up());
  EXPECT_THAT(assembly_.waiting_for(), HasSubstr("ranks 2 to 3 at host2 to join"));

  EXPECT_THAT(refusal(3, hello(2, 1)), HasSubstr("overlap")) << "the others hold experts by the first layout";
  now_ += 1s;
  EXPECT_EQ(to<Roster>(3, assembly_.join(3, hello(2, 2), now_)).size(), 1U);
  const auto forms = to<Form>(1, assembly_.hear(3, Ready{}, now_));
  ASSERT_EQ(forms.size(), 1U);
  EXPECT_EQ(forms[0].epoch, epoch + 1);
  assembly_.hear(1, Linked{epoch}, now_);  // of the old one: not counted
  assembly_.hear(3, Linked{epoch + 1}, now_);
  EXPECT_FALSE(assembly_.up());
  assembly_.hear(1, Linked{epoch + 1}, now_);
  EXPECT_TRUE(assembly_.up());
}

TEST_F(AssemblyTest, AFailedLinkEndsTheEpochAndIsTriedAgainAfterAPause) {
  const std::uint64_t epoch = bring_up();
  EXPECT_THAT(to<Drop>(2, assembly_.hear(1, Suspect{epoch - 1, 1, "cut"}, now_)), IsEmpty()) << "an older epoch";
  const Orders dropped = assembly_.hear(1, Suspect{epoch, 1, "cut"}, now_);
  ASSERT_EQ(to<Drop>(2, dropped).size(), 1U);
  EXPECT_EQ(to<Drop>(2, dropped)[0].why, "cut");
  EXPECT_THAT(to<Form>(2, dropped), IsEmpty());
  EXPECT_THAT(to<Form>(2, assembly_.tick(now_ + 100ms)), IsEmpty());
  EXPECT_EQ(to<Form>(2, assembly_.tick(now_ + 400ms)).size(), 1U);
}

TEST_F(AssemblyTest, WhoDoesNotLinkUpInTimeIsNamed) {
  assembly_.join(1, hello(0, 2), now_);
  assembly_.join(2, hello(2, 2), now_);
  assembly_.hear(1, Ready{}, now_);
  const auto forms = to<Form>(1, assembly_.hear(2, Ready{}, now_));
  assembly_.hear(1, Linked{forms[0].epoch}, now_);
  const auto drops = to<Drop>(1, assembly_.tick(now_ + 11s));
  ASSERT_EQ(drops.size(), 1U);
  EXPECT_EQ(drops[0].process, 1);
  EXPECT_THAT(drops[0].why, HasSubstr("did not link"));
}

class AssemblyWithoutLinks : public AssemblyTest {
 protected:
  AssemblyWithoutLinks() : AssemblyTest(false) {}
};

TEST_F(AssemblyWithoutLinks, IsUpOnceAllAreLoaded) {
  assembly_.join(1, hello(0, 2), now_);
  assembly_.join(2, hello(2, 2), now_);
  assembly_.hear(1, Ready{}, now_);
  EXPECT_FALSE(assembly_.up());
  EXPECT_EQ(to<Up>(1, assembly_.hear(2, Ready{}, now_)).size(), 1U);
  EXPECT_TRUE(assembly_.up());
}

}  // namespace
}  // namespace tandem::comm
