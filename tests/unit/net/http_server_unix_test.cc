// SPDX-License-Identifier: Apache-2.0
// The HTTP server on a Unix socket, its gate and its stamp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <filesystem>
#include <fstream>

#include "net/http_server.h"
#include "support/net_support.h"

namespace tandem::net {
namespace {

namespace asio = boost::asio;
using ::testing::HasSubstr;

Task<void> answer_peer(std::shared_ptr<Exchange> exchange) {
  HttpResponse response(200, "text/plain", exchange->request().peer);
  (void)co_await exchange->respond(std::move(response));
}

class UnixServerTest : public ::testing::Test {
 protected:
  ~UnixServerTest() override { stop(server_); }

  std::unique_ptr<HttpServer> make() {
    return io_.call([this] {
      auto server = HttpServer::create(io_.executor(), ServerLimits());
      server->route("GET", "/", answer_peer);
      return server;
    });
  }
  Result<void> listen(HttpServer& server) {
    return io_.call([&] { return server.listen_unix(path_); });
  }
  void stop(std::unique_ptr<HttpServer>& server) {
    if (!server) return;
    io_.run(server->stop(std::chrono::milliseconds(100)));
    io_.call([&] { server.reset(); });
  }
  std::string get() {
    asio::io_context io;
    asio::local::stream_protocol::socket socket(io);
    boost::system::error_code error;
    socket.connect(asio::local::stream_protocol::endpoint(path_), error);
    if (error) return error.message();
    asio::write(socket, asio::buffer(std::string("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")), error);
    std::string answer;
    asio::read(socket, asio::dynamic_buffer(answer), error);
    return answer;
  }

  const std::string path_ = testing::TempDir() + "tandem-" + std::to_string(::getpid()) + ".sock";
  test::IoThread io_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(UnixServerTest, AnswersThereAndTakesItsFileAway) {
  server_ = make();
  ASSERT_TRUE(listen(*server_));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(test::body_of(get()), "unix");
  stop(server_);
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(UnixServerTest, ReplacesWhatADeadServerLeftAndNothingElse) {
  {
    const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path_.copy(address.sun_path, sizeof(address.sun_path) - 1);
    ASSERT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    ::close(fd);  // the file stays
  }
  server_ = make();
  ASSERT_TRUE(listen(*server_));
  EXPECT_EQ(test::body_of(get()), "unix");
  auto second = make();
  EXPECT_THAT(listen(*second).error().message(), HasSubstr("another server listens there"));
  stop(second);
  EXPECT_EQ(test::body_of(get()), "unix");
  stop(server_);
  std::ofstream(path_) << "somebody's file";
  server_ = make();
  EXPECT_THAT(listen(*server_).error().message(), HasSubstr("it is there and no socket"));
  EXPECT_TRUE(std::filesystem::exists(path_));
  std::filesystem::remove(path_);
}

TEST_F(UnixServerTest, SaysWhichPathsAreTooLong) {
  server_ = make();
  const std::string longest(200, 'x');
  EXPECT_THAT(io_.call([&] { return server_->listen_unix(longest); }).error().message(), HasSubstr("1 to 107 bytes"));
}

TEST_F(UnixServerTest, AGateIsAskedBeforeAnyPath) {
  server_ = make();
  io_.call([&] {
    server_->gate([](const HttpRequest& request) -> std::optional<HttpResponse> {
      if (request.headers.find("x-pass")) return std::nullopt;
      return HttpResponse(401, "text/plain", "no");
    });
  });
  const auto port = io_.call([&] { return *server_->listen("127.0.0.1", 0); });
  const auto ask = [port](const std::string& path, const std::string& header) {
    test::RawClient client(port);
    client.send("GET " + path + " HTTP/1.1\r\nHost: x\r\n" + header + "\r\n");
    return test::status_of(client.read_response());
  };
  EXPECT_EQ(ask("/", ""), 401);
  EXPECT_EQ(ask("/nowhere", ""), 401);
  EXPECT_EQ(ask("/", "X-Pass: 1\r\n"), 200);
  EXPECT_EQ(ask("/nowhere", "X-Pass: 1\r\n"), 404);
}

Task<void> answer_in_pieces(std::shared_ptr<Exchange> exchange) {
  (void)co_await exchange->begin_stream(200, Headers());
  (void)co_await exchange->end_stream();
}

TEST_F(UnixServerTest, EveryAnswerIsStamped) {
  server_ = make();
  io_.call([&] {
    server_->route("GET", "/pieces", answer_in_pieces);
    server_->gate([](const HttpRequest& request) -> std::optional<HttpResponse> {
      if (request.path != "/locked") return std::nullopt;
      return HttpResponse(401, "text/plain", "no");
    });
    server_->stamp([](const HttpRequest& request, Headers& headers) { headers.set("X-Of", request.path); });
  });
  const auto port = io_.call([&] { return *server_->listen("127.0.0.1", 0); });
  for (const std::string of : {"GET /", "GET /pieces", "GET /locked", "GET /nowhere", "PUT /"}) {
    test::RawClient client(port);
    client.send(of + " HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n");
    EXPECT_THAT(client.read_response(), HasSubstr("\r\nX-Of: " + of.substr(4) + "\r\n")) << of;
  }
}

}  // namespace
}  // namespace tandem::net
