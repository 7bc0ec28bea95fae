// SPDX-License-Identifier: Apache-2.0
#include "net/http_parser.h"

#include <gtest/gtest.h>

namespace tandem::net {
namespace {

/// Feeds in pieces of a given size; what the parser does not take is offered again with the next piece.
template <class Parser>
std::optional<ParseError> feed_by(Parser& parser, std::string_view bytes, std::size_t piece) {
  std::string held;
  for (std::size_t at = 0; at < bytes.size() && !parser.done(); at += piece) {
    held += bytes.substr(at, piece);
    const Fed fed = parser.feed(held);
    held.erase(0, fed.consumed);
    if (fed.error) return fed.error;
  }
  return std::nullopt;
}

TEST(RequestParserTest, SameRequestWhateverTheTcpBoundaries) {
  const std::string text =
      "POST /v1/chat%20x?a=b HTTP/1.1\r\nHost: h\r\nX-One: 1\r\nx-one: 2\r\nTransfer-Encoding: chunked\r\n\r\n"
      "5\r\nhello\r\n1;ext=1\r\n \r\n5\r\nworld\r\n0\r\nTrailer: t\r\n\r\n";
  for (std::size_t piece = 1; piece <= text.size(); ++piece) {
    RequestParser parser(1 << 16, 1 << 20);
    ASSERT_FALSE(feed_by(parser, text, piece)) << piece;
    ASSERT_TRUE(parser.done()) << piece;
    HttpRequest request;
    ASSERT_FALSE(parser.take(request));
    EXPECT_EQ(request.method, "POST");
    EXPECT_EQ(request.path, "/v1/chat x");
    EXPECT_EQ(request.query, "a=b");
    EXPECT_EQ(request.body, "hello world");
    EXPECT_EQ(request.headers.find("X-ONE"), "1");
    EXPECT_TRUE(parser.keep_alive());
  }
}

TEST(RequestParserTest, LeavesThePipelinedRequestAlone) {
  RequestParser parser(1 << 16, 1 << 20);
  const std::string first = "POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\nab";
  const Fed fed = parser.feed(first + "GET / HTTP/1.1\r\n\r\n");
  EXPECT_FALSE(fed.error);
  EXPECT_EQ(fed.consumed, first.size());
  EXPECT_TRUE(parser.done());
}

TEST(RequestParserTest, BadInputHasAStatus) {
  const auto status = [](std::string_view text) {
    RequestParser parser(1024, 100);
    const Fed fed = parser.feed(text);
    if (fed.error) return fed.error->status;
    HttpRequest request;
    if (parser.done()) {
      if (auto error = parser.take(request)) return error->status;
      return 200;
    }
    return 0;
  };
  EXPECT_EQ(status("\x16\x03\x01\x02 TLS hello\r\n\r\n"), 400);
  EXPECT_EQ(status("GET / HTTP/2.0\r\n\r\n"), 505);
  EXPECT_EQ(status("GET /%zz HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(status("GET /%00 HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(status("POST / HTTP/1.1\r\nContent-Length: 101\r\n\r\n"), 413);
  EXPECT_EQ(status("POST / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n"), 400);
  EXPECT_EQ(status("POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc"), 400);
  EXPECT_EQ(status("POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc"), 400);
  EXPECT_EQ(status("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), 400);
  EXPECT_EQ(status("GET / HTTP/1.1\r\nA: " + std::string(2000, 'a') + "\r\n\r\n"), 431);
  EXPECT_EQ(status("GET / HTTP/1.1\r\nA: " + std::string(2000, 'a')), 431);
  EXPECT_EQ(status("GET http://host:1/path?q HTTP/1.1\r\n\r\n"), 200);
}

TEST(RequestParserTest, AChunkedBodyOverTheLimitIsRefused) {
  RequestParser parser(1024, 100);
  std::string text = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 11; ++i) text += "a\r\n0123456789\r\n";
  const auto error = feed_by(parser, text, 7);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->status, 413);
  EXPECT_NE(error->message.find("at most 100 bytes"), std::string::npos) << error->message;
}

TEST(ResponseParserTest, BodyComesByteForByteInPieces) {
  const std::string text =
      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
      "9\r\ndata: a\n\n\r\n1\r\n\n\r\n8\r\ndata: b\n\r\n0\r\n\r\n";
  for (std::size_t piece = 1; piece <= text.size(); ++piece) {
    ResponseParser parser(1 << 16, false);
    std::string held;
    std::string body;
    for (std::size_t at = 0; at < text.size(); at += piece) {
      held += text.substr(at, piece);
      const Fed fed = parser.feed(held);
      ASSERT_FALSE(fed.error);
      held.erase(0, fed.consumed);
      body += parser.take_body();
    }
    EXPECT_TRUE(parser.done()) << piece;
    EXPECT_EQ(body, "data: a\n\n\ndata: b\n") << piece;
    EXPECT_EQ(parser.status(), 200);
    EXPECT_TRUE(parser.keep_alive());
  }
}

TEST(ResponseParserTest, EndOfConnectionEndsOrBreaksABody) {
  ResponseParser until_close(1 << 16, false);
  EXPECT_FALSE(until_close.feed("HTTP/1.0 200 OK\r\n\r\nabc").error);
  EXPECT_FALSE(until_close.done());
  EXPECT_FALSE(until_close.finish());
  EXPECT_TRUE(until_close.done());
  EXPECT_EQ(until_close.take_body(), "abc");

  ResponseParser short_body(1 << 16, false);
  EXPECT_FALSE(short_body.feed("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc").error);
  EXPECT_TRUE(short_body.finish());

  ResponseParser head(1 << 16, true);
  EXPECT_FALSE(head.feed("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n").error);
  EXPECT_TRUE(head.done());
}

}  // namespace
}  // namespace tandem::net
