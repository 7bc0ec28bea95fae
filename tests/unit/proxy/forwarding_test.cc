// SPDX-License-Identifier: Apache-2.0
#include "proxy/forwarding.h"

#include <gtest/gtest.h>

#include <regex>
#include <set>

namespace tandem::proxy {
namespace {

TEST(ForwardingTest, HeadersThatPassAndHeadersThatDoNot) {
  net::Headers client;
  client.add("Host", "proxy");
  client.add("Content-Length", "12");
  client.add("Content-Type", "text/plain");
  client.add("Connection", "keep-alive, X-Private");
  client.add("X-Private", "1");
  client.add("Transfer-Encoding", "chunked");
  client.add("Accept-Encoding", "gzip");
  client.add("Expect", "100-continue");
  client.add("X-Request-Id", "client's");
  client.add("X-Tandem-Timing", "1");
  client.add("traceparent", "00-1-2-01");
  config::ProxyConfig config;
  config.fallback_api_key = "secret";
  const auto sent = backend_headers(client, "id-7", config);
  std::set<std::string> names;
  for (const auto& [name, value] : sent.fields()) names.insert(name);
  EXPECT_EQ(names,
            (std::set<std::string>{"X-Tandem-Timing", "traceparent", "authorization", "Content-Type", "x-request-id"}));
  EXPECT_EQ(sent.find("content-type"), "text/plain") << "an instance says whether it takes that";
  EXPECT_EQ(sent.find("authorization"), "Bearer secret");
  EXPECT_EQ(sent.find("x-request-id"), "id-7");
  client.add("Authorization", "Bearer own");
  EXPECT_EQ(backend_headers(client, "id", config).find("authorization"), "Bearer own");
  EXPECT_FALSE(backend_headers(net::Headers(), "id", config::ProxyConfig()).find("authorization"));
  config.instance_api_key = "instances'";
  EXPECT_EQ(backend_headers(client, "id", config).find("authorization"), "Bearer instances'");
  EXPECT_EQ(backend_headers(net::Headers(), "id", config).find("authorization"), "Bearer instances'");
}

TEST(ForwardingTest, UuidsAreOfVersion4AndDiffer) {
  const std::regex form("[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}");
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) {
    const auto id = make_uuid();
    EXPECT_TRUE(std::regex_match(id, form)) << id;
    EXPECT_TRUE(seen.insert(id).second);
  }
}

TEST(ForwardingTest, ErrorsAreTextWhateverAnInstanceSaid) {
  const std::string cut = std::string("\xe4\xb8\xad").substr(0, 2);
  EXPECT_EQ(error_body(502, "a" + cut),
            "{\"error\":{\"message\":\"a\xef\xbf\xbd\",\"type\":\"BadGatewayError\",\"param\":null,\"code\":502}}");
}

TEST(ForwardingTest, ErrorsHaveOpenAisForm) {
  EXPECT_EQ(error_body(502, "a \"b\"\n"),
            R"({"error":{"message":"a \"b\"\n","type":"BadGatewayError","param":null,"code":502}})");
  EXPECT_EQ(error_response(413, "x", "a").body,
            R"({"error":{"message":"x","type":"BadRequestError","param":"a","code":413}})");
  EXPECT_TRUE(error_response(503, "x").headers.find("retry-after"));
}

}  // namespace
}  // namespace tandem::proxy
