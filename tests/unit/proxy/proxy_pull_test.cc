// SPDX-License-Identifier: Apache-2.0
// Requests that go well: what each side is sent, and what the client gets.
#include "proxy_fixture.h"

namespace tandem::proxy {
namespace {

using namespace std::chrono_literals;
using test::body_of;
using test::eventually;
using test::head_of;
using test::status_of;

TEST_F(ProxyTest, PairsAPrefillerWithADecoder) {
  start_one_each();
  const auto response = ask(kStreamBody);
  EXPECT_EQ(status_of(response), 200) << response;
  EXPECT_NE(head_of(response).find("content-type: text/event-stream; charset=utf-8\r\n"), std::string::npos);
  EXPECT_EQ(body_of(response), kEvents[0] + kEvents[1] + kEvents[2]);

  const auto prefills = p().requests();
  const auto decodes = d().requests();
  ASSERT_EQ(prefills.size(), 1U);
  ASSERT_EQ(decodes.size(), 1U);
  EXPECT_EQ(prefills[0].path, "/v1/completions");
  EXPECT_NE(prefills[0].body.find(R"("max_tokens":1,"stream":false,"min_tokens":1)"), std::string::npos);
  EXPECT_NE(prefills[0].body.find(R"("do_remote_decode":true)"), std::string::npos);
  EXPECT_EQ(decodes[0].body,
            R"({"model":"m","prompt":"Hi","max_tokens":5,"stream":true,"kv_transfer_params":)" + kLease + "}");
  const auto id = prefills[0].headers.find("x-request-id");
  ASSERT_TRUE(id);
  EXPECT_EQ(id->size(), 36U);
  EXPECT_EQ(decodes[0].headers.find("x-request-id"), id) << "both sides must see the same id";
  EXPECT_TRUE(all_scores_zero());
  EXPECT_TRUE(p().releases().empty()) << "the decoder took the KV";
  EXPECT_EQ(metric(R"(tandem:proxy_requests_total{endpoint="/v1/completions",outcome="2xx"})"), 1);
}

TEST_F(ProxyTest, ChatWithoutStreamKeepsTheBodyAndItsLength) {
  auto answer = test::json_answer(R"({"choices":[{"message":{"content":"Paris"}}],"usage":{"completion_tokens":1}})");
  answer.headers = {{"x-backend", "d0"}, {"connection", "keep-alive"}};
  d().set_usual(answer);
  auto prefilled = test::json_answer(kPrefillAnswer);
  prefilled.headers = {{"X-Tandem-Timing", "queue=0.0;prefill=0.000001"}};
  p().set_usual(prefilled);
  start_one_each();
  const auto response = ask(R"({"messages":[]})", "/v1/chat/completions?a=1",
                            "Authorization: Bearer own\r\nX-Tandem-Timing: 1\r\nX-Request-Id: mine\r\n");
  EXPECT_EQ(status_of(response), 200);
  EXPECT_EQ(body_of(response), answer.body);
  EXPECT_NE(response.find("content-length: " + std::to_string(answer.body.size())), std::string::npos);
  EXPECT_NE(response.find("content-type: application/json\r\n"), std::string::npos);
  EXPECT_NE(response.find("x-backend: d0\r\n"), std::string::npos);
  EXPECT_NE(response.find("x-tandem-timing: prefill.queue=0.000000;prefill.prefill=0.000001;prefill.other="),
            std::string::npos)
      << response;
  for (const auto& request : {p().requests().at(0), d().requests().at(0)}) {
    EXPECT_EQ(request.path, "/v1/chat/completions");
    EXPECT_EQ(request.query, "a=1");
    EXPECT_EQ(request.headers.find("authorization"), "Bearer own");
    EXPECT_EQ(request.headers.find("x-tandem-timing"), "1");
    EXPECT_EQ(request.headers.find("x-request-id"), "mine") << "response ids show the client's id";
  }
}

TEST_F(ProxyTest, BytesPassUnchangedWhateverTheTcpBoundaries) {
  // Chunk framing and events cut at places that have nothing to do with each other, as real networks do it.
  const std::string body = "data: {\"a\":1}\n\n: ping\n\n\ndata: \xe4\xbd\xa0\xe5\xa5\xbd\r\n\r\ndata: [DONE]\n\n";
  const auto pause = test::ScriptedPeer::kPause;
  std::string framed = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (std::size_t at = 0; at < body.size(); at += 7) {
    const auto piece = body.substr(at, 7);
    framed += std::to_string(piece.size()) + pause + "\r\n" + piece.substr(0, 3) + pause + piece.substr(3) + "\r\n";
  }
  framed += "0\r\n" + pause + "\r\n";
  // First the proxy asks what it is and what it serves.
  const std::string unknown = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
  test::ScriptedPeer decoder({{unknown}, {unknown}, {framed}});
  use({p().port()}, {decoder.port()});
  start();
  const auto response = ask(kStreamBody);
  EXPECT_EQ(body_of(response), body);
  EXPECT_TRUE(response.ends_with("\r\n0\r\n\r\n"));
}

TEST_F(ProxyTest, PiecesArriveWhenTheyAreMade) {
  auto slow = test::event_stream(kEvents);
  slow.gap = 150ms;
  d().set_usual(slow);
  start_one_each();
  test::RawClient client(port_);
  client.send(test::post_text("/v1/completions", kStreamBody));
  client.read_until("Par");
  const auto first = std::chrono::steady_clock::now();
  client.read_until("is");
  EXPECT_GE(std::chrono::steady_clock::now() - first, 75ms) << "the stream must not be collected";
  client.read_until("0\r\n\r\n");
}

TEST_F(ProxyTest, AClientsOwnTransferParamsAreDroppedAndAPrefillerWithoutParamsMeansLocalPrefill) {
  p().set_usual(test::json_answer(R"({"choices":[],"kv_transfer_params":null})"));
  start_one_each();
  const auto response = ask(R"({"prompt":"x","kv_transfer_params":{"do_remote_prefill":true,"remote_host":"evil"}})");
  EXPECT_EQ(status_of(response), 200);
  EXPECT_EQ(d().requests().at(0).body, R"({"prompt":"x"})");
  EXPECT_EQ(p().requests().at(0).body.find("evil"), std::string::npos);
  EXPECT_EQ(metric("tandem:proxy_local_prefills_total"), 1);
}

TEST_F(ProxyTest, OneTraceGoesThroughBothSides) {
  start_one_each();
  const std::string id = "4bf92f3577b34da6a3ce929d0e0e4736";
  ask(kPlainBody, "/v1/completions", "traceparent: 00-" + id + "-00f067aa0ba902b7-01\r\ntracestate: a=b\r\n");
  ask(kPlainBody, "/v1/completions", "traceparent: nonsense\r\ntracestate: a=b\r\n");
  const auto prefills = p().requests();
  const auto decodes = d().requests();
  for (std::size_t i = 0; i < 2; ++i) {
    const auto parent = prefills.at(i).headers.find("traceparent");
    ASSERT_TRUE(parent);
    EXPECT_EQ(decodes.at(i).headers.find("traceparent"), parent);
    EXPECT_EQ(parent->find(id) != std::string::npos, i == 0) << *parent;
    EXPECT_EQ(prefills[i].headers.find("tracestate").has_value(), i == 0) << "the state belongs to the client's trace";
  }
}

TEST_F(ProxyTest, LoadIsSpreadOverTwoPrefillersAndTwoDecoders) {
  auto slow_prefill = test::json_answer(kPrefillAnswer);
  slow_prefill.delay = 100ms;
  auto slow_stream = test::event_stream(kEvents);
  slow_stream.gap = 200ms;
  for (int i = 0; i < 2; ++i) {
    p(i).set_usual(slow_prefill);
    d(i).set_usual(slow_stream);
  }
  start();
  std::vector<std::unique_ptr<test::RawClient>> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(std::make_unique<test::RawClient>(port_));
    clients.back()->send(test::post_text("/v1/completions", kStreamBody));
  }
  for (auto& client : clients) EXPECT_EQ(status_of(client->read_until("0\r\n\r\n")), 200);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(p(i).requests().size(), 4U);
    EXPECT_EQ(d(i).requests().size(), 4U);
  }
  EXPECT_TRUE(all_scores_zero());
}

TEST_F(ProxyTest, ManyRequestsOverKeptConnections) {
  start();
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      test::RawClient client(port_);
      for (int i = 0; i < 50; ++i) {
        client.send(test::post_text("/v1/completions", kStreamBody));
        if (body_of(client.read_response()) == kEvents[0] + kEvents[1] + kEvents[2]) ++good;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(good, 400);
  EXPECT_EQ(p(0).requests().size() + p(1).requests().size(), 400U);
  EXPECT_TRUE(all_scores_zero());
  EXPECT_EQ(metric("tandem:proxy_prefill_seconds_count"), 400);
}

TEST_F(ProxyTest, StopLetsRunningStreamsFinish) {
  auto slow = test::event_stream(kEvents);
  slow.gap = 500ms;
  d().set_usual(slow);
  start_one_each();
  test::RawClient client(port_);
  client.send(test::post_text("/v1/completions", kStreamBody));
  client.read_until("Par");
  test::RawClient kept(port_);
  std::thread stopping([this] { proxy_->stop(5s); });
  // Not ready first; new requests are refused in so many words, not by a connection that breaks.
  EXPECT_TRUE(eventually([this] { return status_of(get("/health")) == 503; }));
  const auto refused = ask(kPlainBody);
  EXPECT_EQ(status_of(refused), 503) << refused;
  EXPECT_NE(body_of(refused).find("the proxy is stopping"), std::string::npos) << refused;
  EXPECT_NE(refused.find("retry-after: "), std::string::npos);
  kept.send(test::post_text("/v1/completions", kPlainBody));
  EXPECT_EQ(status_of(kept.read_response()), 503) << "on a kept connection too";
  EXPECT_EQ(p().requests().size(), 1U);
  const auto rest = client.read_all();
  EXPECT_NE(rest.find("[DONE]"), std::string::npos);
  stopping.join();
  EXPECT_THROW(test::RawClient late(port_), std::runtime_error);
  EXPECT_TRUE(all_scores_zero());
}

TEST_F(ProxyTest, StopEndsWhatDoesNotFinishInTimeWithAWord) {
  auto endless = test::event_stream({kEvents[0]});
  endless.end = test::Behaviour::End::kHang;
  d().set_usual(endless);
  start_one_each();
  test::RawClient client(port_);
  client.send(test::post_text("/v1/completions", kStreamBody));
  client.read_until("Par");
  const auto begin = std::chrono::steady_clock::now();
  proxy_->stop(200ms);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
  EXPECT_TRUE(test::eventually([this] { return d().num_gone() == 1; })) << "the decoder must be told";
  const auto rest = client.read_all();
  EXPECT_NE(rest.find("data: {\"error\": {\"message\": \"the proxy is stopping"), std::string::npos) << rest;
  EXPECT_EQ(rest.find("[DONE]"), std::string::npos) << rest;
  EXPECT_EQ(metric(R"(tandem:proxy_requests_total{endpoint="/v1/completions",outcome="broken"})"), 1);
  EXPECT_TRUE(all_scores_zero());
}

TEST_F(ProxyTest, StopAnswersThoseWhoHaveNothingYet) {
  d().set_usual(test::hang());
  start_one_each();
  test::RawClient client(port_);
  client.send(test::post_text("/v1/completions", kPlainBody));
  ASSERT_TRUE(test::eventually([this] { return d().num_active() == 1; }));
  proxy_->stop(0s);
  const auto response = client.read_all();
  EXPECT_EQ(status_of(response), 503) << response;
  EXPECT_NE(body_of(response).find("the proxy is stopping"), std::string::npos) << response;
  EXPECT_TRUE(test::eventually([this] { return p().releases().size() == 1; })) << "nobody will fetch its KV";
  EXPECT_TRUE(all_scores_zero());
}

}  // namespace
}  // namespace tandem::proxy
