// SPDX-License-Identifier: Apache-2.0
// The whole API over HTTP, with an engine whose outputs the test writes.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <regex>

#include "api/service.h"
#include "api_support.h"
#include "support/net_support.h"

namespace tandem::api {

namespace json = boost::json;
using engine::FinishReason;
using test::body_of;
using test::status_of;

/// Ids and times differ from run to run.
inline std::string normalized(std::string text) {
  text = std::regex_replace(text, std::regex("\"created\":[0-9]+"), "\"created\":1");
  text = std::regex_replace(text, std::regex("(cmpl|modelperm)-[0-9a-f]{32}"), "$1-1");
  return text;
}

class ServiceTest : public ::testing::Test {
 protected:
  ServiceTest() {
    engine_.script = [this](std::size_t index) {
      engine_.say(index, "H");
      engine_.say(index, "i", FinishReason::kLength);
    };
  }
  ~ServiceTest() override {
    if (!server_) return;
    io_.call([this] { service_.reset(); });
    const std::chrono::milliseconds drain(500);
    io_.run(stop(drain));
    io_.call([this] { server_.reset(); });
  }

  net::Task<int> stop(std::chrono::milliseconds drain) {
    co_await server_->stop(drain);
    co_return 0;
  }

  /// Starts the server on first use, so that tests can change the config before.
  std::uint16_t port() {
    if (server_) return port_;
    ServiceParts parts;
    parts.engine = &engine_;
    parts.tokenizer = std::make_shared<test::ByteTokenizer>();
    parts.chat_template = *text::ChatTemplate::compile(test::kTestTemplate, {});
    parts.metrics = &registry_;
    parts.vocab_size = test::ByteTokenizer::kVocabSize;
    parts.tokenizer_config = tokenizer_config_;
    parts.transfer = {"e1", "MooncakeLayerwiseConnector", "kv_consumer", 0xfedcba9876543210U, 2};
    io_.call([&] {
      server_ = net::HttpServer::create(io_.executor(), net::ServerLimits());
      service_ = std::make_unique<Service>(config_, parts);
      service_->install(*server_);
      port_ = *server_->listen("127.0.0.1", 0);
    });
    return port_;
  }

  std::string ask(const std::string& path, const std::string& body, const std::string& headers = "") {
    test::RawClient client(port());
    client.send(test::post_text(path, body, headers));
    return client.read_response();
  }
  std::string get(const std::string& path, const std::string& method = "GET") {
    test::RawClient client(port());
    client.send(method + " " + path + " HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n");
    return client.read_response();
  }
  /// The events of a stream, "data: " taken away; comments stay as they are.
  std::vector<std::string> events(const std::string& path, const std::string& body, const std::string& headers = "") {
    const std::string response = ask(path, body, headers);
    EXPECT_EQ(status_of(response), 200) << response;
    EXPECT_THAT(test::head_of(response), ::testing::HasSubstr("text/event-stream; charset=utf-8"));
    std::vector<std::string> list;
    std::string text = body_of(response);
    for (std::size_t end = text.find("\n\n"); end != std::string::npos; end = text.find("\n\n")) {
      std::string event = text.substr(0, end);
      if (event.starts_with("data: ")) event.erase(0, 6);
      list.push_back(normalized(event));
      text.erase(0, end + 2);
    }
    EXPECT_THAT(text, ::testing::IsEmpty());
    return list;
  }
  static json::object error_of(const std::string& response) {
    return json::parse(body_of(response)).as_object()["error"].as_object();
  }

  test::FakeEngine engine_;
  obs::Registry registry_;
  config::ServeConfig config_ = test::test_config();
  std::string tokenizer_config_;
  test::IoThread io_;
  std::unique_ptr<net::HttpServer> server_;
  std::unique_ptr<Service> service_;
  std::uint16_t port_ = 0;
};

}  // namespace tandem::api
