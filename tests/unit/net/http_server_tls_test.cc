// SPDX-License-Identifier: Apache-2.0
// The HTTP server over TLS: with a client that speaks it, clients that do not, and files that are none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/write.hpp>

#include "net/http_client.h"
#include "net/http_server.h"
#include "net/tls.h"
#include "support/certificates.h"
#include "support/net_support.h"

namespace tandem::net {
namespace {

namespace asio = boost::asio;
using test::make_certificate;
using test::Pem;
using ::testing::HasSubstr;

class TlsServerTest : public ::testing::Test {
 protected:
  ~TlsServerTest() override {
    if (!server_) return;
    io_.run(server_->stop(std::chrono::milliseconds(200)));
    io_.call([this] { server_.reset(); });
  }
  Result<void> start(const TlsFiles& files) {
    ServerLimits limits;
    limits.header_timeout = std::chrono::seconds(1);
    return io_.call([&]() -> Result<void> {
      server_ = HttpServer::create(io_.executor(), limits);
      server_->route("POST", "/echo", [](std::shared_ptr<Exchange> exchange) -> Task<void> {
        HttpResponse response(200, "text/plain", exchange->request().body);
        (void)co_await exchange->respond(std::move(response));
      });
      TANDEM_TRY(server_->use_tls(files));
      TANDEM_ASSIGN(port_, server_->listen("127.0.0.1", 0));
      return {};
    });
  }

  /// The whole answer to one post, or what went wrong.
  std::string post(const std::string& body, const Pem* identity = nullptr) {
    asio::io_context io;
    asio::ssl::context context(asio::ssl::context::tls_client);
    boost::system::error_code error;
    context.load_verify_file(server_pem_.certificate);
    context.set_verify_mode(asio::ssl::verify_peer);
    if (identity != nullptr) {
      context.use_certificate_file(identity->certificate, asio::ssl::context::pem);
      context.use_private_key_file(identity->key, asio::ssl::context::pem);
    }
    asio::ssl::stream<asio::ip::tcp::socket> stream(io, context);
    stream.next_layer().connect({asio::ip::make_address("127.0.0.1"), port_}, error);
    stream.handshake(asio::ssl::stream_base::client, error);
    if (error) return "handshake: " + error.message();
    const std::string request =
        "POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: " + std::to_string(body.size()) +
        "\r\n\r\n" + body;
    asio::write(stream, asio::buffer(request), error);
    if (error) return "write: " + error.message();
    std::string answer;
    asio::read(stream, asio::dynamic_buffer(answer), error);
    return answer.empty() ? "read: " + error.message() : answer;
  }

  const Pem server_pem_ = make_certificate("server");
  test::IoThread io_;
  std::unique_ptr<HttpServer> server_;
  std::uint16_t port_ = 0;
};

TEST_F(TlsServerTest, AnswersOverTls) {
  ASSERT_TRUE(start({server_pem_.certificate, server_pem_.key, "", false}));
  const std::string large(300'000, 'x');
  EXPECT_TRUE(test::status_of(post("hello")) == 200);
  EXPECT_EQ(test::body_of(post(large)), large);
}

TEST_F(TlsServerTest, ClientsThatDoNotSpeakItAreClosedAndOthersGoOn) {
  ASSERT_TRUE(start({server_pem_.certificate, server_pem_.key, "", false}));
  test::RawClient plain(port_);
  plain.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  const std::string told = plain.read_response();
  EXPECT_EQ(test::status_of(told), 400);
  EXPECT_THAT(told, HasSubstr("this port speaks TLS"));
  plain.close();
  const test::RawClient silent(port_);
  EXPECT_EQ(test::body_of(post("hello")), "hello");
  EXPECT_TRUE(test::eventually([this] { return server_->num_connections() == 0; }));
}

TEST_F(TlsServerTest, AsksClientsForCertificates) {
  const Pem client = make_certificate("client");
  const Pem stranger = make_certificate("stranger");
  ASSERT_TRUE(start({server_pem_.certificate, server_pem_.key, client.certificate, true}));
  EXPECT_EQ(test::body_of(post("hello", &client)), "hello");
  EXPECT_THAT(post("hello"), ::testing::Not(HasSubstr("200 OK")));
  EXPECT_THAT(post("hello", &stranger), ::testing::Not(HasSubstr("200 OK")));
}

/// Our own client, as the proxy uses it.
class TlsClientTest : public TlsServerTest {
 protected:
  /// The body of one answer, or the error.
  std::string ask(const TlsClientFiles& files, const std::string& host = "127.0.0.1") {
    const auto context = make_tls_client_context(files);
    if (!context) return context.error().message();
    Endpoint endpoint(host, port_);
    endpoint.tls = true;
    const auto client =
        io_.call([&] { return HttpClient::create(io_.executor(), endpoint, ClientLimits(), *context); });
    std::string answer;
    for (int i = 0; i < 2; ++i) answer = io_.run(ask_once(client));  // the second on the kept connection
    return answer;
  }
  static Task<std::string> ask_once(std::shared_ptr<HttpClient> client) {
    ClientRequest request("POST", "/echo");
    request.body = std::string(100'000, 'y');
    ClientTimeouts timeouts;
    timeouts.connect = timeouts.head = timeouts.idle = std::chrono::seconds(2);
    auto answer = co_await client->send(std::move(request), timeouts, Cancel());
    if (!answer) co_return answer.error().message();
    auto body = co_await (*answer)->read_all(1U << 20);
    if (!body) co_return body.error().message();
    co_return std::move(*body);
  }
};

TEST_F(TlsClientTest, TakesServersWhoseCertificateIsForTheHostAndSignedByTheCa) {
  ASSERT_TRUE(start({server_pem_.certificate, server_pem_.key, "", false}));
  EXPECT_EQ(ask({server_pem_.certificate, "", ""}), std::string(100'000, 'y'));
  EXPECT_EQ(ask({server_pem_.certificate, "", ""}, "localhost"), std::string(100'000, 'y'));
  EXPECT_THAT(ask({make_certificate("another-ca").certificate, "", ""}), HasSubstr("no TLS connection"));
  EXPECT_THAT(ask({"", "", ""}), HasSubstr("no TLS connection"));
  EXPECT_THAT(ask({"/nowhere.pem", "", ""}), HasSubstr("/nowhere.pem"));
}

TEST_F(TlsClientTest, RefusesACertificateForAnotherHost) {
  const Pem elsewhere = make_certificate("elsewhere", "DNS:elsewhere,IP:127.0.0.2");
  ASSERT_TRUE(start({elsewhere.certificate, elsewhere.key, "", false}));
  EXPECT_THAT(ask({elsewhere.certificate, "", ""}), HasSubstr("no TLS connection"));
  EXPECT_THAT(ask({elsewhere.certificate, "", ""}, "localhost"), HasSubstr("no TLS connection"));
}

TEST_F(TlsClientTest, ShowsItsOwnCertificate) {
  const Pem client = make_certificate("client");
  ASSERT_TRUE(start({server_pem_.certificate, server_pem_.key, client.certificate, true}));
  EXPECT_EQ(ask({server_pem_.certificate, client.certificate, client.key}), std::string(100'000, 'y'));
  EXPECT_NE(ask({server_pem_.certificate, "", ""}), std::string(100'000, 'y'));
}

TEST_F(TlsClientTest, APlainServerIsToldFromOneThatSpeaksTls) {
  const test::ScriptedPeer plain({{"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"},
                                  {"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"}});
  port_ = plain.port();
  EXPECT_THAT(ask({server_pem_.certificate, "", ""}), HasSubstr("shaking hands by TLS"));
}

TEST_F(TlsServerTest, NamesTheFileThatIsWrong) {
  const Pem other = make_certificate("other");
  EXPECT_THAT(start({"/nowhere.crt", server_pem_.key, "", false}).error().message(), HasSubstr("/nowhere.crt"));
  EXPECT_THAT(start({server_pem_.certificate, server_pem_.certificate, "", false}).error().message(),
              HasSubstr("TLS key"));
  EXPECT_THAT(start({server_pem_.certificate, other.key, "", false}).error().message(), HasSubstr("mismatch"));
  EXPECT_THAT(start({server_pem_.certificate, server_pem_.key, "", false, "NONSENSE"}).error().message(),
              HasSubstr("TLS ciphers 'NONSENSE'"));
}

}  // namespace
}  // namespace tandem::net
