// SPDX-License-Identifier: Apache-2.0
// Layerwise mode: decoder first, the metaserver, and every way in which one of the parties fails or leaves.
#include <map>
#include <random>
#include <set>

#include "base/clock.h"
#include "proxy/json_members.h"
#include "proxy/timing.h"
#include "proxy_fixture.h"
#include "push_stand_in.h"

namespace tandem::proxy {
namespace {

using namespace std::chrono_literals;
using test::body_of;
using test::error_answer;
using test::eventually;
using test::status_of;
using Then = PushDecoder::Then;

class ProxyLayerwiseTest : public ProxyTest {
 protected:
  ProxyLayerwiseTest() {
    config_.connector = config::ProxyConnector::kLayerwise;
    for (int i = 0; i < 2; ++i) {
      pushers_.push_back(std::make_unique<PushDecoder>(io_));
      p(static_cast<std::size_t>(i)).set_usual(test::json_answer(R"({"choices":[],"usage":{"completion_tokens":1}})"));
    }
  }
  ~ProxyLayerwiseTest() override { proxy_.reset(); }

  PushDecoder& pusher(std::size_t i = 0) { return *pushers_[i]; }
  void start_pair() {
    use({p(0).port()}, {pusher().port()});
    start();
  }
  std::string params_sent(const net::HttpRequest& request) {
    return std::string(JsonMembers::parse(request.body)->find("kv_transfer_params").value_or(""));
  }
  std::string post(const std::string& body) { return ask(body, "/v1/metaserver"); }
  /// The statuses of so many requests at once whose client gave them one id.
  std::vector<int> ask_with_one_id(int count) {
    std::vector<std::unique_ptr<test::RawClient>> clients;
    for (int i = 0; i < count; ++i) {
      clients.push_back(std::make_unique<test::RawClient>(port_));
      clients.back()->send(
          test::post_text("/v1/completions", kStreamBody, "X-Request-Id: same\r\nConnection: close\r\n"));
    }
    std::vector<int> statuses;
    for (auto& client : clients) statuses.push_back(status_of(client->read_all()));
    return statuses;
  }

  std::vector<std::unique_ptr<PushDecoder>> pushers_;
};

TEST_F(ProxyLayerwiseTest, DecoderFirstThenThePrefillerItsDestination) {
  start_pair();
  const auto response = ask(kStreamBody, "/v1/completions", "X-Request-Id: mine\r\nAuthorization: Bearer own\r\n");
  EXPECT_EQ(status_of(response), 200) << response;
  EXPECT_TRUE(body_of(response).ends_with("data: [DONE]\n\n")) << response;
  ASSERT_EQ(pusher().requests().size(), 1U);
  const auto decode = pusher().requests()[0];
  EXPECT_EQ(params_sent(decode),
            R"({"do_remote_decode":false,"do_remote_prefill":true,"metaserver":"http://127.0.0.1:)" +
                std::to_string(port_) + R"(/v1/metaserver"})");
  EXPECT_NE(decode.body.find(R"("max_tokens":5,"stream":true)"), std::string::npos) << "the rest is as the client sent";
  ASSERT_EQ(p().requests().size(), 1U);
  const auto prefill = p().requests()[0];
  EXPECT_EQ(params_sent(prefill), pusher().all_posts().at(0).body) << "the decoder's object, byte for byte";
  EXPECT_NE(prefill.body.find(R"("max_tokens":1,"stream":false,"min_tokens":1)"), std::string::npos);
  for (const auto& request : {decode, prefill}) {
    EXPECT_EQ(request.headers.find("x-request-id"), "mine");
    EXPECT_EQ(request.headers.find("authorization"), "Bearer own");
  }
  EXPECT_EQ(pusher().all_posts()[0].answer, R"({"status":"ok"})");
  EXPECT_TRUE(p().releases().empty()) << "a prefiller that pushes holds no lease";
  EXPECT_TRUE(all_scores_zero());
}

TEST_F(ProxyLayerwiseTest, ChatGoesTheSameWay) {
  start_pair();
  const auto response = ask(R"({"messages":[{"role":"user","content":"Hi"}],"stream":true})", "/v1/chat/completions");
  EXPECT_EQ(status_of(response), 200) << response;
  EXPECT_EQ(p().requests().at(0).path, "/v1/chat/completions");
  EXPECT_TRUE(pusher().all_posts().at(0).id.starts_with("chatcmpl-"));
}

TEST_F(ProxyLayerwiseTest, EveryPromptOfAListIsPrefilledAlone) {
  use({p(0).port(), p(1).port()}, {pusher().port()});
  pusher().num_children = 2;
  for (auto& prefiller : prefillers_) {
    auto slow = test::json_answer("{}");
    slow.delay = 50ms;
    prefiller->set_usual(slow);
  }
  start();
  const auto response =
      ask(R"({"prompt":[[1, 2],[3,4]],"n":1,"stream":true})", "/v1/completions", "X-Request-Id: x\r\n");
  EXPECT_EQ(status_of(response), 200) << response;
  std::map<std::string, net::HttpRequest> by_prompt;
  for (const auto& prefiller : prefillers_) {
    EXPECT_EQ(prefiller->requests().size(), 1U) << "two prefills at once are spread";
    for (const auto& request : prefiller->requests()) {
      by_prompt[std::string(*JsonMembers::parse(request.body)->find("prompt"))] = request;
    }
  }
  ASSERT_EQ(by_prompt.count("[1, 2]") + by_prompt.count("[3,4]"), 2U);
  EXPECT_EQ(params_sent(by_prompt["[1, 2]"]), pusher().all_posts()[0].body);
  EXPECT_EQ(params_sent(by_prompt["[3,4]"]), pusher().all_posts()[1].body) << "each prompt to its own destination";
  EXPECT_NE(by_prompt["[1, 2]"].headers.find("x-request-id"), by_prompt["[3,4]"].headers.find("x-request-id"));
  EXPECT_TRUE(all_scores_zero());
}

TEST_F(ProxyLayerwiseTest, APostThatComesTwiceIsPrefilledOnce) {
  pusher().post_twice = true;
  start_pair();
  EXPECT_EQ(status_of(ask(kStreamBody)), 200);
  EXPECT_EQ(p().requests().size(), 1U);
  for (const auto& post : pusher().all_posts()) EXPECT_EQ(post.status, 200);
}

TEST_F(ProxyLayerwiseTest, PostsForNothingThatIsOpenAreRefused) {
  start_pair();
  EXPECT_EQ(status_of(post(R"({"request_id":"cmpl-never-0"})")), 404);
  EXPECT_EQ(status_of(post(R"({"request_id":"nonsense"})")), 400);
  EXPECT_EQ(status_of(post(R"({"request_id":7})")), 400);
  EXPECT_EQ(status_of(post("[]")), 400);
  EXPECT_EQ(status_of(post(R"({"request_id":"cmpl-a-0","x":")" + std::string(5 << 20, 'x') + "\"}")), 413);
  ask(kStreamBody, "/v1/completions", "X-Request-Id: over\r\n");
  EXPECT_EQ(status_of(post(R"({"request_id":"cmpl-over-0"})")), 404) << "answered requests are closed";
  EXPECT_EQ(p().requests().size(), 1U);
  EXPECT_EQ(metric(R"(tandem:proxy_metaserver_posts_total{status="404"})"), 2);
}

TEST_F(ProxyLayerwiseTest, AChildThatTheRequestDoesNotHaveIsUnknown) {
  pusher().then = Then::kHang;
  start_pair();
  test::RawClient client(port_);
  client.send(test::post_text("/v1/completions", kStreamBody, "X-Request-Id: one\r\n"));
  ASSERT_TRUE(eventually([this] { return !pusher().all_posts().empty() && pusher().all_posts()[0].status == 200; }));
  EXPECT_EQ(status_of(post(R"({"request_id":"cmpl-one-1"})")), 404);
  EXPECT_EQ(status_of(post(R"({"request_id":"999_cmpl-one-0"})")), 404);
  EXPECT_EQ(status_of(post(R"({"request_id":"1_cmpl-one-0"})")), 200) << "with n > 1 every choice has its own";
  EXPECT_EQ(status_of(post(R"({"request_id":"chatcmpl-one"})")), 404);
}

TEST_F(ProxyLayerwiseTest, RequestsWithTheClientsSameIdDoNotMix) {
  for (const bool ours : {true, false}) {
    pusher().ours = ours;
    pusher().delay = 100ms;
    start_pair();
    const auto before = pusher().all_posts().size();
    EXPECT_EQ(ask_with_one_id(3), (std::vector<int>{200, 200, 200}));
    std::multiset<std::string> ids;
    for (std::size_t i = before; i < before + 3; ++i) ids.insert(pusher().all_posts().at(i).id);
    EXPECT_EQ(ids.count("cmpl-same-0"), ours ? 3U : 1U) << "a foreign decoder gets an id of its own for each";
    EXPECT_EQ(p().requests().size(), before + 3) << "each had a prefill";
    proxy_.reset();
  }
}

TEST_F(ProxyLayerwiseTest, AnIdReachesADecoderOfOursWhateverItIs) {
  config_.api_keys = {"key"};
  start_pair();
  for (const std::string& id : {std::string("h\xc3\xa9 1_2-3"), std::string(600, 'x')}) {
    const auto before = pusher().requests().size();
    EXPECT_EQ(
        status_of(ask(kStreamBody, "/v1/completions", "Authorization: Bearer key\r\nX-Request-Id: " + id + "\r\n")),
        200);
    EXPECT_EQ(pusher().requests().at(before).headers.find("x-request-id"), id) << "to be shown, or refused as too long";
    EXPECT_EQ(pusher().all_posts().at(before).status, 200);
  }
  EXPECT_EQ(status_of(ask(R"({"request_id":"cmpl-x-0"})", "/v1/metaserver?key=0&request=1")), 401);
}

TEST_F(ProxyLayerwiseTest, NorWhileTheAddressOfANewDecoderIsLookedFor) {
  config_.host = "0.0.0.0";
  const auto port = dead_port();
  use({p().port()}, {port});
  start();
  std::this_thread::sleep_for(50ms);  // it is looked for, and not there
  PushDecoder late(io_, port);
  late.info_delay = 200ms;
  EXPECT_EQ(ask_with_one_id(3), (std::vector<int>{200, 200, 200}));
  EXPECT_EQ(late.requests().size(), 3U);
  proxy_.reset();  // before the decoder
}

TEST_F(ProxyLayerwiseTest, AnotherPrefillerIsTriedAndTheDecoderDoesNotNotice) {
  auto down = test::hang();
  down.end = test::Behaviour::End::kBreak;
  test::StandIn broken(io_, down);
  use({broken.port(), p(0).port(), p(1).port()}, {pusher().port()});
  p(0).set_usual(error_answer(500, "oops"));
  start();
  EXPECT_EQ(status_of(ask(kStreamBody)), 200);
  EXPECT_EQ(p(0).requests().size(), 1U);
  EXPECT_EQ(p(1).requests().size(), 1U);
  EXPECT_EQ(params_sent(p(1).requests()[0]), pusher().all_posts()[0].body);
  EXPECT_EQ(pusher().requests().size(), 1U) << "the decoder keeps its place";
  EXPECT_EQ(metric("tandem:proxy_retries_total{stage=\"prefill\"}"), 2);
  EXPECT_TRUE(all_scores_zero());
  proxy_.reset();  // before the broken one
}

TEST_F(ProxyLayerwiseTest, AFailedPrefillIsTheClientsErrorAndNeverAWaitForEver) {
  p().set_usual(error_answer(500, "out of order"));
  for (const Then then : {Then::kAnswer, Then::kIgnoreStatus}) {
    const bool ours = then == Then::kAnswer;
    SCOPED_TRACE(ours ? "a decoder of ours ends by itself" : "a foreign decoder is cut off");
    pusher().then = then;
    pusher().ours = ours;
    start_pair();
    const auto before = pusher().all_posts().size();
    const auto begin = std::chrono::steady_clock::now();
    const auto response = ask(kStreamBody);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 3s);
    EXPECT_EQ(status_of(response), 502) << response;
    EXPECT_NE(body_of(response).find("out of order"), std::string::npos) << response;
    ASSERT_TRUE(eventually([&] { return pusher().all_posts().at(before).status != 0; }));
    const auto post = pusher().all_posts()[before];
    EXPECT_EQ(post.status, 502);
    EXPECT_NE(post.answer.find("out of order"), std::string::npos) << post.answer;
    EXPECT_TRUE(eventually([&] { return pusher().num_gone() == (ours ? 0 : 1); }));
    EXPECT_EQ(pusher().requests().size(), before + 1) << "no other round: the prefillers had their attempts";
    const std::string decoder = "{instance=\"127.0.0.1:" + std::to_string(pusher().port()) + "\",role=\"decode\"}";
    EXPECT_EQ(metric("tandem:proxy_instance_failures_total" + decoder), 0) << "it was not the decoder's fault";
    EXPECT_TRUE(all_scores_zero());
    proxy_.reset();
  }
}

TEST_F(ProxyLayerwiseTest, APrefillThatFailsLateEndsTheDecodersWaitAtOnce) {
  auto late = error_answer(500, "out of memory");
  late.delay = 1s;
  p().set_usual(late);
  pusher().then = Then::kIgnoreStatus;  // without our help it would wait for ever
  pusher().ours = false;
  start_pair();
  const auto begin = std::chrono::steady_clock::now();
  const auto response = ask(kStreamBody);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 4s);
  EXPECT_EQ(status_of(response), 502) << response;
  EXPECT_NE(body_of(response).find("out of memory"), std::string::npos) << response;
  EXPECT_TRUE(eventually([this] { return pusher().num_gone() == 1; })) << "the decoder's request is aborted";
  EXPECT_EQ(p().requests().size(), 1U) << "what failed is not asked the same again";
  EXPECT_TRUE(all_scores_zero());
}

TEST_F(ProxyLayerwiseTest, OverloadedPrefillersAreBackPressureAndNoDecoderComputesThePrompt) {
  auto busy = error_answer(503, R"({"error":{"message":"queue full"}})");
  busy.headers = {{"retry-after", "7"}};
  p().set_usual(busy);
  start_pair();
  const auto response = ask(kStreamBody);
  EXPECT_EQ(status_of(response), 503) << response;
  EXPECT_NE(response.find("retry-after: 7\r\n"), std::string::npos) << response;
  EXPECT_EQ(p().requests().size(), 3U) << "a bounded number of attempts";
  EXPECT_EQ(pusher().requests().size(), 1U) << "no other decoder is asked";
  EXPECT_EQ(pusher().all_posts().at(0).status, 502) << "the decoder learns that there will be no KV";
  EXPECT_EQ(metric("tandem:proxy_instance_up{instance=\"" + p().name() + "\",role=\"prefill\"}"), 1);
  EXPECT_EQ(metric("tandem:proxy_local_prefills_total"), 0);
  EXPECT_TRUE(all_scores_zero());
}

TEST_F(ProxyLayerwiseTest, A4xxOfAPrefillerIsTheClientsAnswer) {
  p().set_usual(error_answer(400, R"({"error":{"message":"too long"}})"));
  start_pair();
  const auto response = ask(kStreamBody);
  EXPECT_EQ(status_of(response), 400);
  EXPECT_EQ(body_of(response), R"({"error":{"message":"too long"}})");
  EXPECT_EQ(p().requests().size(), 1U) << "nothing is retried";
  ASSERT_TRUE(eventually([this] { return pusher().all_posts().at(0).status == 502; }));
  EXPECT_NE(pusher().all_posts()[0].answer.find("too long"), std::string::npos);
  EXPECT_TRUE(all_scores_zero());
}

TEST_F(ProxyLayerwiseTest, ASilentPrefillerHitsItsDeadlineAndIsNotDoubled) {
  config_.prefill_timeout = 200ms;
  p(0).set_usual(test::hang());
  p(1).set_usual(test::hang());
  use({p(0).port(), p(1).port()}, {pusher().port()});
  start();
  const auto response = ask(kStreamBody);
  EXPECT_EQ(status_of(response), 504) << response;
  EXPECT_EQ(p(0).requests().size() + p(1).requests().size(), 1U) << "the first may still push";
  EXPECT_TRUE(eventually([this] { return p(0).num_gone() + p(1).num_gone() == 1; }));
  EXPECT_TRUE(all_scores_zero());
}

TEST_F(ProxyLayerwiseTest, ADecoderThatFailsIsReplacedAndItsPrefillAborted) {
  pusher(0).then = Then::kBreak;
  p(0).then(test::hang());
  use({p(0).port()}, {pusher(0).port(), pusher(1).port()});
  start();
  const auto response = ask(kStreamBody, "/v1/completions", "X-Request-Id: mine\r\n");
  EXPECT_TRUE(body_of(response).ends_with("[DONE]\n\n")) << response;
  EXPECT_TRUE(eventually([this] { return p(0).num_gone() == 1; })) << "nobody wants the first prefill";
  EXPECT_EQ(pusher(1).all_posts().at(0).id, "cmpl-mine-r1-0") << "no id is used for two attempts";
  EXPECT_EQ(status_of(post(R"({"request_id":"cmpl-mine-0"})")), 404);
  EXPECT_TRUE(all_scores_zero());
}

TEST_F(ProxyLayerwiseTest, A4xxOfADecoderIsPassedOn) {
  pusher().then = Then::kRefuse;
  pusher().posts = false;
  start_pair();
  EXPECT_EQ(status_of(ask(kStreamBody)), 400);
  EXPECT_EQ(pusher().requests().size(), 1U);
  EXPECT_TRUE(p().requests().empty());
}

TEST_F(ProxyLayerwiseTest, ADecoderThatDiesInMidStreamMakesABrokenAnswer) {
  pusher().then = Then::kBreakInStream;
  start_pair();
  // The stand-in begins its answer only when the post is over, which it is within its 50 ms.
  const auto response = ask(kStreamBody);
  EXPECT_NE(body_of(response).find("data: {\"error\""), std::string::npos) << response;
  EXPECT_EQ(body_of(response).find("[DONE]"), std::string::npos);
  EXPECT_EQ(pusher().requests().size(), 1U);
  EXPECT_TRUE(all_scores_zero());
}

TEST_F(ProxyLayerwiseTest, ADecoderThatNeverPostsAnswersAnywayOrHitsTheDeadline) {
  pusher().posts = false;
  config_.first_byte_timeout = 300ms;
  config_.max_retries = 1;
  start_pair();
  EXPECT_EQ(status_of(ask(kStreamBody)), 200) << "everything was cached";
  EXPECT_EQ(metric("tandem:proxy_local_prefills_total"), 1);
  pusher().then = Then::kHang;
  EXPECT_EQ(status_of(ask(kStreamBody)), 504);
  EXPECT_TRUE(p().requests().empty());
  EXPECT_TRUE(all_scores_zero());
}

TEST_F(ProxyLayerwiseTest, AClientThatLeavesEndsBothSides) {
  p().set_usual(test::hang());
  pusher().then = Then::kHang;  // it goes because its request ended, not because its post did
  start_pair();
  test::RawClient client(port_);
  client.send(test::post_text("/v1/completions", kStreamBody));
  ASSERT_TRUE(eventually([this] { return p().num_active() == 1; }));
  const auto begin = std::chrono::steady_clock::now();
  client.close();
  EXPECT_TRUE(eventually([this] { return p().num_gone() == 1 && pusher().num_gone() == 1; }));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 4s);
  ASSERT_TRUE(eventually([this] { return pusher().all_posts().at(0).status != 0; }));
  EXPECT_EQ(pusher().all_posts()[0].status, 404);
  EXPECT_TRUE(all_scores_zero());
  EXPECT_EQ(metric(R"(tandem:proxy_requests_total{endpoint="/v1/completions",outcome="client_gone"})"), 1);
}

TEST_F(ProxyLayerwiseTest, APostAfterTheClientLeftIsRefused) {
  pusher().post_late = true;
  start_pair();
  test::RawClient client(port_);
  client.send(test::post_text("/v1/completions", kStreamBody));
  ASSERT_TRUE(eventually([this] { return pusher().requests().size() == 1; }));
  client.close();
  ASSERT_TRUE(eventually([this] { return !pusher().all_posts().empty() && pusher().all_posts()[0].status != 0; }));
  EXPECT_EQ(pusher().all_posts()[0].status, 404);
  EXPECT_TRUE(p().requests().empty()) << "nothing is computed for nobody";
}

TEST_F(ProxyLayerwiseTest, AStoppingProxyStillTakesThePostsOfWhatRuns) {
  pusher().delay = 300ms;
  start_pair();
  test::RawClient client(port_);
  client.send(test::post_text("/v1/completions", kStreamBody, "Connection: close\r\n"));
  ASSERT_TRUE(eventually([this] { return pusher().requests().size() == 1; }));
  proxy_->stop(5s);  // the decoder posts only now
  EXPECT_TRUE(body_of(client.read_all()).ends_with("data: [DONE]\n\n"));
  EXPECT_EQ(pusher().all_posts().at(0).status, 200);
}

TEST_F(ProxyLayerwiseTest, StopEndsWhatRuns) {
  p().set_usual(test::hang());
  pusher().then = Then::kHang;
  start_pair();
  test::RawClient client(port_);
  client.send(test::post_text("/v1/completions", kStreamBody));
  ASSERT_TRUE(eventually([this] { return p().num_active() == 1; }));
  const auto begin = std::chrono::steady_clock::now();
  proxy_->stop(100ms);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
  EXPECT_TRUE(eventually([this] { return p().num_gone() == 1 && pusher().num_gone() == 1; }));
  EXPECT_EQ(status_of(client.read_all()), 503);
}

TEST_F(ProxyLayerwiseTest, AWildcardHostIsReplacedAndAUrlGivenIsTaken) {
  config_.host = "0.0.0.0";
  start_pair();
  EXPECT_EQ(status_of(ask(kStreamBody)), 200);
  EXPECT_NE(
      params_sent(pusher().requests().at(0)).find("\"http://127.0.0.1:" + std::to_string(port_) + "/v1/metaserver"),
      std::string::npos)
      << "the address that the decoder sees us at";
  proxy_.reset();
  config_.metaserver_url = "http://gateway.example:80/meta";
  pusher().posts = false;
  start_pair();
  EXPECT_EQ(status_of(ask(kStreamBody)), 200);
  EXPECT_NE(params_sent(pusher().requests().at(1)).find(config_.metaserver_url), std::string::npos);
}

TEST_F(ProxyLayerwiseTest, AutoAsksEachDecoderWhatItIs) {
  config_.connector = config::ProxyConnector::kAuto;
  p(0).set_connector("MooncakeLayerwiseConnector");
  p(1).set_usual(test::json_answer(kPrefillAnswer));
  use({p(1).port(), p(0).port()}, {pusher().port()});
  start();
  EXPECT_EQ(status_of(ask(kStreamBody)), 200);
  EXPECT_NE(params_sent(pusher().requests().at(0)).find("metaserver"), std::string::npos) << "layerwise";
  EXPECT_TRUE(p(1).requests().empty()) << "one that cannot push is not asked to";
  proxy_.reset();
  use({p(1).port()}, {d().port()});
  start();
  EXPECT_EQ(status_of(ask(kStreamBody)), 200);
  EXPECT_EQ(params_sent(d().requests().at(0)), kLease) << "one that does not say: pull";
  EXPECT_TRUE(all_scores_zero());
}

TEST_F(ProxyLayerwiseTest, AutoNoticesAnInstanceThatComesBackOtherwise) {
  config_.connector = config::ProxyConnector::kAuto;
  pusher().connector = "MooncakeConnectorV1";
  p().set_connector("MooncakeConnectorV1");
  pusher().posts = false;
  start_pair();
  p().set_usual(test::json_answer(kPrefillAnswer));
  EXPECT_EQ(status_of(ask(kStreamBody)), 200);
  EXPECT_EQ(params_sent(pusher().requests().at(0)), kLease);
  pusher().then = Then::kBreak;
  EXPECT_EQ(status_of(ask(kStreamBody)), 502);
  pusher().then = Then::kAnswer;
  pusher().connector = "MooncakeLayerwiseConnector";
  p().set_connector("MooncakeLayerwiseConnector");
  p().then(error_answer(500, "restarting"));  // so that the prefiller is looked at again, too
  EXPECT_TRUE(eventually([this] {
    return status_of(ask(kStreamBody)) == 200 &&
           params_sent(pusher().requests().back()).find("metaserver") != std::string::npos;
  }));
}

TEST_F(ProxyLayerwiseTest, TimesOfBothSidesAddUpToTheTimeToTheFirstByte) {
  auto slow = test::json_answer("{}");
  slow.delay = 60ms;
  slow.headers = {{"X-Tandem-Timing", "queue=0.010;prefill=0.020"}};
  p().set_usual(slow);
  pusher().headers = {{"X-Tandem-Timing", "queue=0.001;transfer=0.060;first_step=0.002"}};
  start_pair();
  const auto begin = std::chrono::steady_clock::now();
  const auto response = ask(kStreamBody, "/v1/completions", "X-Tandem-Timing: 1\r\n");
  const double whole = seconds(std::chrono::steady_clock::now() - begin);
  const auto at = response.find("x-tandem-timing: ");
  ASSERT_NE(at, std::string::npos) << response;
  const auto header = response.substr(at + 17, response.find("\r\n", at) - at - 17);
  double sum = 0;
  std::set<std::string> names;
  for (const auto& [name, value] : parse_timing(header)) {
    sum += value;
    names.insert(name);
  }
  EXPECT_GE(sum, 0.060) << header;
  EXPECT_LE(sum, whole + 1e-4) << header;
  for (const char* name :
       {"prefill.queue", "prefill.prefill", "prefill.other", "decode.first_step", "decode.other", "proxy"}) {
    EXPECT_TRUE(names.count(name)) << name << " in " << header;
  }
  EXPECT_EQ(response.find("x-tandem-timing: ", at + 1), std::string::npos) << "one header";
}

}  // namespace
}  // namespace tandem::proxy
