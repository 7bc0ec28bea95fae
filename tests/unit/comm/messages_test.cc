// SPDX-License-Identifier: Apache-2.0
#include "comm/messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace tandem::comm {
namespace {

using testing::HasSubstr;

ProcessInfo process(std::int32_t first, std::int32_t count) { return {first, count, "192.0.0.3", 5964, "{}"}; }

template <class T>
T round_trip(const T& message) {
  const auto back = decode(encode(message));
  EXPECT_TRUE(back);
  return std::get<T>(*back);
}

TEST(Messages, ComeBackAsTheyWere) {
  const Hello hello = round_trip(Hello{32, process(16, 16), {{"model", "abc"}, {"--block-size", "16"}}});
  EXPECT_EQ(hello.total_ranks, 32);
  EXPECT_EQ(hello.process, process(16, 16));
  EXPECT_EQ(hello.properties, (std::vector<Property>{{"model", "abc"}, {"--block-size", "16"}}));
  const Form form = round_trip(Form{7, {process(0, 16), process(16, 16)}});
  EXPECT_EQ(form.epoch, 7U);
  EXPECT_EQ(form.processes, (std::vector{process(0, 16), process(16, 16)}));
  EXPECT_EQ(round_trip(Drop{9, 1, "silent"}).why, "silent");
  EXPECT_TRUE(round_trip(Refused{true, "no"}).final);
  EXPECT_EQ(round_trip(LinkHello{5, 3}).process, 3);
  round_trip(Ready{});
  round_trip(Alive{});
  round_trip(Serving{});
}

TEST(Messages, AnythingElseIsAnErrorAndNeverReadPastItsEnd) {
  const std::vector<std::byte> whole = encode(Form{7, {process(0, 16), process(16, 16)}});
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_FALSE(decode(std::span(whole).first(size))) << size << " bytes";
  std::vector<std::byte> longer = whole;
  longer.push_back({});
  EXPECT_THAT(decode(longer).error().message(), HasSubstr("bytes behind its end"));
  EXPECT_FALSE(decode(std::vector<std::byte>{std::byte{200}}));
  EXPECT_FALSE(decode(encode(Roster{{process(0, 4), process(5, 4)}}))) << "a gap";
  EXPECT_FALSE(decode(encode(Roster{{process(-1, 4)}})));
  EXPECT_FALSE(decode(encode(Roster{{process(0, 0)}})));
  EXPECT_FALSE(decode(encode(Roster{{process(0, 284), process(284, std::numeric_limits<std::int32_t>::max())}})))
      << "their sum overflows";
  EXPECT_FALSE(decode(encode(Roster{})));
  EXPECT_FALSE(decode(encode(Drop{1, -1, ""})));
}

TEST(Messages, ADifferenceNamesBothValues) {
  const std::vector<Property> first{{"model", "a"}, {"--block-size", "16"}};
  EXPECT_TRUE(compare_properties(first, first).ok());
  const std::vector<Property> other{{"model", "a"}, {"--block-size", "32"}};
  EXPECT_THAT(compare_properties(first, other).message(),
              HasSubstr("--block-size is 32 there and 16 in the first process"));
  EXPECT_FALSE(compare_properties(first, std::span(first).first(1)).ok());
}

TEST(Messages, AHeaderOfAnotherRoundSaysWhichWasExpected) {
  EXPECT_TRUE(check_round_header({3, 5, 100}, 3, 5).ok());
  EXPECT_THAT(check_round_header({2, 5, 100}, 3, 5).message(), HasSubstr("epoch 2, expected 3"));
  EXPECT_THAT(check_round_header({3, 6, 100}, 3, 5).message(), HasSubstr("round 6 of the epoch, this process in 5"));
  EXPECT_FALSE(check_round_header({3, 5, kMaxRoundBytes + 1}, 3, 5).ok());
}

}  // namespace
}  // namespace tandem::comm
