// SPDX-License-Identifier: Apache-2.0
#include "proxy/instance_admin.h"

#include "proxy_fixture.h"
#include "push_stand_in.h"

namespace tandem::proxy {
namespace {

using namespace std::chrono_literals;
using test::body_of;
using test::eventually;
using test::status_of;

class InstanceAdminTest : public ProxyTest {
 protected:
  InstanceAdminTest() { config_.waiting_retry_interval = 20ms; }
  std::string change(const std::string& verb, const std::string& type, const std::string& instances) {
    return ask(R"({"type":")" + type + R"(","instances":)" + instances + "}", "/instances/" + verb);
  }
  bool has(const std::string& what) { return body_of(get("/healthcheck")).find(what) != std::string::npos; }
};

TEST_F(InstanceAdminTest, AnAddedInstanceTakesPartOnceItIsReady) {
  start_one_each();
  const auto response = change("add", "decode", "[\"" + d(1).name() + "\"]");
  EXPECT_EQ(status_of(response), 200) << response;
  EXPECT_NE(body_of(response).find("\"current_decode_instances\":[\"" + d(0).name() + "\"]"), std::string::npos)
      << response;
  ASSERT_TRUE(eventually([this] { return has("\"decode_instances\":2"); }));
  EXPECT_GE(d(1).num_models_asked(), 1);
  EXPECT_NE(body_of(change("add", "decode", "\"" + d(1).name() + "\"")).find("already"), std::string::npos);
  EXPECT_NE(body_of(change("remove", "decode", "\"" + d(0).name() + "\"")).find("removed"), std::string::npos);
  EXPECT_EQ(status_of(ask(kStreamBody)), 200);
  EXPECT_EQ(d(1).requests().size(), 1U);
  EXPECT_TRUE(d(0).requests().empty());
  EXPECT_TRUE(all_scores_zero());
}

TEST_F(InstanceAdminTest, OneThatIsAskedForTwiceAtOnceIsThereOnce) {
  start_one_each();
  const std::string twice = "\"" + d(1).name() + "\",\"" + d(1).name() + "\"";
  change("add", "decode", "[" + twice + "," + twice + "]");
  change("add", "decode", "\"localhost:" + std::to_string(d(1).port()) + "\"");
  ASSERT_TRUE(eventually([this] { return has("\"decode_instances\":2"); }));
  const auto again = change("add", "decode", "\"localhost:" + std::to_string(d(1).port()) + "\"");
  EXPECT_NE(body_of(again).find("already"), std::string::npos) << again;
  EXPECT_TRUE(has("\"decode_instances\":2")) << get("/healthcheck");
}

TEST_F(InstanceAdminTest, OneThatIsRemovedWhileItIsWaitedForDoesNotJoin) {
  config_.max_waiting_retries = 1000;
  start_one_each();
  const auto port = dead_port();
  const std::string name = "\"127.0.0.1:" + std::to_string(port) + "\"";
  for (int i = 0; i < 2; ++i)
    EXPECT_NE(change("add", "decode", name).find("waiting for"), std::string::npos) << "however often it is asked for";
  EXPECT_NE(change("remove", "decode", name).find("removed decode instances"), std::string::npos);
  EXPECT_NE(change("remove", "decode", name).find("no such instance"), std::string::npos);
  EXPECT_EQ(registry_.expose().find(name), std::string::npos) << "no series of what was never there";
  // One that is added later takes part first, so the removed one had its chances.
  PushDecoder late(io_, port);
  change("add", "decode", "\"" + d(1).name() + "\"");
  ASSERT_TRUE(eventually([this] { return has("\"decode_instances\":2"); }));
  std::this_thread::sleep_for(100ms);
  EXPECT_TRUE(has("\"decode_instances\":2")) << get("/healthcheck");
  proxy_.reset();  // before the decoder
}

TEST_F(InstanceAdminTest, AnInstanceThatServesAnotherModelIsNamedInTheLog) {
  const auto models = [](const std::string& names) { return R"({"object":"list","data":[)" + names + "]}"; };
  p(0).set_models(models(R"({"id":"big"},{"id":"alias"})"));
  d(0).set_models(models(R"({"id":"alias"})"));
  d(1).set_models(models(R"({"id":"small"})"));
  ::testing::internal::CaptureStderr();
  start_one_each();
  EXPECT_EQ(status_of(ask(kStreamBody)), 200);
  change("add", "decode", "\"" + d(1).name() + "\"");
  EXPECT_TRUE(eventually([this] { return has("\"decode_instances\":2"); })) << "but it is added";
  proxy_.reset();
  const std::string log = ::testing::internal::GetCapturedStderr();
  const std::string line =
      "decoder " + d(1).name() + " serves small, but prefiller " + p(0).name() + " serves big, alias";
  const auto at = log.find(line);
  ASSERT_NE(at, std::string::npos) << log;
  EXPECT_EQ(log.find(" serves ", at + line.size()), std::string::npos) << "once, and one name in common will do\n"
                                                                       << log;
  EXPECT_EQ(log.rfind("decoder " + d(0).name() + " serves"), std::string::npos) << log;
}

TEST_F(InstanceAdminTest, ARemovedInstanceLeavesNoSeries) {
  start_one_each();
  EXPECT_NE(registry_.expose().find(d(0).name()), std::string::npos);
  change("remove", "decode", "\"" + d(0).name() + "\"");
  EXPECT_EQ(registry_.expose().find(d(0).name()), std::string::npos) << registry_.expose();
  EXPECT_NE(registry_.expose().find(p(0).name()), std::string::npos);
}

TEST_F(InstanceAdminTest, OneThatNeverAnswersIsNotAdded) {
  start_one_each();
  change("add", "prefill", "\"127.0.0.1:" + std::to_string(dead_port()) + "\"");
  std::this_thread::sleep_for(200ms);
  EXPECT_TRUE(has("\"prefill_instances\":1"));
}

TEST_F(InstanceAdminTest, ARunningStreamOutlivesTheRemovalOfItsDecoder) {
  auto slow = test::event_stream(kEvents);
  slow.gap = 100ms;
  d().set_usual(slow);
  start_one_each();
  test::RawClient client(port_);
  client.send(test::post_text("/v1/completions", kStreamBody, "Connection: close\r\n"));
  client.read_until("Par");
  change("remove", "decode", "\"" + d().name() + "\"");
  EXPECT_NE(client.read_all().find("[DONE]"), std::string::npos);
  const auto none = ask(kStreamBody);
  EXPECT_EQ(status_of(none), 503);
  EXPECT_NE(body_of(none).find("no decoder"), std::string::npos) << none;
  EXPECT_TRUE(all_scores_zero());
}

TEST_F(InstanceAdminTest, BadBodiesAreRefused) {
  start_one_each();
  for (const char* body : {"", "[]", "{}", R"({"type":"both","instances":[]})", R"({"type":"decode"})",
                           R"({"type":"decode","instances":"host"})", R"({"type":"decode","instances":[7]})",
                           R"({"type":"decode","instances":"host:0"})", R"({"type":"decode","instances":"a b:1"})",
                           R"({"type":"decode","instances":"host:99999"})"}) {
    EXPECT_EQ(status_of(ask(body, "/instances/add")), 400) << body;
    EXPECT_EQ(status_of(ask(body, "/instances/remove")), 400) << body;
  }
  const auto change = InstanceChange::parse(R"({"type":"prefill","instances":["[::1]:7","h:8"]})");
  ASSERT_TRUE(change);
  EXPECT_EQ(change->endpoints[0].to_string(), "[::1]:7");
}

}  // namespace
}  // namespace tandem::proxy
