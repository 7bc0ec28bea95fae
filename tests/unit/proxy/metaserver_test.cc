// SPDX-License-Identifier: Apache-2.0
#include "proxy/metaserver.h"

#include <gtest/gtest.h>

namespace tandem::proxy {
namespace {

TEST(ChildId, ReadsTheIdsOfDecoders) {
  const auto completion = ChildId::parse("cmpl-0aa8-11-2");
  ASSERT_TRUE(completion);
  EXPECT_EQ(completion->parent, "cmpl-0aa8-11");
  EXPECT_EQ(completion->prompt, 2U);
  EXPECT_EQ(completion->choice, 0U);
  const auto choice = ChildId::parse("3_cmpl-a-0");
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->parent, "cmpl-a");
  EXPECT_EQ(choice->choice, 3U);
  const auto chat = ChildId::parse("chatcmpl-my_own-5");
  ASSERT_TRUE(chat);
  EXPECT_EQ(chat->parent, "chatcmpl-my_own-5") << "chats have no prompt index";
  EXPECT_EQ(ChildId::parse("1_chatcmpl-x")->choice, 1U);
}

TEST(ChildId, RefusesWhatIsNone) {
  for (const char* text : {"", "cmpl-", "cmpl-a", "cmpl--0", "cmpl-a-", "cmpl-a-x", "cmpl-a-1234567", "chatcmpl-",
                           "_cmpl-a-0", "x_cmpl-a-0", "-1_cmpl-a-0", "other-a-0", "9999999_cmpl-a-0", "cmpl-0"}) {
    EXPECT_FALSE(ChildId::parse(text)) << text;
  }
}

TEST(MetaserverPost, KeepsTheObjectAsItCame) {
  const std::string body = R"( {"request_id" : "cmpl-a\u002d0", "n":18446744073709551615} )";
  const auto post = MetaserverPost::parse(body);
  ASSERT_TRUE(post) << post.error().message();
  EXPECT_EQ(post->child.parent, "cmpl-a");
  EXPECT_EQ(post->params, body);
}

TEST(MetaserverPost, ErrorsNameTheMember) {
  for (const char* body : {"", "{", "[]", "{}", R"({"request_id":null})", R"({"request_id":"x"})"}) {
    const auto post = MetaserverPost::parse(body);
    ASSERT_FALSE(post) << body;
    EXPECT_NE(post.error().message().find("decoder's message"), std::string::npos) << post.error().message();
  }
}

}  // namespace
}  // namespace tandem::proxy
