// SPDX-License-Identifier: Apache-2.0
#include "net/url.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem::net {
namespace {

using ::testing::HasSubstr;

TEST(HttpUrlTest, HostPortAndTarget) {
  const auto check = [](const std::string& text, const std::string& host, int port, const std::string& target) {
    const auto url = parse_http_url(text);
    ASSERT_TRUE(url) << url.error().to_string();
    EXPECT_EQ(url->endpoint.host, host);
    EXPECT_EQ(url->endpoint.port, port);
    EXPECT_EQ(url->target, target);
  };
  check("http://192.0.0.1:8080/v1/metaserver", "192.0.0.1", 8080, "/v1/metaserver");
  check("http://proxy-0.ns_x/v1/metaserver?a=b:c", "proxy-0.ns_x", 80, "/v1/metaserver?a=b:c");
  check("http://h", "h", 80, "/");
  check("http://h?q", "h", 80, "/?q");
  check("http://h:1/#part", "h", 1, "/");
  check("http://h:1/a@b", "h", 1, "/a@b");
  check("http://[::1]:65535/x", "::1", 65535, "/x");
  check("http://[fe80::1]", "fe80::1", 80, "/");
  check("https://h/x", "h", 443, "/x");
  check("https://h:8443", "h", 8443, "/");
  EXPECT_TRUE(parse_http_url("https://h")->endpoint.tls);
  EXPECT_FALSE(parse_http_url("http://h")->endpoint.tls);
}

TEST(HttpUrlTest, Refused) {
  const auto why = [](const std::string& text) {
    const auto url = parse_http_url(text);
    return url ? "accepted: " + text : url.error().message();
  };
  EXPECT_THAT(why(""), HasSubstr("scheme is not http"));
  EXPECT_THAT(why("httpss://h/"), HasSubstr("scheme is not http"));
  EXPECT_THAT(why("file:///etc/passwd"), HasSubstr("scheme is not http"));
  EXPECT_THAT(why("http://"), HasSubstr("names no host"));
  EXPECT_THAT(why("http:///x"), HasSubstr("names no host"));
  EXPECT_THAT(why("http://:80/x"), HasSubstr("names no host"));
  EXPECT_THAT(why("http://user@h/"), HasSubstr("names no host, or one with other characters"));
  EXPECT_THAT(why("http://user:pass@h/"), HasSubstr("port is not a number"));
  EXPECT_THAT(why("http://h:0/"), HasSubstr("port"));
  EXPECT_THAT(why("http://h:65536/"), HasSubstr("port"));
  EXPECT_THAT(why("http://h:8x/"), HasSubstr("port"));
  EXPECT_THAT(why("http://h:/"), HasSubstr("port"));
  EXPECT_THAT(why("http://[::1/"), HasSubstr("closing bracket"));
  EXPECT_THAT(why("http://[::1]x/"), HasSubstr("port"));
  EXPECT_THAT(why("http://[h]/"), HasSubstr("no IPv6 address"));
  EXPECT_THAT(why("http://h/a b"), HasSubstr("a blank"));
  EXPECT_THAT(why("http://h/\r\nX: y"), HasSubstr("a control character"));
  EXPECT_THAT(why("http://h/" + std::string(2048, 'a')), HasSubstr("at most 2048"));
}

}  // namespace
}  // namespace tandem::net
