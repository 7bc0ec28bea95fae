// SPDX-License-Identifier: Apache-2.0
// What the server says of requests: access log, http_* series, and the lines of --enable-log-requests and -outputs.
#include "service_fixture.h"

namespace tandem::api {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class RequestObserver : public ServiceTest {
 protected:
  RequestObserver() { config_.access_log = true; }
  /// What is logged while `ask` runs.
  template <class Ask>
  std::string log_of(Ask&& ask) {
    port();  // what is logged at start is not meant
    ::testing::internal::CaptureStderr();
    ask();
    // The line of an answer may be written after the client has read it.
    io_.call([] {});
    return ::testing::internal::GetCapturedStderr();
  }
  std::string metrics() { return body_of(get("/metrics")); }
};

constexpr const char* kCompletion = R"({"prompt":"a\nb","max_tokens":2})";

TEST_F(RequestObserver, EachRequestIsALineOfTheAccessLog) {
  const std::string log = log_of([this] {
    ask("/v1/completions", kCompletion);
    get("/health?x=1");
    get("/tandem/info");
    get("/no%0Athing%22");
    get("/v1/completions");
  });
  EXPECT_THAT(log, HasSubstr(R"( - "POST /v1/completions HTTP/1.1" 200 OK)"));
  EXPECT_THAT(log, HasSubstr(R"( - "GET /health?x=1 HTTP/1.1" 200 OK)"));
  EXPECT_THAT(log, HasSubstr(R"( - "GET /no%0Athing%22 HTTP/1.1" 404 Not Found)"));
  EXPECT_THAT(log, HasSubstr(R"( - "GET /v1/completions HTTP/1.1" 405 Method Not Allowed)"));
  EXPECT_THAT(log, HasSubstr("info 127.0.0.1:"));
  EXPECT_THAT(log, Not(HasSubstr("/tandem/info"))) << "asked all the time";
}

TEST_F(RequestObserver, TheLineComesWhenAStreamBegins) {
  engine_.script = [](std::size_t) {};
  port();
  ::testing::internal::CaptureStderr();
  test::RawClient client(port());
  client.send(test::post_text("/v1/completions", R"({"prompt":"a","stream":true})"));
  ASSERT_TRUE(test::eventually([this] { return engine_.num_submitted() == 1; }));
  engine_.say(0, "H");
  ASSERT_THAT(client.read_until("\n\n"), HasSubstr("data: "));
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr(R"("POST /v1/completions HTTP/1.1" 200 OK)"));
  engine_.say(0, "i", FinishReason::kStop);
}

TEST_F(RequestObserver, TheAccessLogCanBeTurnedOff) {
  config_.access_log = false;
  EXPECT_EQ(log_of([this] { ask("/v1/completions", kCompletion); }), "");
}

TEST_F(RequestObserver, HttpSeriesCountByHandlerMethodAndStatus) {
  config_.root_path = "/gateway";
  ask("/v1/completions", kCompletion);
  ask("/gateway/v1/completions", kCompletion);
  ask("/v1/completions", "{");
  get("/nowhere");
  get("/nowhere", "BREW");
  get("/health");
  const std::string text = metrics();
  const auto has = [&](const std::string& line) { EXPECT_THAT(text, HasSubstr("\n" + line + "\n")); };
  has(R"(http_requests_total{handler="/v1/completions",method="POST",status="2xx"} 2.0)");
  has(R"(http_requests_total{handler="/v1/completions",method="POST",status="4xx"} 1.0)");
  has(R"(http_requests_total{handler="/v1/completions",method="POST",status="5xx"} 0.0)");
  has(R"(http_requests_total{handler="none",method="GET",status="4xx"} 1.0)");
  has(R"(http_requests_total{handler="none",method="other",status="4xx"} 1.0)");
  has(R"(http_request_duration_seconds_bucket{handler="/v1/completions",le="0.1",method="POST"} 3.0)");
  has(R"(http_request_duration_seconds_bucket{handler="/v1/completions",le="+Inf",method="POST"} 3.0)");
  has("http_request_duration_highr_seconds_count 5.0");
  has(R"(http_request_duration_highr_seconds_bucket{le="0.025"} 5.0)");
  has(R"(http_request_size_bytes_sum{handler="/v1/completions"} )" +
      std::to_string(2 * std::string(kCompletion).size() + 1) + ".0");
  has(R"(http_response_size_bytes_count{handler="/v1/completions"} 3.0)");
  EXPECT_THAT(text, HasSubstr("# TYPE http_response_size_bytes summary\n"));
  EXPECT_THAT(text, AllOf(Not(HasSubstr("\"/health\"")), Not(HasSubstr("\"/metrics\""))));
}

TEST_F(RequestObserver, MetricsComeInTheFormatThatTheClientAccepts) {
  registry_.counter("n_total", "N.");
  EXPECT_THAT(test::head_of(get("/metrics")), HasSubstr("content-type: text/plain; version=0.0.4; charset=utf-8"));
  test::RawClient client(port());
  client.send("GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: application/openmetrics-text;version=1.0.0\r\n\r\n");
  const std::string response = client.read_response();
  EXPECT_THAT(test::head_of(response),
              HasSubstr("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8"));
  EXPECT_THAT(body_of(response), AllOf(HasSubstr("# TYPE n counter\nn_total 0.0\n"), ::testing::EndsWith("# EOF\n")));
}

TEST_F(RequestObserver, RequestsAreLoggedWithTextParametersAndIds) {
  config_.access_log = false;
  config_.enable_log_requests = true;
  const std::string log = log_of([this] {
    ask("/v1/completions", R"({"prompt":["a\nb","c"],"max_tokens":2,"temperature":0.5,"stop":["E\"D"]})",
        "X-Request-Id: r\r\n");
  });
  EXPECT_THAT(log, HasSubstr(R"(Received request cmpl-r-0: prompt: "<bos>a\nb", params: SamplingParams(n=1, )"));
  EXPECT_THAT(log, HasSubstr(R"(temperature=0.5, )"));
  EXPECT_THAT(log, HasSubstr(R"(seed=None, stop=["E\"D"], )"));
  EXPECT_THAT(log, HasSubstr("max_tokens=2, "));
  EXPECT_THAT(log, HasSubstr("prompt_token_ids: [256, 97, 10, 98], prompt_embeds shape: None, lora_request: None."));
  EXPECT_THAT(log, HasSubstr(R"(Received request cmpl-r-1: prompt: "<bos>c")"));
  EXPECT_THAT(log, Not(HasSubstr("Generated response")));
}

TEST_F(RequestObserver, LinesAreCutToTheLengthAsked) {
  config_.access_log = false;
  config_.enable_log_requests = config_.enable_log_outputs = true;
  config_.max_log_len = 3;
  const std::string log = log_of(
      [this] { ask("/v1/completions", R"({"prompt":[195,164,98,99,100],"max_tokens":2})", "X-Request-Id: r\r\n"); });
  EXPECT_THAT(log, HasSubstr(R"(prompt: "äbc", params)")) << "characters, not bytes";
  EXPECT_THAT(log, HasSubstr("prompt_token_ids: [195, 164, 98], "));
  EXPECT_THAT(log, HasSubstr(R"(Generated response cmpl-r: output: "Hi", output_token_ids: )"));
  EXPECT_THAT(log, HasSubstr("finish_reason: length"));
}

TEST_F(RequestObserver, StreamedAnswersAreLoggedOnce) {
  config_.access_log = false;
  config_.enable_log_requests = config_.enable_log_outputs = true;
  const std::string log = log_of(
      [this] { events("/v1/chat/completions", R"({"messages":[{"role":"user","content":"a"}],"stream":true})"); });
  EXPECT_THAT(log, HasSubstr(R"( (streaming complete): output: "Hi", output_token_ids: )"));
}

}  // namespace
}  // namespace tandem::api
