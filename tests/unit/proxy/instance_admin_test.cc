// SPDX-License-Identifier: Apache-2.0
#include "proxy/instance_admin.h"

#include "proxy_fixture.h"

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
  EXPECT_EQ(d(1).others().at(0).path, "/v1/models");
  EXPECT_NE(body_of(change("add", "decode", "\"" + d(1).name() + "\"")).find("already"), std::string::npos);
  EXPECT_NE(body_of(change("remove", "decode", "\"" + d(0).name() + "\"")).find("removed"), std::string::npos);
  EXPECT_EQ(status_of(ask(kStreamBody)), 200);
  EXPECT_EQ(d(1).requests().size(), 1U);
  EXPECT_TRUE(d(0).requests().empty());
  EXPECT_TRUE(all_scores_zero());
}

TEST_F(InstanceAdminTest, OneThatIsAskedForTwiceAtOnceIsThereOnce) {
  config_.connector = config::ProxyConnector::kAuto;  // each is asked what it is before it takes part
  start_one_each();
  const std::string twice = "\"" + d(1).name() + "\",\"" + d(1).name() + "\"";
  change("add", "decode", "[" + twice + "," + twice + "]");
  ASSERT_TRUE(eventually([this] { return d(1).others().size() == 4; })) << "/v1/models, for each";
  std::this_thread::sleep_for(50ms);
  EXPECT_TRUE(has("\"decode_instances\":2")) << get("/healthcheck");
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
