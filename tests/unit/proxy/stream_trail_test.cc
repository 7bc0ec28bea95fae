// SPDX-License-Identifier: Apache-2.0
#include "proxy/stream_trail.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <vector>

namespace tandem::proxy {
namespace {

using State = StreamTrail::State;

std::string event(std::string_view id, int created, int choice, std::string_view text) {
  return fmt::format(
      R"(data: {{"id":"cmpl-{}","object":"text_completion","created":{},"model":"m","choices":[{{"index":{},"text":"{}"}}]}})"
      "\n\n",
      id, created, choice, text);
}

std::string join(const std::vector<std::string>& parts) {
  std::string all;
  for (const auto& part : parts) all += part;
  return all;
}

class StreamTrailTest : public testing::Test {
 protected:
  /// What the client gets of `bytes`.
  std::string pass(std::string_view bytes, State expected = State::kGoesOn) {
    std::string out;
    EXPECT_EQ(trail_.feed(bytes, [this] { return may_resume_; }, out), expected) << bytes;
    return out;
  }
  std::string end(State expected = State::kGoesOn) {
    std::string out;
    EXPECT_EQ(trail_.finish(out), expected);
    return out;
  }
  StreamTrail trail_;
  bool may_resume_ = true;
};

TEST_F(StreamTrailTest, OneAnswerPassesAsItIsWhateverTheSplit) {
  const std::string whole = join({event("a", 5, 0, "x"), ": ping\n\n", event("a", 5, 1, "y"), "data: [DONE]\n\n"});
  for (std::size_t cut = 0; cut <= whole.size(); ++cut) {
    trail_ = StreamTrail();
    trail_.begin_answer();
    std::string out = pass(whole.substr(0, cut));
    EXPECT_TRUE(out.empty() || out.ends_with("\n\n")) << "whole events only";
    out += pass(whole.substr(cut));
    EXPECT_EQ(out + end(), whole);
    EXPECT_TRUE(trail_.said_done());
  }
}

TEST_F(StreamTrailTest, AnotherAnswerGoesOnUnderTheFirstIds) {
  trail_.begin_answer();
  EXPECT_EQ(pass(event("a", 5, 0, "x") + event("a", 5, 0, "y") + "data: {\"id\":\"cm"),
            event("a", 5, 0, "x") + event("a", 5, 0, "y"));
  trail_.begin_answer();
  EXPECT_EQ(pass(event("b", 9, 0, "x")), "");
  EXPECT_EQ(pass(event("b", 9, 0, "y") + event("b", 9, 0, "z")), event("a", 5, 0, "z"));
  trail_.begin_answer();
  EXPECT_EQ(pass(join({event("c", 11, 0, "x"), event("c", 11, 0, "y"), event("c", 11, 0, "z"), event("c", 11, 0, "!"),
                       "data: [DONE]\n\n"})),
            event("a", 5, 0, "!") + "data: [DONE]\n\n");
  EXPECT_EQ(end(), "");
}

TEST_F(StreamTrailTest, ChoicesMayAdvanceInAnotherOrder) {
  trail_.begin_answer();
  pass(join({event("a", 5, 0, "x"), event("a", 5, 1, "p"), event("a", 5, 1, "q")}));
  trail_.begin_answer();
  EXPECT_EQ(pass(join({event("b", 9, 1, "p"), event("b", 9, 0, "x"), event("b", 9, 0, "y")})), event("a", 5, 0, "y"));
  EXPECT_EQ(pass(event("b", 9, 1, "q") + event("b", 9, 1, "r")), event("a", 5, 1, "r"));
  EXPECT_EQ(end(), "");
}

TEST_F(StreamTrailTest, IdsOfToolCallsAreNotCompared) {
  const auto call = [](std::string_view id) {
    return fmt::format(
        R"(data: {{"id":"chatcmpl-{0}","created":1,"model":"m","choices":[{{"index":0,"delta":{{"tool_calls":[{{"id":"call_{0}","index":0}}]}}}}]}})"
        "\n\n",
        id);
  };
  trail_.begin_answer();
  pass(call("a"));
  trail_.begin_answer();
  EXPECT_EQ(pass(call("b")), "");
}

TEST_F(StreamTrailTest, NothingOfAnAnswerThatDiffersIsPassedOn) {
  trail_.begin_answer();
  pass(event("a", 5, 0, "x") + event("a", 5, 0, "y"));
  trail_.begin_answer();
  EXPECT_EQ(pass(join({event("b", 5, 0, "x"), event("b", 5, 0, "Y"), event("b", 5, 0, "z")}), State::kDiffers), "");
  EXPECT_NE(trail_.why().message().find("not the same"), std::string::npos);

  trail_.begin_answer();
  EXPECT_EQ(pass(event("b", 5, 0, "x")), "");
  EXPECT_EQ(end(State::kDiffers), "") << "it ended before where the client is";
}

TEST_F(StreamTrailTest, WhatAnInstanceSaysOfItsOwnEndInterrupts) {
  const std::string dead = R"(data: {"error":{"message":"engine died","type":"InternalServerError","code":500}})"
                           "\n\n";
  const std::string aborted =
      R"(data: {"id":"cmpl-a","object":"text_completion","created":5,"model":"m","choices":[{"finish_reason":"abort"}]})"
      "\n\n";
  for (const std::string& last : {dead, aborted}) {
    trail_ = StreamTrail();
    trail_.begin_answer();
    may_resume_ = true;
    EXPECT_EQ(pass(event("a", 5, 0, "x") + last, State::kInterrupted), event("a", 5, 0, "x"));
    EXPECT_FALSE(trail_.why().ok());
    trail_.begin_answer();
    may_resume_ = false;
    if (last == dead) {
      EXPECT_EQ(pass(event("b", 5, 0, "x") + last), last) << "nobody can go on: the client hears of it";
    } else {
      EXPECT_EQ(pass(event("b", 5, 0, "x") + last, State::kInterrupted), "") << "no end that looks like one";
    }
  }
}

TEST_F(StreamTrailTest, ErrorsOfTheRequestAndTextThatLooksLikeAnEndPass) {
  const std::string refused = R"(data: {"error":{"message":"no","type":"BadRequestError","code":400}})"
                              "\n\n";
  const std::string text = event("a", 5, 0, R"(\"finish_reason\":\"abort\" {\"error\":{\"code\":500}})");
  trail_.begin_answer();
  EXPECT_EQ(pass(text + refused), text + refused);
}

}  // namespace
}  // namespace tandem::proxy
