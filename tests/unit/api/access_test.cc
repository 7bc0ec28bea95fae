// SPDX-License-Identifier: Apache-2.0
// Who may ask, what browsers are told (CORS), and the headers that every answer has.
#include "api/access.h"

#include "service_fixture.h"

namespace tandem::api {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

std::string header_of(const std::string& response, const std::string& name) {
  const std::string head = test::head_of(response);
  const auto at = head.find("\r\n" + name + ": ");
  if (at == std::string::npos) return "";
  const auto from = at + name.size() + 4;
  return head.substr(from, head.find("\r\n", from) - from);
}

class AccessTest : public ServiceTest {
 protected:
  std::string preflight(const std::string& path, const std::string& headers = "") {
    test::RawClient client(port());
    client.send("OPTIONS " + path +
                " HTTP/1.1\r\nHost: x\r\nOrigin: https://a\r\nAccess-Control-Request-Method: POST\r\n" + headers +
                "Content-Length: 0\r\n\r\n");
    return client.read_response();
  }
};

TEST_F(AccessTest, KeysLockWhatVllmLocksAndWhatChangesState) {
  config_.api_keys = {"first", "second"};
  const std::string body = R"({"prompt":"a"})";
  const auto status = [&](const std::string& header) { return status_of(ask("/v1/completions", body, header)); };
  const std::string refused = ask("/v1/completions", body);
  EXPECT_EQ(status_of(refused), 401);
  EXPECT_EQ(body_of(refused), R"({"error":"Unauthorized"})");
  EXPECT_EQ(status("Authorization: Bearer first\r\n"), 200);
  EXPECT_EQ(status("Authorization: bearer second\r\n"), 200);
  for (const char* wrong :
       {"Bearer firs", "Bearer firstt", "Bearer ", "Bearer", "first", "Basic first", "Bearer FIRST"})
    EXPECT_EQ(status(std::string("Authorization: ") + wrong + "\r\n"), 401) << wrong;
  EXPECT_EQ(status_of(get("/v1/models")), 401);
  EXPECT_EQ(status_of(get("/reset_prefix_cache", "POST")), 401);
  EXPECT_EQ(status_of(get("/tandem/release", "POST")), 401);
  EXPECT_EQ(status_of(get("/v1/nope")), 401);
  EXPECT_EQ(status_of(ask("/invocations", body)), 401);
  EXPECT_EQ(engine_.num_resets, 0);
  for (const char* open : {"/health", "/metrics", "/version", "/load"}) EXPECT_EQ(status_of(get(open)), 200) << open;
  EXPECT_EQ(status_of(preflight("/v1/models")), 200);
}

TEST_F(AccessTest, BrowsersOfOtherOriginsAndPathPrefixes) {
  config_.root_path = "/api";
  config_.allowed_origins = {"https://a"};
  EXPECT_EQ(status_of(get("/api/v1/models")), 200);
  EXPECT_EQ(status_of(get("/v1/models")), 200);
  const std::string body = R"({"prompt":"a"})";
  EXPECT_THAT(ask("/v1/completions", body, "Origin: https://a\r\n"),
              HasSubstr("Access-Control-Allow-Origin: https://a"));
  EXPECT_THAT(ask("/v1/completions", body, "Origin: https://b\r\n"), Not(HasSubstr("Access-Control")));
}

TEST_F(AccessTest, BrowsersMayReadEveryAnswer) {
  config_.api_keys = {"key"};
  config_.allow_credentials = true;
  const std::string origin = "Origin: https://a\r\n";
  const std::string key = "Authorization: Bearer key\r\n";
  for (const std::string& response :
       {ask("/v1/completions", R"({"prompt":"a"})", origin + key),
        ask("/v1/completions", R"({"prompt":"a","stream":true})", origin + key),
        ask("/v1/completions", "{", origin + key), ask("/v1/completions", R"({"prompt":"a"})", origin),
        ask("/nope", "{}", origin), ask("/health", "{}", origin), preflight("/v1/models"), preflight("/nope")}) {
    EXPECT_EQ(header_of(response, "Access-Control-Allow-Origin"), "https://a") << response;
    EXPECT_EQ(header_of(response, "Access-Control-Allow-Credentials"), "true") << response;
    EXPECT_EQ(header_of(response, "Vary"), "Origin") << response;
  }
  EXPECT_EQ(header_of(get("/health"), "Access-Control-Allow-Origin"), "") << "no browser asks";
}

TEST_F(AccessTest, PreflightsAreAnsweredWhateverThePath) {
  for (const char* path : {"/v1/chat/completions", "/nope"}) {
    const std::string response = preflight(path, "Access-Control-Request-Headers: authorization\r\n");
    EXPECT_EQ(status_of(response), 200);
    EXPECT_EQ(body_of(response), "OK");
    EXPECT_EQ(header_of(response, "Access-Control-Allow-Origin"), "*");
    EXPECT_EQ(header_of(response, "Access-Control-Allow-Headers"), "authorization");
  }
  EXPECT_EQ(status_of(get("/v1/models", "OPTIONS")), 405) << "no browser asks so";
}

TEST_F(AccessTest, EveryAnswerHasTheRequestsIdWithTheFlag) {
  config_.enable_request_id_headers = true;
  config_.api_keys = {"key"};
  const std::string key = "Authorization: Bearer key\r\n";
  const std::string mine = "X-Request-Id: mine\r\n";
  const auto id = [](const std::string& response) { return header_of(response, "X-Request-Id"); };
  const std::string whole = ask("/v1/completions", R"({"prompt":"a"})", key + mine);
  EXPECT_EQ(id(whole), "mine");
  EXPECT_THAT(body_of(whole), HasSubstr(R"("id":"cmpl-mine")"));
  for (const std::string& response :
       {ask("/v1/completions", R"({"prompt":"a","stream":true})", key + mine), ask("/v1/completions", "{", key + mine),
        ask("/v1/completions", R"({"prompt":"a"})", mine), ask("/nope", "{}", mine), ask("/health", "{}", mine),
        preflight("/v1/models", mine)})
    EXPECT_EQ(id(response), "mine") << response;
  // A member of the body says what the answer's id is, and nothing of the header.
  const std::string random = "[0-9a-f]+";
  for (const char* stream : {"false", "true"}) {
    const std::string named =
        ask("/v1/completions", R"({"prompt":"a","request_id":"body-é","stream":)" + std::string(stream) + "}", key);
    EXPECT_THAT(id(named), MatchesRegex(random));
    EXPECT_THAT(body_of(named), HasSubstr(R"("id":"cmpl-body-é")"));
  }
  const std::string none = get("/health");
  EXPECT_THAT(id(none), MatchesRegex(random));
  EXPECT_EQ(id(none).size(), 32U);
  EXPECT_NE(id(none), id(get("/health")));
  for (const char* no_text : {"h\xc3\xa9", "a\tb", "\x80"})
    EXPECT_THAT(id(ask("/nope", "{}", "X-Request-Id: " + std::string(no_text) + "\r\n")), MatchesRegex(random));
}

TEST_F(AccessTest, WithoutTheFlagNoAnswerHasAnId) {
  EXPECT_THAT(test::head_of(ask("/nope", "{}", "X-Request-Id: mine\r\n")), Not(HasSubstr("X-Request-Id")));
}

/// As a browser asks on behalf of a page of https://a.
net::HttpRequest preflight_for(const std::string& method, const std::string& headers = "") {
  net::HttpRequest request;
  request.method = "OPTIONS";
  request.headers.add("Origin", "https://a");
  request.headers.add("Access-Control-Request-Method", method);
  if (!headers.empty()) request.headers.add("Access-Control-Request-Headers", headers);
  return request;
}

TEST(Preflights, EverythingIsSpelledOut) {
  const auto request = preflight_for("POST", "authorization, x-own");
  EXPECT_TRUE(is_preflight(request));
  const auto answer = preflight_answer(config::ServeConfig(), request);
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, "OK");
  EXPECT_EQ(answer.content_type, "text/plain; charset=utf-8");
  EXPECT_EQ(answer.headers.find("Access-Control-Allow-Methods"), "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT");
  EXPECT_EQ(answer.headers.find("Access-Control-Allow-Headers"), "authorization, x-own");
  EXPECT_EQ(answer.headers.find("Access-Control-Max-Age"), "600");
  EXPECT_FALSE(
      preflight_answer(config::ServeConfig(), preflight_for("GET")).headers.find("Access-Control-Allow-Headers"));
  EXPECT_EQ(preflight_answer(config::ServeConfig(), preflight_for("BREW")).body, "Disallowed CORS method");
  net::HttpRequest plain;
  plain.method = "OPTIONS";
  plain.headers.add("Origin", "https://a");
  EXPECT_FALSE(is_preflight(plain));
}

TEST(Preflights, ListsAreHeld) {
  config::ServeConfig config;
  config.allowed_origins = {"https://a"};
  config.allowed_methods = {"GET", "POST"};
  config.allowed_headers = {"X-Own", "Authorization", "Accept"};
  const auto some = preflight_answer(config, preflight_for("POST", "authorization,x-OWN , content-type"));
  EXPECT_EQ(some.status, 200);
  EXPECT_EQ(some.headers.find("Access-Control-Allow-Methods"), "GET, POST");
  EXPECT_EQ(some.headers.find("Access-Control-Allow-Headers"),
            "Accept, Accept-Language, Authorization, Content-Language, Content-Type, X-Own");
  const auto other = preflight_answer(config, preflight_for("PUT", "authorization, x-other"));
  EXPECT_EQ(other.status, 400);
  EXPECT_EQ(other.body, "Disallowed CORS method, headers");
  config.allowed_origins = {"https://b"};
  EXPECT_EQ(preflight_answer(config, preflight_for("PUT", "x-other")).body, "Disallowed CORS origin, method, headers");
}

}  // namespace
}  // namespace tandem::api
