// SPDX-License-Identifier: Apache-2.0
#include "proxy/json_members.h"

#include <gtest/gtest.h>

namespace tandem::proxy {
namespace {

TEST(JsonMembersTest, KeepsWhatItDoesNotTouchByteForByte) {
  const std::string text =
      R"( { "a" : 18446744073709551615 , "b":0.70, "c":[1,{"d":"}\"]"},[]], "e\u0066":"x\u00e9\\", "big":123456789012345678901234567890, "z":{ }, "t":true})";
  auto members = JsonMembers::parse(text);
  ASSERT_TRUE(members) << members.error().to_string();
  EXPECT_EQ(members->find("a"), "18446744073709551615");
  EXPECT_EQ(members->find("b"), "0.70");
  EXPECT_EQ(members->find("c"), R"([1,{"d":"}\"]"},[]])");
  EXPECT_EQ(members->find("ef"), R"("x\u00e9\\")") << "names are compared decoded";
  EXPECT_EQ(members->find("big"), "123456789012345678901234567890");
  EXPECT_EQ(members->find("z"), "{ }");
  EXPECT_TRUE(members->is_true("t"));
  EXPECT_FALSE(members->find("q"));
  EXPECT_EQ(
      members->text(),
      R"({"a":18446744073709551615,"b":0.70,"c":[1,{"d":"}\"]"},[]],"e\u0066":"x\u00e9\\","big":123456789012345678901234567890,"z":{ },"t":true})");
}

TEST(JsonMembersTest, SetAndRemove) {
  auto members = JsonMembers::parse(R"({"n":1,"x":2,"n":3})");
  ASSERT_TRUE(members);
  EXPECT_EQ(members->find("n"), "3") << "the last one counts";
  members->set("n", "7");
  members->set("new\"name", "null");
  EXPECT_EQ(members->text(), R"({"n":7,"x":2,"new\"name":null})");
  members->remove("n");
  members->remove("x");
  EXPECT_EQ(members->text(), R"({"new\"name":null})");
  EXPECT_EQ(JsonMembers::parse(" {} ")->text(), "{}");
}

TEST(JsonMembersTest, WhatIsNoObjectIsRefused) {
  std::string deep;
  for (int i = 0; i < 200; ++i) deep += "[";
  std::string wide = "{\"a\":0";
  for (int i = 0; i < 4096; ++i) wide += ",\"a\":0";
  for (const std::string& text :
       {std::string(), std::string("[1]"), std::string("{"), std::string("{\"a\":1,}"), std::string("{\"a\":1} x"),
        std::string("{\"a\":\"\xff\"}"), std::string("null"), "{\"a\":" + deep, wide + "}"}) {
    EXPECT_FALSE(JsonMembers::parse(text)) << text;
  }
}

}  // namespace
}  // namespace tandem::proxy
