// SPDX-License-Identifier: Apache-2.0
// The HTTP server over TLS: with a client that speaks it, clients that do not, and files that are none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/write.hpp>
#include <fstream>

#include "net/http_server.h"
#include "net/tls.h"
#include "support/net_support.h"

namespace tandem::net {
namespace {

namespace asio = boost::asio;
using ::testing::HasSubstr;

struct Pem {
  std::string certificate, key;  ///< files
};

/// A certificate that signs itself, valid for an hour.
Pem make_certificate(const std::string& name) {
  EVP_PKEY* key = EVP_RSA_gen(2048U);
  X509* certificate = X509_new();
  X509_set_version(certificate, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate), -60);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
  X509_set_pubkey(certificate, key);
  X509_NAME* subject = X509_get_subject_name(certificate);
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("localhost"), -1, -1,
                             0);
  X509_set_issuer_name(certificate, subject);
  X509_sign(certificate, key, EVP_sha256());
  const Pem pem{testing::TempDir() + name + ".crt", testing::TempDir() + name + ".key"};
  FILE* file = std::fopen(pem.certificate.c_str(), "w");
  PEM_write_X509(file, certificate);
  std::fclose(file);
  file = std::fopen(pem.key.c_str(), "w");
  PEM_write_PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr);
  std::fclose(file);
  X509_free(certificate);
  EVP_PKEY_free(key);
  return pem;
}

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

TEST_F(TlsServerTest, NamesTheFileThatIsWrong) {
  const Pem other = make_certificate("other");
  EXPECT_THAT(start({"/nowhere.crt", server_pem_.key, "", false}).error().message(), HasSubstr("/nowhere.crt"));
  EXPECT_THAT(start({server_pem_.certificate, server_pem_.certificate, "", false}).error().message(),
              HasSubstr("TLS key"));
  EXPECT_THAT(start({server_pem_.certificate, other.key, "", false}).error().message(), HasSubstr("mismatch"));
}

}  // namespace
}  // namespace tandem::net
