// SPDX-License-Identifier: Apache-2.0
#include "proxy_fixture.h"

namespace tandem::proxy {
namespace {

using test::body_of;
using test::status_of;

class ProxyEndpointsTest : public ProxyTest {};

TEST_F(ProxyEndpointsTest, ModelsComeFromTheFirstThatAnswers) {
  start();
  EXPECT_EQ(body_of(get("/v1/models")), "{\"from\":\"" + p(0).name() + "\"}") << "prefillers first";
  proxy_.reset();
  use({dead_port()}, {dead_port(), d(1).port()});
  start();
  EXPECT_EQ(body_of(get("/v1/models")), "{\"from\":\"" + d(1).name() + "\"}");
  proxy_.reset();
  const auto dead = dead_port();
  use({dead}, {dead});
  start();
  const auto none = get("/v1/models");
  EXPECT_EQ(status_of(none), 503);
  EXPECT_NE(body_of(none).find("\"error\":{"), std::string::npos) << none;
  EXPECT_NE(body_of(none).find("\"failed\":[\"127.0.0.1:" + std::to_string(dead)), std::string::npos) << none;
}

TEST_F(ProxyEndpointsTest, HealthNeedsAPrefillerAndADecoder) {
  const auto dead = dead_port();
  use({dead, p(1).port()}, {d(0).port()});
  start();
  EXPECT_EQ(status_of(get("/health")), 200) << "one of each is enough";
  EXPECT_EQ(body_of(get("/healthcheck")), R"({"status":"ok","prefill_instances":2,"decode_instances":1})");
  proxy_.reset();
  use({p(0).port()}, {dead});
  start();
  const auto response = get("/health");
  EXPECT_EQ(status_of(response), 503);
  EXPECT_NE(body_of(response).find("no decoder answers: decoder 127.0.0.1:" + std::to_string(dead) + ": "),
            std::string::npos)
      << response;
  EXPECT_EQ(status_of(get("/healthcheck")), 200) << "that one is static";
}

TEST_F(ProxyEndpointsTest, HealthNeedsTwoThatCanServeTogether) {
  config_.connector = config::ProxyConnector::kAuto;
  p(0).set_connector("MooncakeConnectorV1");
  d(0).set_connector("MooncakeLayerwiseConnector");
  start_one_each();
  EXPECT_TRUE(test::eventually([this] { return status_of(get("/health")) == 503; }));
  const auto why = get("/ping");
  EXPECT_NE(why.find("no prefiller has the connector of a decoder: prefiller " + p(0).name() + " runs pull; decoder " +
                     d(0).name() + " runs layerwise"),
            std::string::npos)
      << why;
  proxy_.reset();
  d(0).set_connector("MooncakeConnectorV1");
  start();
  EXPECT_EQ(status_of(get("/health")), 200);
  EXPECT_EQ(status_of(get("/ping")), 200);
}

TEST_F(ProxyEndpointsTest, AnInstanceInTheWrongRoleGetsNothingAndIsNamed) {
  config_.connector = config::ProxyConnector::kAuto;
  p(0).set_connector("MooncakeConnectorV1", "kv_consumer");
  d(0).set_connector("MooncakeConnectorV1", "kv_producer");
  start_one_each();
  const std::string swapped = "prefiller " + p(0).name() + " has kv_role kv_consumer";
  EXPECT_TRUE(test::eventually([&] { return get("/health").find(swapped) != std::string::npos; }));
  const auto refused = ask(kPlainBody);
  EXPECT_EQ(status_of(refused), 503);
  EXPECT_NE(refused.find("decoder " + d(0).name() + " has kv_role kv_producer"), std::string::npos) << refused;
  EXPECT_TRUE(p(0).requests().empty() && d(0).requests().empty());
  EXPECT_EQ(metric("tandem:proxy_instance_up{instance=\"" + p(0).name() + "\",role=\"prefill\"}"), 0);
  EXPECT_TRUE(all_scores_zero());
}

TEST_F(ProxyEndpointsTest, WhatContradictsTheFlagOrTheRoleGetsNothingAndIsNamed) {
  for (const auto flag : {config::ProxyConnector::kPull, config::ProxyConnector::kLayerwise}) {
    config_.connector = flag;
    const bool pull = flag == config::ProxyConnector::kPull;
    const std::string other = pull ? "MooncakeLayerwiseConnector" : "MooncakeConnectorV1";
    p(0).set_connector(other, "kv_producer");
    d(0).set_connector(pull ? "MooncakeConnectorV1" : "MooncakeLayerwiseConnector", "kv_producer");
    start_one_each();
    const auto refused = ask(kPlainBody);
    EXPECT_EQ(status_of(refused), 503) << refused;
    EXPECT_NE(refused.find("decoder " + d(0).name() + " has kv_role kv_producer"), std::string::npos) << refused;
    const auto health = get("/health");
    EXPECT_EQ(status_of(health), 503);
    EXPECT_NE(health.find("prefiller " + p(0).name() + " runs " + other + ", but this proxy has --connector"),
              std::string::npos)
        << health;
    proxy_.reset();
  }
  EXPECT_TRUE(p(0).requests().empty() && d(0).requests().empty());
}

TEST_F(ProxyEndpointsTest, OfTwoPrefillersTheOneThatFitsIsAsked) {
  config_.connector = config::ProxyConnector::kAuto;
  p(0).set_connector("MooncakeConnectorV1", "kv_consumer");
  p(1).set_connector("MooncakeConnectorV1", "kv_producer");
  d(0).set_connector("MooncakeConnectorV1", "kv_consumer");
  use({p(0).port(), p(1).port()}, {d(0).port()});
  start();
  EXPECT_EQ(status_of(ask(kStreamBody)), 200);
  EXPECT_EQ(p(1).requests().size(), 1U);
  EXPECT_TRUE(p(0).requests().empty());
  EXPECT_EQ(status_of(get("/health")), 200) << "one of each that fits is enough";
}

TEST_F(ProxyEndpointsTest, AnotherProxyIsNoInstance) {
  config_.connector = config::ProxyConnector::kAuto;
  start_one_each();
  EXPECT_EQ(status_of(ask(kStreamBody)), 200);
  const auto behind = std::move(proxy_);
  use({port_}, {d(0).port()});
  start();
  EXPECT_TRUE(test::eventually([this] { return get("/health").find("is a proxy, no instance") != std::string::npos; }));
  EXPECT_EQ(status_of(ask(kPlainBody)), 503);
  EXPECT_EQ(p(0).requests().size(), 1U) << "nothing went through both";
}

TEST_F(ProxyEndpointsTest, TheLogHasALineForEachRequestAndOneForAnInstanceThatIsNotThere) {
  config_.connector = config::ProxyConnector::kAuto;
  const auto dead = std::to_string(dead_port());
  use({p(0).port(), static_cast<std::uint16_t>(std::stoi(dead))}, {d(0).port()});
  ::testing::internal::CaptureStderr();
  start();
  EXPECT_EQ(status_of(ask(kStreamBody)), 200);
  ask("{}", "/v1/metaserver?key=secret");
  proxy_.reset();
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find(R"( - "POST /v1/completions HTTP/1.1" 200 OK)"), std::string::npos) << log;
  const auto silent = log.find("prefiller 127.0.0.1:" + dead + ": Connection refused");
  ASSERT_NE(silent, std::string::npos) << log;
  EXPECT_EQ(log.find("is asked again until it does", log.find('\n', silent)), std::string::npos) << "once\n" << log;
  EXPECT_NE(log.find(R"("POST /v1/metaserver HTTP/1.1")"), std::string::npos) << log;
  EXPECT_EQ(log.find("secret"), std::string::npos) << "the query may be a decoder's key";
}

TEST_F(ProxyEndpointsTest, LoadCountsWhatRuns) {
  p().set_usual(test::hang());
  start_one_each();
  EXPECT_EQ(body_of(get("/load")), R"({"server_load":0})");
  test::RawClient client(port_);
  client.send(test::post_text("/v1/completions", kStreamBody));
  ASSERT_TRUE(test::eventually([this] { return p().num_active() == 1; }));
  EXPECT_EQ(body_of(get("/load")), R"({"server_load":1})");
}

TEST_F(ProxyEndpointsTest, ResetPrefixCacheGoesToAll) {
  start();
  EXPECT_EQ(status_of(ask("", "/reset_prefix_cache?reset_running_requests=true")), 200);
  for (const auto* instances : {&prefillers_, &decoders_}) {
    for (const auto& instance : *instances) {
      ASSERT_EQ(instance->others().size(), 1U);
      EXPECT_EQ(instance->others()[0].query, "reset_running_requests=true");
    }
  }
  proxy_.reset();
  use({p(0).port()}, {dead_port()});
  start();
  const auto response = ask("", "/reset_prefix_cache");
  EXPECT_EQ(status_of(response), 500);
  EXPECT_NE(body_of(response).find("{\"failed\":[\"127.0.0.1:"), std::string::npos) << response;
}

TEST_F(ProxyEndpointsTest, TokenizeAsksAnyInstance) {
  use({dead_port()}, {d(0).port()});
  start();
  EXPECT_EQ(body_of(ask(R"({"prompt":"x"})", "/tokenize")), "{\"from\":\"" + d(0).name() + "\"}");
  EXPECT_EQ(status_of(ask(R"({"tokens":[1]})", "/detokenize")), 200);
  EXPECT_EQ(d(0).others().at(0).body, R"({"prompt":"x"})");
}

TEST_F(ProxyEndpointsTest, WithoutAnyInstanceEverythingIsStillAnswered) {
  use({p(0).port()}, {d(0).port()});
  start();
  const auto remove = [this](const char* role, const std::string& name) {
    return status_of(
        ask(R"({"type":")" + std::string(role) + R"(","instances":[")" + name + "\"]}", "/instances/remove"));
  };
  EXPECT_EQ(remove("prefill", p(0).name()), 200);
  EXPECT_EQ(remove("decode", d(0).name()), 200);
  for (const char* path : {"/v1/models", "/health"}) EXPECT_EQ(status_of(get(path)), 503) << path;
  EXPECT_NE(get("/health").find("no prefiller is configured"), std::string::npos);
  EXPECT_EQ(status_of(ask("{}", "/tokenize")), 503);
  const auto response = ask(kPlainBody);
  EXPECT_EQ(status_of(response), 503);
  EXPECT_NE(body_of(response).find("no decoder is configured"), std::string::npos) << response;
  EXPECT_EQ(status_of(ask("", "/reset_prefix_cache")), 200);
}

TEST_F(ProxyEndpointsTest, MetricsVersionAndUnknownPaths) {
  start();
  const auto metrics = get("/metrics");
  EXPECT_NE(metrics.find("content-type: text/plain; version=0.0.4"), std::string::npos);
  EXPECT_NE(metrics.find("tandem:proxy_active_kv_score{"), std::string::npos);
  EXPECT_NE(metrics.find(R"(tandem:proxy_requests_total{endpoint="/v1/chat/completions",outcome="2xx"} 0)"),
            std::string::npos)
      << "series exist before the first request\n"
      << metrics;
  EXPECT_NE(body_of(get("/version")).find("\"version\":\""), std::string::npos);
  EXPECT_EQ(status_of(get("/nowhere")), 404);
  EXPECT_EQ(status_of(get("/v1/completions")), 405);
}

}  // namespace
}  // namespace tandem::proxy
