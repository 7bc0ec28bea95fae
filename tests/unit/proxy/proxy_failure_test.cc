// SPDX-License-Identifier: Apache-2.0
// Every rule of failure: who is asked again, who is not, and what the client sees.
#include <sys/resource.h>
#include <unistd.h>

#include "proxy_fixture.h"
#include "push_stand_in.h"

namespace tandem::proxy {
namespace {

using namespace std::chrono_literals;
using test::body_of;
using test::error_answer;
using test::eventually;
using test::status_of;
using End = test::Behaviour::End;

class ProxyFailureTest : public ProxyTest {
 protected:
  std::size_t total_releases() const {
    std::size_t count = 0;
    for (const auto& stand_in : prefillers_) count += stand_in->releases().size();
    return count;
  }
};

TEST_F(ProxyFailureTest, BadBodiesAreRefusedWithoutAskingAnyone) {
  start_one_each();
  std::string deep(2000, '[');
  for (const std::string& body :
       {std::string("{"), std::string("[]"), std::string(), std::string("nonsense"), "{\"a\":" + deep}) {
    const auto response = ask(body);
    EXPECT_EQ(status_of(response), 400) << body;
    EXPECT_NE(body_of(response).find(R"("type":"BadRequestError")"), std::string::npos) << response;
  }
  EXPECT_TRUE(p().requests().empty());
  EXPECT_TRUE(d().requests().empty());
  EXPECT_EQ(status_of(ask(kPlainBody)), 200) << "the next request works";
}

TEST_F(ProxyFailureTest, A4xxOfAPrefillerIsPassedOnAndNothingIsRetried) {
  auto refusal = error_answer(422, R"({"error":{"message":"too long","type":"BadRequestError"}})");
  refusal.headers = {{"x-why", "length"}};
  p(0).set_usual(refusal);
  p(1).set_usual(refusal);
  start();
  const auto response = ask(kStreamBody);
  EXPECT_EQ(status_of(response), 422);
  EXPECT_EQ(body_of(response), refusal.body);
  EXPECT_NE(response.find("x-why: length\r\n"), std::string::npos);
  EXPECT_EQ(p(0).requests().size() + p(1).requests().size(), 1U);
  EXPECT_TRUE(d(0).requests().empty() && d(1).requests().empty());
  EXPECT_TRUE(all_scores_zero());
  EXPECT_EQ(metric(R"(tandem:proxy_requests_total{endpoint="/v1/completions",outcome="4xx"})"), 1);
}

TEST_F(ProxyFailureTest, A4xxOfADecoderIsPassedOnAndTheLeaseReleased) {
  d(0).set_usual(error_answer(400, R"({"error":{"message":"no"}})"));
  start();
  const auto response = ask(kStreamBody, "/v1/completions", "Authorization: Bearer own\r\n");
  EXPECT_EQ(status_of(response), 400);
  EXPECT_EQ(body_of(response), R"({"error":{"message":"no"}})");
  EXPECT_EQ(p(0).requests().size(), 1U);
  EXPECT_EQ(d(0).requests().size(), 1U);
  EXPECT_TRUE(d(1).requests().empty());
  ASSERT_TRUE(eventually([this] { return p(0).releases().size() == 1; }));
  EXPECT_EQ(p(0).releases()[0].body, R"({"kv_transfer_params":)" + kLease + "}");
  EXPECT_EQ(p(0).releases()[0].headers.find("authorization"), "Bearer own");
  EXPECT_TRUE(all_scores_zero());
}

TEST_F(ProxyFailureTest, AnotherPrefillerIsTriedWhenOneIsDownAndTheDeadOneIsAvoided) {
  p(0).set_usual(error_answer(500, "oops"));
  use({p(0).port(), p(1).port()}, {d(0).port()});
  start();
  EXPECT_EQ(status_of(ask(kStreamBody, "/v1/completions", "X-Request-Id: mine\r\n")), 200);
  EXPECT_EQ(p(1).requests().at(0).headers.find("x-request-id"), "mine-r1") << "an id is never used for two attempts";
  EXPECT_EQ(d(0).requests().at(0).headers.find("x-request-id"), "mine-r1");
  const std::string instance = "{instance=\"" + p(0).name() + "\",role=\"prefill\"}";
  EXPECT_EQ(metric("tandem:proxy_instance_up" + instance), 0);
  EXPECT_EQ(status_of(ask(kStreamBody)), 200);
  EXPECT_EQ(metric("tandem:proxy_instance_failures_total" + instance), 1) << "it was not asked again so soon";
  EXPECT_EQ(metric("tandem:proxy_retries_total{stage=\"prefill\"}"), 1);
  EXPECT_TRUE(all_scores_zero());
}

TEST_F(ProxyFailureTest, WhoDoesNotAnswerTheProxyGetsNoRequestsUntilItDoes) {
  const auto port = dead_port();
  use({port, p(1).port()}, {d(0).port()});
  start();
  const std::string instance = "{instance=\"127.0.0.1:" + std::to_string(port) + "\",role=\"prefill\"}";
  for (int i = 0; i < 3; ++i) EXPECT_EQ(status_of(ask(kStreamBody)), 200);
  EXPECT_EQ(p(1).requests().size(), 3U);
  EXPECT_EQ(metric("tandem:proxy_retries_total{stage=\"prefill\"}"), 0) << "nothing was lost on the dead one";
  EXPECT_EQ(metric("tandem:proxy_instance_up" + instance), 0) << "though no request went there";
  PushDecoder back(io_, port);
  back.ours = back.posts = false;
  EXPECT_TRUE(eventually([&] { return metric("tandem:proxy_instance_up" + instance) == 1; })) << "and none needs to";
  ask(kStreamBody);
  EXPECT_EQ(back.requests().size(), 1U) << "its turn";
  proxy_.reset();  // before the prefiller
}

TEST_F(ProxyFailureTest, TheProxysOwnLackOfDescriptorsIsNoFaultOfAnInstance) {
  // It closes the connections on which it is asked what it is and what it serves: for a request there must be another.
  const std::string unknown = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
  test::ScriptedPeer closes({{unknown}, {unknown}});
  use({closes.port()}, {d(0).port()});
  start();
  test::RawClient client(port_);
  client.send("GET /healthcheck HTTP/1.1\r\n\r\n");
  client.read_until("decode_instances");
  ASSERT_TRUE(eventually([&] { return closes.num_closed() == 2; }));
  rlimit usual{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &usual), 0);
  rlimit none_left = usual;
  const int lowest_free = ::dup(0);
  none_left.rlim_cur = static_cast<rlim_t>(lowest_free);
  ::close(lowest_free);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none_left), 0);
  client.send(test::post_text("/v1/completions", kStreamBody, "Connection: close\r\n"));
  const auto response = client.read_all();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &usual), 0);
  EXPECT_NE(response.find("HTTP/1.1 503"), std::string::npos) << response;
  EXPECT_NE(response.find("the proxy could not ask a prefiller"), std::string::npos) << response;
  EXPECT_NE(response.find("this process has no file descriptor left"), std::string::npos) << response;
  const std::string instance = "{instance=\"127.0.0.1:" + std::to_string(closes.port()) + "\",role=\"prefill\"}";
  EXPECT_EQ(metric("tandem:proxy_instance_failures_total" + instance), 0);
  EXPECT_EQ(metric("tandem:proxy_instance_up" + instance), 1);
  EXPECT_TRUE(all_scores_zero());
}

TEST_F(ProxyFailureTest, AllPrefillersDownIsAnErrorThatNamesThem) {
  const auto one = dead_port();
  use({one}, {d(0).port()});
  start();
  const auto response = ask(kStreamBody);
  EXPECT_EQ(status_of(response), 503);
  EXPECT_NE(response.find("retry-after: "), std::string::npos);
  EXPECT_NE(body_of(response).find("prefiller 127.0.0.1:" + std::to_string(one)), std::string::npos) << response;
  EXPECT_NE(body_of(response).find("\"error\""), std::string::npos);
  EXPECT_TRUE(d(0).requests().empty()) << "no decode without a prefiller";
  EXPECT_EQ(metric("tandem:proxy_retries_total{stage=\"prefill\"}"), 2);
  EXPECT_TRUE(all_scores_zero());
}

TEST_F(ProxyFailureTest, PrefillersThatFailAreReplaced) {
  auto broken = test::event_stream({"{\"id\":"});
  broken.content_length = 100;
  broken.end = End::kBreak;
  const test::Behaviour ways[] = {error_answer(500, "oops"), broken, test::json_answer("<html>not json</html>")};
  for (const auto& way : ways) {
    start();
    p(0).then(way);
    EXPECT_EQ(status_of(ask(kStreamBody)), 200) << "the other one answers";
    EXPECT_TRUE(all_scores_zero());
    proxy_.reset();
  }
  p(0).set_usual(error_answer(500, "oops"));
  p(1).set_usual(error_answer(500, R"({"error":{"message":"no memory","type":"InternalServerError","code":500}})"));
  start();
  const auto before = p(0).requests().size() + p(1).requests().size();
  const auto response = ask(kStreamBody);
  EXPECT_EQ(status_of(response), 502);
  EXPECT_NE(body_of(response).find("status 500: oops"), std::string::npos) << response;
  EXPECT_NE(body_of(response).find("status 500: no memory"), std::string::npos) << "not its JSON: " << response;
  EXPECT_EQ(p(0).requests().size() + p(1).requests().size(), before + 2)
      << "a request that brings an instance down is given to each once";
  EXPECT_TRUE(all_scores_zero());
}

TEST_F(ProxyFailureTest, OverloadIsPassedOnAsBackPressure) {
  const auto prefills = [this] { return p(0).requests().size() + p(1).requests().size(); };
  const auto decodes = [this] { return d(0).requests().size() + d(1).requests().size(); };
  for (const int status : {503, 429}) {
    const std::size_t prefilled = prefills();
    const std::size_t decoded = decodes();
    auto busy = error_answer(status, R"({"error":{"message":"queue full"}})");
    busy.headers = {{"retry-after", "7"}};
    p(0).set_usual(busy);
    p(1).set_usual(busy);
    start();
    for (int i = 0; i < 8; ++i) {
      const auto response = ask(kStreamBody);
      EXPECT_EQ(status_of(response), status);
      EXPECT_NE(response.find("retry-after: 7\r\n"), std::string::npos) << response;
      EXPECT_NE(body_of(response).find("queue full"), std::string::npos) << response;
    }
    EXPECT_EQ(prefills(), prefilled + 8 * 3) << "a bounded number of attempts";
    EXPECT_EQ(decodes(), decoded) << "no decoder is asked to prefill silently";
    for (const std::size_t i : {0U, 1U}) {
      EXPECT_EQ(metric("tandem:proxy_instance_up{instance=\"" + p(i).name() + "\",role=\"prefill\"}"), 1);
      EXPECT_EQ(metric("tandem:proxy_instance_failures_total{instance=\"" + p(i).name() + "\",role=\"prefill\"}"), 0);
    }
    p(0).then(test::json_answer(kPrefillAnswer));
    EXPECT_EQ(status_of(ask(kPlainBody)), 200) << "overload takes nobody out of rotation";
    EXPECT_TRUE(all_scores_zero());
    proxy_.reset();
  }
}

TEST_F(ProxyFailureTest, AFullPrefillerIsLeftForOneThatHasRoom) {
  for (const int status : {503, 429}) {
    start();
    p(0).then(error_answer(status, "{}"));
    EXPECT_EQ(status_of(ask(kStreamBody)), 200);
    EXPECT_TRUE(all_scores_zero());
    proxy_.reset();
  }
  EXPECT_EQ(p(1).requests().size(), 2U);
}

TEST_F(ProxyFailureTest, ASilentPrefillerHitsItsDeadline) {
  config_.prefill_timeout = 200ms;
  config_.max_retries = 1;
  p(0).set_usual(test::hang());
  start_one_each();
  const auto begin = std::chrono::steady_clock::now();
  const auto response = ask(kStreamBody);
  EXPECT_EQ(status_of(response), 504) << response;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 3s);
  EXPECT_TRUE(eventually([this] { return p(0).num_gone() == 1; })) << "the prefiller must be told";
  EXPECT_TRUE(all_scores_zero());
}

TEST_F(ProxyFailureTest, ADecoderThatIsDownMeansANewPrefillForAnother) {
  auto down = test::hang();
  down.end = End::kBreak;
  d(0).set_usual(down);
  use({p(0).port()}, {d(0).port(), d(1).port()});
  start();
  const auto response = ask(kStreamBody, "/v1/completions", "X-Request-Id: mine\r\n");
  EXPECT_EQ(body_of(response), kEvents[0] + kEvents[1] + kEvents[2]);
  ASSERT_EQ(p(0).requests().size(), 2U);
  EXPECT_EQ(p(0).requests()[0].headers.find("x-request-id"), "mine");
  EXPECT_EQ(p(0).requests()[1].headers.find("x-request-id"), "mine-r1");
  EXPECT_EQ(d(1).requests().at(0).headers.find("x-request-id"), "mine-r1");
  EXPECT_TRUE(eventually([this] { return p(0).releases().size() == 1; })) << "the first prefill's KV is not wanted";
  EXPECT_EQ(p(0).releases().at(0).headers.find("x-request-id"), "mine");
  EXPECT_EQ(metric("tandem:proxy_retries_total{stage=\"decode\"}"), 1);
  EXPECT_TRUE(all_scores_zero());
}

TEST_F(ProxyFailureTest, DecodersThatFailBeforeTheFirstByteAreReplaced) {
  auto head_only = test::event_stream({""});
  head_only.content_length = 10;
  head_only.end = End::kBreak;
  auto empty = test::json_answer("");
  for (const auto& way : {error_answer(500, "oops"), head_only, empty, error_answer(503, "busy")}) {
    SCOPED_TRACE(way.status);
    start();
    d(0).then(way);
    const auto response = ask(kStreamBody);
    EXPECT_EQ(body_of(response), kEvents[0] + kEvents[1] + kEvents[2]);
    proxy_.reset();
  }
  EXPECT_EQ(total_releases(), 4U);
}

TEST_F(ProxyFailureTest, NoDecoderAtAllIsNeverAnEmpty200) {
  d(0).set_usual(test::json_answer(""));
  d(1).set_usual(error_answer(500, "oops"));
  start();
  const auto response = ask(kStreamBody);
  EXPECT_EQ(status_of(response), 502);
  EXPECT_NE(body_of(response).find("decoder " + d(0).name()), std::string::npos) << response;
  EXPECT_NE(body_of(response).find("empty body"), std::string::npos);
  EXPECT_EQ(d(0).requests().size() + d(1).requests().size(), 2U) << "each once";
  EXPECT_TRUE(eventually([this] { return total_releases() == 2; })) << "every prefill's KV was released";
  EXPECT_TRUE(all_scores_zero());
}

TEST_F(ProxyFailureTest, AStreamThatBreaksEndsWithAnErrorEvent) {
  start_one_each();
  std::size_t asked = 0;
  for (const std::string half : {"", "data: {\"choi", "data: {}\n"}) {
    auto broken = test::event_stream({kEvents[0], half});
    broken.end = End::kBreak;
    d().then(broken);
    const auto response = ask(kStreamBody);
    const auto body = body_of(response);
    EXPECT_TRUE(body.starts_with(kEvents[0] + "data: {\"error\": {\"message\": ")) << "whole events only: " << body;
    EXPECT_TRUE(body.ends_with("\"code\": 502}}\n\n")) << body;
    EXPECT_EQ(body.find("[DONE]"), std::string::npos) << "a broken answer must not look whole";
    EXPECT_TRUE(response.ends_with("0\r\n\r\n")) << "the transfer itself ends properly";
    EXPECT_EQ(d().requests().size(), ++asked) << "nobody else is there to go on";
  }
  EXPECT_TRUE(p().releases().empty());
  EXPECT_EQ(metric(R"(tandem:proxy_requests_total{endpoint="/v1/completions",outcome="broken"})"), 3);
  EXPECT_TRUE(all_scores_zero());
}

TEST_F(ProxyFailureTest, AStreamThatSaidDoneIsNotBroken) {
  auto broken = test::event_stream(kEvents);
  broken.end = End::kBreak;
  d().then(broken);
  start_one_each();
  EXPECT_EQ(body_of(ask(kStreamBody)), kEvents[0] + kEvents[1] + kEvents[2]);
}

TEST_F(ProxyFailureTest, ABrokenPlainAnswerIsABrokenTransfer) {
  for (const std::size_t length : {std::size_t{0}, std::size_t{100}}) {
    auto broken = test::event_stream({R"({"choices":[)"});
    broken.type = "application/json";
    broken.content_length = length;
    broken.end = End::kBreak;
    d().then(broken);
    start_one_each();
    const auto response = ask(kPlainBody);
    EXPECT_EQ(response.find("error"), std::string::npos) << "nothing is glued to half a JSON object";
    EXPECT_FALSE(response.ends_with("0\r\n\r\n")) << response;
    if (length > 0) {
      EXPECT_NE(response.find("content-length: 100\r\n"), std::string::npos);
    }
    EXPECT_TRUE(all_scores_zero());
    proxy_.reset();
  }
}

TEST_F(ProxyFailureTest, ASilentDecoderHitsItsDeadlines) {
  config_.first_byte_timeout = 200ms;
  config_.stream_idle_timeout = 200ms;
  config_.max_retries = 1;
  start_one_each();
  d().then(test::hang());
  const auto silent = ask(kStreamBody);
  EXPECT_EQ(status_of(silent), 504) << silent;
  EXPECT_TRUE(eventually([this] { return p().releases().size() == 1; }));
  auto stuck = test::event_stream({kEvents[0]});
  stuck.end = End::kHang;
  d().then(stuck);
  const auto begun = ask(kStreamBody);
  EXPECT_EQ(status_of(begun), 200);
  EXPECT_TRUE(body_of(begun).starts_with(kEvents[0] + "data: {\"error\"")) << begun;
  EXPECT_TRUE(eventually([this] { return d().num_gone() == 2; }));
}

TEST_F(ProxyFailureTest, AWholeAnswerMayTakeItsTime) {
  config_.first_byte_timeout = 100ms;
  auto slow = test::json_answer("{}");
  slow.delay = 400ms;
  d(0).set_usual(slow);
  d(1).set_usual(slow);
  start();
  EXPECT_EQ(status_of(ask(kPlainBody)), 200);
  proxy_.reset();
  config_.whole_answer_timeout = 100ms;
  start();
  EXPECT_EQ(status_of(ask(kPlainBody)), 504);
  EXPECT_EQ(d(0).requests().size() + d(1).requests().size(), 2U) << "what takes too long is not computed twice";
  for (std::size_t i : {0U, 1U}) {
    const std::string instance = "{instance=\"" + d(i).name() + "\",role=\"decode\"}";
    EXPECT_EQ(metric("tandem:proxy_instance_failures_total" + instance), 0) << "it has done nothing wrong";
  }
  EXPECT_TRUE(all_scores_zero());
}

TEST_F(ProxyFailureTest, ReleasesAreRepeatedAndForeignInstancesLeftAlone) {
  config_.max_retries = 1;
  d().set_usual(error_answer(500, "oops"));
  start_one_each();
  p().set_release_status({500, 200});
  ask(kStreamBody);
  EXPECT_TRUE(eventually([this] { return metric("tandem:proxy_releases_total{result=\"ok\"}") == 1; }));
  EXPECT_EQ(p().releases().size(), 2U);
  p().set_release_status({404});
  ask(kStreamBody);
  EXPECT_TRUE(eventually([this] { return metric("tandem:proxy_releases_total{result=\"unsupported\"}") == 1; }));
  EXPECT_EQ(p().releases().size(), 3U);
  p().set_release_status({500, 500, 500, 500});
  ask(kStreamBody);
  EXPECT_TRUE(eventually([this] { return metric("tandem:proxy_releases_total{result=\"failed\"}") == 1; }));
}

TEST_F(ProxyFailureTest, OverTheBoundIs503) {
  config_.max_inflight = 2;
  p().set_usual(test::hang());
  start_one_each();
  test::RawClient one(port_);
  test::RawClient two(port_);
  one.send(test::post_text("/v1/completions", kStreamBody));
  two.send(test::post_text("/v1/completions", kStreamBody));
  ASSERT_TRUE(eventually([this] { return p().num_active() == 2; }));
  const auto response = ask(kStreamBody);
  EXPECT_EQ(status_of(response), 503);
  EXPECT_NE(response.find("retry-after: "), std::string::npos);
  EXPECT_EQ(p().requests().size(), 2U);
  one.close();
  two.close();
  EXPECT_TRUE(all_scores_zero());
  p().set_usual(test::json_answer(kPrefillAnswer));
  EXPECT_EQ(status_of(ask(kStreamBody)), 200);
}

TEST_F(ProxyFailureTest, StartSaysWhenThePortIsTaken) {
  config_.port = p().port();
  use({p().port()}, {d().port()});
  ProxyServer second(config_, registry_);
  const auto port = second.start();
  ASSERT_FALSE(port);
  EXPECT_NE(port.error().message().find(std::to_string(p().port())), std::string::npos);
}

}  // namespace
}  // namespace tandem::proxy
