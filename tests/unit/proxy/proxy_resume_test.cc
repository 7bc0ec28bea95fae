// SPDX-License-Identifier: Apache-2.0
// A stream whose decoder breaks off goes on at another one, and the client does not notice; or it ends with an error.
#include <algorithm>

#include "proxy/json_members.h"
#include "proxy_fixture.h"

namespace tandem::proxy {
namespace {

using namespace std::chrono_literals;
using test::body_of;
using test::error_answer;
using test::status_of;
using End = test::Behaviour::End;

const std::string kWhole = kEvents[0] + kEvents[1] + kEvents[2];
const std::string kResumes = "tandem:proxy_stream_resumes_total";
const std::string kBroken = R"(tandem:proxy_requests_total{endpoint="/v1/completions",outcome="broken"})";
const std::string kAborted = R"(data: {"choices":[{"index":0,"text":"","finish_reason":"abort"}]})"
                             "\n\n";

test::Behaviour broken_after(std::vector<std::string> pieces, End end = End::kBreak) {
  auto behaviour = test::event_stream(std::move(pieces));
  behaviour.end = end;
  return behaviour;
}

class ProxyResumeTest : public ProxyTest {
 protected:
  std::size_t decodes() { return d(0).requests().size() + d(1).requests().size(); }
  std::size_t prefills() { return p(0).requests().size() + p(1).requests().size(); }
  void expect_error_event_after(const std::string& events, const std::string& response, int broken = 1) {
    EXPECT_EQ(status_of(response), 200);
    EXPECT_TRUE(body_of(response).starts_with(events + "data: {\"error\": {\"message\": ")) << response;
    EXPECT_EQ(response.find("[DONE]"), std::string::npos) << response;
    EXPECT_TRUE(response.ends_with("0\r\n\r\n")) << "the transfer itself ends properly";
    EXPECT_EQ(metric(kBroken), broken);
    EXPECT_TRUE(all_scores_zero());
  }
};

TEST_F(ProxyResumeTest, AStreamGoesOnAtAnotherDecoder) {
  config_.stream_idle_timeout = 300ms;
  const std::string dead = R"(data: {"error":{"message":"the engine died","type":"x","code":500}})"
                           "\n\n";
  int resumes = 0;
  for (const auto& way : {broken_after({kEvents[0]}), broken_after({kEvents[0], "data: {\"choi"}),
                          broken_after({kEvents[0] + kEvents[1]}), broken_after({kEvents[0]}, End::kHang),
                          broken_after({kEvents[0], dead}, End::kProper),
                          broken_after({kEvents[0], kAborted, kEvents[2]}, End::kProper)}) {
    SCOPED_TRACE(way.pieces.back());
    start();
    const std::size_t prefilled = prefills();
    d(0).then(way);
    const auto response = ask(kStreamBody, "/v1/completions", "X-Request-Id: mine\r\n");
    EXPECT_EQ(body_of(response), kWhole);
    EXPECT_EQ(d(1).requests().back().headers.find("x-request-id"), "mine-r1") << "an id is never used for two attempts";
    EXPECT_EQ(prefills(), prefilled + 2);
    EXPECT_EQ(metric(kResumes), ++resumes);
    EXPECT_EQ(metric(kBroken), 0);
    EXPECT_TRUE(all_scores_zero());
    proxy_.reset();
  }
}

TEST_F(ProxyResumeTest, WhereNobodyElseIsThereTheEndIsVisible) {
  d(0).then(broken_after({kEvents[0]}));
  start_one_each();
  expect_error_event_after(kEvents[0], ask(kStreamBody));
  EXPECT_EQ(d(0).requests().size(), 1U) << "the one that broke off is not asked again";
  d(0).then(broken_after({kEvents[0], kAborted, kEvents[2]}, End::kProper));
  expect_error_event_after(kEvents[0], ask(kStreamBody), 2);
}

TEST_F(ProxyResumeTest, ARequestThatBringsDecodersDownGetsNoMoreThanItsNumberOfThem) {
  d(0).set_usual(broken_after({kEvents[0]}));
  d(1).set_usual(broken_after({kEvents[0] + kEvents[1]}));
  start();
  const auto response = ask(kStreamBody);
  EXPECT_EQ(decodes(), 2U);
  expect_error_event_after(kEvents[0] + kEvents[1], response);
}

TEST_F(ProxyResumeTest, CanBeTurnedOff) {
  config_.max_stream_resumes = 0;
  d(0).then(broken_after({kEvents[0]}));
  start();
  expect_error_event_after(kEvents[0], ask(kStreamBody));
  EXPECT_EQ(decodes(), 1U);
}

TEST_F(ProxyResumeTest, AnAnswerThatDiffersIsNotGoneOnWith) {
  d(0).then(broken_after({kEvents[0] + kEvents[1]}));
  d(1).then(test::event_stream({kEvents[0], "data: {\"choices\":[{\"text\":\"ma\"}]}\n\n", kEvents[1], kEvents[2]}));
  start();
  const auto response = ask(kStreamBody);
  expect_error_event_after(kEvents[0] + kEvents[1], response);
  EXPECT_NE(response.find("not the same"), std::string::npos) << response;
}

TEST_F(ProxyResumeTest, FailuresOfTheSecondDecoderAreInTheErrorEvent) {
  int broken = 0;
  for (const auto& way : {error_answer(500, "oops"), error_answer(400, R"({"error":{"message":"oops"}})"),
                          test::json_answer(R"({"choices":[]})")}) {
    SCOPED_TRACE(way.body);
    d(0).then(broken_after({kEvents[0]}));
    d(1).then(way);
    start();
    const auto response = ask(kStreamBody);
    expect_error_event_after(kEvents[0], response, ++broken);
    if (way.status >= 400) {
      EXPECT_NE(response.find("oops"), std::string::npos) << response;
    }
    proxy_.reset();
  }
}

TEST_F(ProxyResumeTest, DecodersOfOursGetASeedSoThatBothDrawTheSameNumbers) {
  config_.connector = config::ProxyConnector::kAuto;
  for (auto& decoder : decoders_) decoder->set_connector("MooncakeConnectorV1");
  d(0).then(broken_after({kEvents[0]}));
  start();
  const auto seed_of = [](const net::HttpRequest& request) {
    return std::string(JsonMembers::parse(request.body)->find("seed").value_or("none"));
  };
  EXPECT_EQ(body_of(ask(kStreamBody)), kWhole);
  const std::string seed = seed_of(d(0).requests().at(0));
  EXPECT_NE(seed, "none");
  EXPECT_EQ(seed_of(d(1).requests().at(0)), seed);
  EXPECT_EQ(seed_of(p(0).requests().at(0)), "none") << "a prefiller draws nothing";
  ask(R"({"model":"m","prompt":"Hi","stream":true,"seed":7})");
  ask(kPlainBody);
  std::vector<std::string> later;
  for (const std::size_t i : {0U, 1U})
    for (const auto& request : d(i).requests()) later.push_back(seed_of(request));
  EXPECT_EQ(std::count(later.begin(), later.end(), "7"), 1);
  EXPECT_EQ(std::count(later.begin(), later.end(), "none"), 1) << "what is no stream is not gone on with";
}

}  // namespace
}  // namespace tandem::proxy
