// SPDX-License-Identifier: Apache-2.0
// A proxy in front of stand-ins: two prefillers and two decoders that behave, unless a test says otherwise.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "proxy/proxy_server.h"
#include "support/net_stand_in.h"

namespace tandem::proxy {

inline const std::string kLease =
    R"({"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[12, 13],"lease":18446744073709551615})";
inline const std::string kPrefillAnswer =
    R"({"id":"cmpl-x","choices":[{"finish_reason":"length"}],"usage":{"completion_tokens":1},"kv_transfer_params":)" +
    kLease + "}";
inline const std::vector<std::string> kEvents = {"data: {\"choices\":[{\"text\":\"Par\"}]}\n\n",
                                                 "data: {\"choices\":[{\"text\":\"is\"}]}\n\n", "data: [DONE]\n\n"};
inline const std::string kStreamBody = R"({"model":"m","prompt":"Hi","max_tokens":5,"stream":true})";
inline const std::string kPlainBody = R"({"model":"m","prompt":"Hi","max_tokens":5})";

class ProxyTest : public testing::Test {
 protected:
  ProxyTest() {
    config_.host = "127.0.0.1";
    config_.port = 0;
    config_.connector = config::ProxyConnector::kPull;
    config_.connect_timeout = std::chrono::milliseconds(1000);
    config_.prefill_timeout = std::chrono::milliseconds(8000);
    config_.first_byte_timeout = std::chrono::milliseconds(8000);
    config_.stream_idle_timeout = std::chrono::milliseconds(8000);
    for (int i = 0; i < 2; ++i) {
      prefillers_.push_back(std::make_unique<test::StandIn>(io_, test::json_answer(kPrefillAnswer)));
      decoders_.push_back(std::make_unique<test::StandIn>(io_, test::event_stream(kEvents)));
    }
  }
  ~ProxyTest() override { proxy_.reset(); }

  /// Nobody listens there.
  static std::uint16_t dead_port() { return test::ScriptedPeer({}).port(); }

  test::StandIn& p(std::size_t i = 0) { return *prefillers_[i]; }
  test::StandIn& d(std::size_t i = 0) { return *decoders_[i]; }

  void use(std::vector<std::uint16_t> prefillers, std::vector<std::uint16_t> decoders) {
    config_.prefillers.clear();
    config_.decoders.clear();
    for (const auto port : prefillers) config_.prefillers.push_back({"127.0.0.1", port});
    for (const auto port : decoders) config_.decoders.push_back({"127.0.0.1", port});
  }
  void start() {
    if (config_.prefillers.empty()) use({p(0).port(), p(1).port()}, {d(0).port(), d(1).port()});
    proxy_ = std::make_unique<ProxyServer>(config_, registry_);
    const auto port = proxy_->start();
    ASSERT_TRUE(port) << port.error().to_string();
    port_ = *port;
  }
  void start_one_each() {
    use({p().port()}, {d().port()});
    start();
  }

  /// One request on a connection of its own; the whole response, read until the proxy closes.
  std::string ask(const std::string& body, const std::string& path = "/v1/completions", const std::string& extra = "") {
    test::RawClient client(port_);
    client.send(test::post_text(path, body, extra + "Connection: close\r\n"));
    return client.read_all();
  }
  std::string get(const std::string& path) {
    test::RawClient client(port_);
    client.send("GET " + path + " HTTP/1.1\r\nConnection: close\r\n\r\n");
    return client.read_all();
  }

  double metric(const std::string& line_start) const {
    std::istringstream lines(registry_.expose());
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with(line_start + " ")) return std::stod(line.substr(line_start.size() + 1));
    }
    ADD_FAILURE() << "no series " << line_start << " in\n" << registry_.expose();
    return -1;
  }
  /// Every score and the number of requests in flight are exactly zero; waits for the last request to end.
  bool all_scores_zero() const {
    return test::eventually([this] {
      std::istringstream lines(registry_.expose());
      int seen = 0;
      for (std::string line; std::getline(lines, line);) {
        const bool score = line.starts_with("tandem:proxy_active_") || line.starts_with("tandem:proxy_inflight_");
        if (!score) continue;
        ++seen;
        if (std::stod(line.substr(line.rfind(' ') + 1)) != 0.0) return false;
      }
      return seen >= 3;
    });
  }

  test::IoThread io_;
  std::vector<std::unique_ptr<test::StandIn>> prefillers_, decoders_;
  config::ProxyConfig config_;
  obs::Registry registry_;
  std::unique_ptr<ProxyServer> proxy_;
  std::uint16_t port_ = 0;
};

}  // namespace tandem::proxy
