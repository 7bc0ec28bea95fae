// SPDX-License-Identifier: Apache-2.0
#include "base/utf8.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace tandem {
namespace {

const std::string kBad = "\xef\xbf\xbd";

TEST(Utf8, ReplacesMaximalIllFormedSubsequences) {
  EXPECT_EQ(replace_ill_formed_utf8(""), "");
  EXPECT_EQ(replace_ill_formed_utf8("héé 中 🚀"), "héé 中 🚀");
  EXPECT_EQ(replace_ill_formed_utf8("a\x80z"), "a" + kBad + "z");
  EXPECT_EQ(replace_ill_formed_utf8("\xe4\xb8z"), kBad + "z");                        // two bytes of three
  EXPECT_EQ(replace_ill_formed_utf8("\xf0\x9f\x9a"), kBad);                           // three of four, at the end
  EXPECT_EQ(replace_ill_formed_utf8("\xc0\xaf"), kBad + kBad);                        // overlong
  EXPECT_EQ(replace_ill_formed_utf8("\xe0\x80\x80"), kBad + kBad + kBad);             // overlong
  EXPECT_EQ(replace_ill_formed_utf8("\xed\xa0\x80"), kBad + kBad + kBad);             // a surrogate
  EXPECT_EQ(replace_ill_formed_utf8("\xf4\x90\x80\x80"), kBad + kBad + kBad + kBad);  // above U+10FFFF
  EXPECT_EQ(replace_ill_formed_utf8("\xf5\xff"), kBad + kBad);
  // The example of the Unicode standard, table 3-8.
  EXPECT_EQ(replace_ill_formed_utf8("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64"),
            "a" + kBad + kBad + kBad + "b" + kBad + "c" + kBad + kBad + "d");
}

TEST(Utf8, Validity) {
  EXPECT_TRUE(is_valid_utf8(""));
  EXPECT_TRUE(is_valid_utf8("\xf4\x8f\xbf\xbf\xed\x9f\xbf\xee\x80\x80"));
  EXPECT_FALSE(is_valid_utf8("\xed\xa0\x80"));
  EXPECT_FALSE(is_valid_utf8("a\xe4\xb8"));
  EXPECT_FALSE(is_valid_utf8("\xff"));
}

TEST(Utf8, CompletePrefixLeavesAnUnfinishedCharacter) {
  EXPECT_EQ(complete_utf8_prefix(""), 0U);
  EXPECT_EQ(complete_utf8_prefix("abc"), 3U);
  EXPECT_EQ(complete_utf8_prefix("a\xe4\xb8"), 1U);
  EXPECT_EQ(complete_utf8_prefix("a\xe4"), 1U);
  EXPECT_EQ(complete_utf8_prefix("\xf0\x9f\x9a"), 0U);
  EXPECT_EQ(complete_utf8_prefix("\xf0\x9f\x9a\x80"), 4U);
  // Can never become a character: it is whole already, as one or more U+FFFD.
  EXPECT_EQ(complete_utf8_prefix("\x80"), 1U);
  EXPECT_EQ(complete_utf8_prefix("\xe4\xb8\xad\x80\x80\x80"), 6U);
  EXPECT_EQ(complete_utf8_prefix("\xed\xa0"), 2U);
  EXPECT_EQ(complete_utf8_prefix("\xc0"), 1U);
}

// Cutting at any place, taking the complete prefix and going on gives the same text as replacing at once.
TEST(Utf8, StreamingEqualsReplacingAtOnce) {
  std::mt19937 random(7);
  const std::string bytes = "a\x7f\x80\xa0\xbf\xc2\xe0\xe4\xed\xb8\xad\xf0\x9f\x9a\xf4\x90\x8f\xff";
  for (int round = 0; round < 20'000; ++round) {
    std::string whole;
    std::string streamed;
    std::string pending;
    const std::size_t length = random() % 12;
    for (std::size_t index = 0; index < length; ++index) {
      const char byte = bytes[random() % bytes.size()];
      whole += byte;
      pending += byte;
      if (random() % 2 == 0) continue;
      const std::size_t complete = complete_utf8_prefix(pending);
      streamed += replace_ill_formed_utf8(pending.substr(0, complete));
      pending.erase(0, complete);
    }
    ASSERT_EQ(streamed + replace_ill_formed_utf8(pending), replace_ill_formed_utf8(whole)) << round;
    ASSERT_EQ(is_valid_utf8(whole), replace_ill_formed_utf8(whole) == whole);
  }
}

}  // namespace
}  // namespace tandem
