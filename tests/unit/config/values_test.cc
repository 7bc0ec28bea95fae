// SPDX-License-Identifier: Apache-2.0
#include "config/values.h"

#include <gtest/gtest.h>

#include "config/cpu_binding.h"

namespace tandem::config {
namespace {

TEST(ParseSize, SuffixesFollowVllm) {
  EXPECT_EQ(*parse_size("32768"), 32768);
  EXPECT_EQ(*parse_size("32k"), 32000);
  EXPECT_EQ(*parse_size("25.6k"), 25600);
  EXPECT_EQ(*parse_size("32K"), 32768);
  EXPECT_EQ(*parse_size("1M"), 1048576);
  EXPECT_EQ(*parse_size("2g"), 2'000'000'000);
  EXPECT_EQ(*parse_size("2G"), std::int64_t{2} << 30);
}

TEST(ParseSize, RefusesWhatIsNoSize) {
  for (const char* text : {"", "k", "-1", "1.5K", "32kb", "1e3", "99999999999999999999", "9999999999T", "nank", "infk"})
    EXPECT_FALSE(parse_size(text)) << text;
}

TEST(ParseMilliseconds, TakesSecondsAndMilliseconds) {
  EXPECT_EQ(*parse_milliseconds("30"), 30'000);
  EXPECT_EQ(*parse_milliseconds("0.001"), 1);
  EXPECT_EQ(*parse_milliseconds("1.5s"), 1'500);
  EXPECT_EQ(*parse_milliseconds("500ms"), 500);
  for (const char* text : {"", "s", "0", "-3", "1h"}) EXPECT_FALSE(parse_milliseconds(text)) << text;
}

TEST(ParseCpuList, IsAsLinuxWritesIt) {
  EXPECT_EQ(*parse_cpu_list("0"), std::vector<int>{0});
  EXPECT_EQ(*parse_cpu_list("0-3,8,10-11"), (std::vector<int>{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(*parse_cpu_list("1023"), std::vector<int>{1023});
  for (const char* text : {"", ",", "0,", "1-", "-1", "3-1", "0-1024", "0,0", "0-2,1", "a", "0 1", "0-1-2"})
    EXPECT_FALSE(parse_cpu_list(text)) << text;
}

TEST(ParseNumber, NamesTheRange) {
  EXPECT_DOUBLE_EQ(*parse_number("0.9", 0, false, 1), 0.9);
  EXPECT_FALSE(parse_number("0", 0, false, 1));
  EXPECT_FALSE(parse_number("nan", 0, false, 1));
  EXPECT_EQ(parse_number("1.5", 0, false, 1).error().message(), "1.5 is out of range; allowed are above 0 to 1");
}

}  // namespace
}  // namespace tandem::config
