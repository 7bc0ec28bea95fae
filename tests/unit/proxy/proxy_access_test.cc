// SPDX-License-Identifier: Apache-2.0
// Who may ask the proxy, whose key instances see, and TLS on both sides.
#include <gmock/gmock.h>

#include "net/http_client.h"
#include "net/tls.h"
#include "proxy_fixture.h"
#include "push_stand_in.h"
#include "support/certificates.h"

namespace tandem::proxy {
namespace {

using test::body_of;
using test::status_of;
using ::testing::HasSubstr;
using ::testing::Not;

class ProxyAccessTest : public ProxyTest {
 protected:
  static std::string bearer(const std::string& key) { return "Authorization: Bearer " + key + "\r\n"; }
  std::string last_authorization(const test::StandIn& instance) {
    return std::string(instance.requests().back().headers.find("authorization").value_or("none"));
  }
};

TEST_F(ProxyAccessTest, KeysLockWhatGeneratesAndWhatChangesSomething) {
  config_.api_keys = {"first", "second"};
  start_one_each();
  for (const char* path : {"/v1/completions", "/v1/chat/completions", "/invocations", "/v1/metaserver",
                           "/instances/add", "/instances/remove", "/reset_prefix_cache", "/v1/nowhere"}) {
    const std::string refused = ask(kPlainBody, path);
    EXPECT_EQ(status_of(refused), 401) << path;
    EXPECT_EQ(body_of(refused), R"({"error":"Unauthorized"})") << path;
    EXPECT_EQ(status_of(ask(kPlainBody, path, bearer("third"))), 401) << path;
  }
  EXPECT_EQ(status_of(get("/v1/models")), 401);
  EXPECT_TRUE(p().requests().empty());
  for (const char* open : {"/health", "/healthcheck", "/metrics", "/version", "/load", "/ping"})
    EXPECT_EQ(status_of(get(open)), 200) << open;
  EXPECT_EQ(status_of(ask(kStreamBody, "/v1/completions", bearer("second"))), 200);
}

TEST_F(ProxyAccessTest, TheClientsKeyIsForwarded) {
  start_one_each();
  EXPECT_EQ(status_of(ask(kStreamBody, "/v1/completions", bearer("own"))), 200);
  EXPECT_EQ(last_authorization(p()), "Bearer own");
  EXPECT_EQ(last_authorization(d()), "Bearer own");
}

TEST_F(ProxyAccessTest, OrReplacedByTheInstances) {
  config_.api_keys = {"own"};
  config_.instance_api_key = "theirs";
  start_one_each();
  EXPECT_EQ(status_of(ask(kStreamBody, "/v1/completions", bearer("own"))), 200);
  EXPECT_EQ(last_authorization(p()), "Bearer theirs");
  EXPECT_EQ(last_authorization(d()), "Bearer theirs");
}

TEST_F(ProxyAccessTest, AnInstancesRefusalOfAKeyIsTheClients) {
  p().set_usual(test::error_answer(401, R"({"error":"Unauthorized"})"));
  start_one_each();
  const std::string refused = ask(kStreamBody, "/v1/completions", bearer("wrong"));
  EXPECT_EQ(status_of(refused), 401);
  EXPECT_EQ(body_of(refused), R"({"error":"Unauthorized"})");
}

TEST_F(ProxyAccessTest, DecodersHaveTheMetaserversKeyInItsUrl) {
  config_.connector = config::ProxyConnector::kLayerwise;
  config_.api_keys = {"own"};
  p().set_usual(test::json_answer(R"({"choices":[],"usage":{"completion_tokens":1}})"));
  PushDecoder decoder(io_);
  use({p().port()}, {decoder.port()});
  start();
  EXPECT_EQ(status_of(ask(kStreamBody, "/v1/completions", bearer("own"))), 200);
  EXPECT_EQ(decoder.all_posts().at(0).status, 200);
  const std::string body = decoder.requests().at(0).body;
  EXPECT_THAT(body, testing::ContainsRegex("/v1/metaserver\\?key=[0-9a-f]{32}\""));
  const std::string post = R"({"request_id":"cmpl-never-0"})";
  EXPECT_EQ(status_of(ask(post, "/v1/metaserver")), 401);
  EXPECT_EQ(status_of(ask(post, "/v1/metaserver?key=0")), 401);
  EXPECT_EQ(status_of(ask(post, "/v1/metaserver?key=")), 401);
  EXPECT_EQ(status_of(ask(post, "/v1/metaserver", bearer("own"))), 404);
  // It opens nothing else.
  const std::string key = body.substr(body.find("?key="), 37);
  EXPECT_EQ(status_of(ask(post, "/v1/metaserver" + key)), 404);
  EXPECT_EQ(status_of(ask(kStreamBody, "/v1/completions" + key)), 401);
}

TEST_F(ProxyAccessTest, HttpsInstancesNeedAProxyThatHasTls) {
  start_one_each();
  const std::string refused = ask(R"({"type":"prefill","instances":["https://127.0.0.1:1"]})", "/instances/add");
  EXPECT_EQ(status_of(refused), 400);
  EXPECT_THAT(refused, HasSubstr("no TLS"));
}

/// An instance that speaks TLS, and wants a certificate.
class TlsInstance {
 public:
  TlsInstance(test::IoThread& io, const net::TlsFiles& files, std::string body) : io_(io) {
    io_.call([&] {
      server_ = net::HttpServer::create(io_.executor(), net::ServerLimits());
      server_->route("POST", "/v1/completions", [body = std::move(body)](std::shared_ptr<net::Exchange> exchange) {
        return answer(exchange, body);
      });
      EXPECT_TRUE(server_->use_tls(files));
      port_ = *server_->listen("127.0.0.1", 0);
    });
  }
  ~TlsInstance() {
    io_.run(server_->stop(std::chrono::milliseconds(0)));
    io_.call([this] { server_.reset(); });
  }
  TlsInstance(const TlsInstance&) = delete;
  TlsInstance& operator=(const TlsInstance&) = delete;
  std::uint16_t port() const { return port_; }

 private:
  static net::Task<void> answer(std::shared_ptr<net::Exchange> exchange, std::string body) {
    net::HttpResponse response(200, "application/json", std::move(body));
    (void)co_await exchange->respond(std::move(response));
  }

  test::IoThread& io_;
  std::unique_ptr<net::HttpServer> server_;
  std::uint16_t port_ = 0;
};

class ProxyTlsTest : public ProxyAccessTest {
 protected:
  /// Our own client to the proxy's port.
  std::string ask_tls(const std::string& ca) {
    net::Endpoint endpoint("127.0.0.1", port_);
    endpoint.tls = true;
    const auto context = net::make_tls_client_context({ca, "", ""});
    const auto client =
        io_.call([&] { return net::HttpClient::create(io_.executor(), endpoint, net::ClientLimits(), *context); });
    return io_.run(ask_once(client));
  }
  static net::Task<std::string> ask_once(std::shared_ptr<net::HttpClient> client) {
    net::ClientRequest request("POST", "/v1/completions");
    request.headers.set("Content-Type", "application/json");
    request.body = kPlainBody;
    auto answer = co_await client->send(std::move(request), net::ClientTimeouts(), net::Cancel());
    if (!answer) co_return answer.error().message();
    auto body = co_await (*answer)->read_all(1U << 20);
    co_return body ? std::move(*body) : std::string(body.error().message());
  }

  const test::Pem instance_ = test::make_certificate("instance");
  const test::Pem own_ = test::make_certificate("proxy");
};

TEST_F(ProxyTlsTest, BothSidesWithCertificatesAndPlainPeersAreTold) {
  const net::TlsFiles files{instance_.certificate, instance_.key, own_.certificate, true};
  const TlsInstance prefiller(io_, files, kPrefillAnswer);
  const TlsInstance decoder(io_, files, R"({"object":"text_completion"})");
  config_.prefillers = {{"127.0.0.1", prefiller.port(), true}};
  config_.decoders = {{"127.0.0.1", decoder.port(), true}};
  config_.tls.certfile = own_.certificate;
  config_.tls.keyfile = own_.key;
  const auto context = net::make_tls_client_context({instance_.certificate, own_.certificate, own_.key});
  ASSERT_TRUE(context) << context.error().message();
  proxy_ = std::make_unique<ProxyServer>(config_, registry_, *context);
  port_ = *proxy_->start();
  EXPECT_EQ(ask_tls(own_.certificate), R"({"object":"text_completion"})");
  EXPECT_THAT(ask_tls(instance_.certificate), HasSubstr("no TLS connection"));
  const std::string told = ask(kPlainBody);
  EXPECT_EQ(status_of(told), 400);
  EXPECT_THAT(told, HasSubstr("this port speaks TLS"));
}

TEST_F(ProxyTlsTest, AnInstanceThatSpeaksNoTlsIsAnErrorThatSaysSo) {
  config_.prefillers = {{"127.0.0.1", p().port(), true}};
  config_.decoders = {{"127.0.0.1", d().port(), true}};
  const auto context = net::make_tls_client_context({instance_.certificate, "", ""});
  proxy_ = std::make_unique<ProxyServer>(config_, registry_, *context);
  port_ = *proxy_->start();
  const std::string failed = ask(kPlainBody);
  EXPECT_EQ(status_of(failed), 503);
  EXPECT_THAT(failed, HasSubstr("TLS"));
}

}  // namespace
}  // namespace tandem::proxy
