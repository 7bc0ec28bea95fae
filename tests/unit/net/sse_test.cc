// SPDX-License-Identifier: Apache-2.0
#include "net/sse.h"

#include <gtest/gtest.h>

#include <vector>

namespace tandem::net {
namespace {

std::vector<SseEvent> parse(std::string_view text, std::size_t piece, std::string* rest = nullptr) {
  SseParser parser(1 << 20);
  std::vector<SseEvent> events;
  for (std::size_t at = 0; at < text.size(); at += piece) {
    parser.feed(text.substr(at, piece));
    for (;;) {
      auto event = parser.next();
      EXPECT_TRUE(event);
      if (!*event) break;
      events.push_back(std::move(**event));
    }
  }
  if (rest != nullptr) *rest = parser.unfinished();
  return events;
}

TEST(SseParserTest, EventsWhateverTheBoundaries) {
  const std::string text =
      "\xEF\xBB\xBF"
      "data: {\"a\":1}\n\n: ping\n\nevent: e\r\nid: 7\r\ndata:x\r\ndata: y\r\n\r\ndata: z\r\rdata\n\n\ndata: "
      "[DONE]\n\ndata: cut";
  for (std::size_t piece = 1; piece <= text.size(); ++piece) {
    std::string rest;
    const auto events = parse(text, piece, &rest);
    std::string raw;
    std::vector<std::string> data;
    for (const auto& event : events) {
      raw += event.raw;
      if (event.has_data) data.push_back(event.data);
    }
    EXPECT_EQ(raw + rest, text) << piece;
    EXPECT_EQ(data, (std::vector<std::string>{"{\"a\":1}", "x\ny", "z", "", "[DONE]"})) << piece;
    EXPECT_EQ(rest, "data: cut") << piece;
    ASSERT_GE(events.size(), 3U);
    EXPECT_FALSE(events[1].has_data);
    EXPECT_EQ(events[2].event, "e");
    EXPECT_EQ(events[2].id, "7");
  }
}

TEST(SseParserTest, EndlessEventsAreRefused) {
  SseParser parser(100);
  parser.feed(std::string(101, 'a'));
  EXPECT_FALSE(parser.next());
}

TEST(SseParserTest, ManySmallEventsInOnePieceAreCheap) {
  std::string text;
  for (int i = 0; i < 200'000; ++i) text += "data: x\n\n";
  EXPECT_EQ(parse(text, text.size()).size(), 200'000U);  // quadratic work would not end within the test's time
}

TEST(SseBoundaryTest, KnowsWhereItStands) {
  const auto state = [](std::string_view text) {
    SseBoundary boundary;
    for (const char c : text) boundary.feed(std::string_view(&c, 1));
    SseBoundary whole;
    whole.feed(text);
    EXPECT_EQ(whole.between_events(), boundary.between_events()) << text;
    EXPECT_EQ(whole.at_line_start(), boundary.at_line_start()) << text;
    return std::pair(whole.between_events(), whole.at_line_start());
  };
  EXPECT_EQ(state(""), std::pair(true, true));
  EXPECT_EQ(state("data: a"), std::pair(false, false));
  EXPECT_EQ(state("data: a\n"), std::pair(false, true));
  EXPECT_EQ(state("data: a\n\n"), std::pair(true, true));
  EXPECT_EQ(state("data: a\r\n"), std::pair(false, true));
  EXPECT_EQ(state("data: a\r\n\r\n"), std::pair(true, true));
  EXPECT_EQ(state("data: a\r\r"), std::pair(true, true));
  EXPECT_EQ(state("data: a\n\ndata: b\n\nda"), std::pair(false, false));
}

}  // namespace
}  // namespace tandem::net
