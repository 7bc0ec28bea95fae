// SPDX-License-Identifier: Apache-2.0
// What the proxy costs: latency of one request, requests a second and streamed events a second, direct to a stand-in
// decoder and through the proxy (with a stand-in prefiller before it). Ratios mean more than numbers: clients, proxy
// and stand-ins share the machine.
#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_future.hpp>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "net/http_client.h"
#include "proxy/proxy_server.h"

namespace tandem {
namespace {

using net::Exchange;
using net::Task;
using Steady = std::chrono::steady_clock;

constexpr int kEventsPerStream = 200;

class Thread {
 public:
  Thread() : work_(boost::asio::make_work_guard(io)), thread_([this] { io.run(); }) {}
  ~Thread() {
    io.stop();
    thread_.join();
  }
  boost::asio::io_context io{1};

 private:
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  std::thread thread_;
};

Task<void> answer(std::shared_ptr<Exchange> exchange) {
  const bool prefill = exchange->request().body.find("do_remote_decode\":true") != std::string::npos;
  const bool stream = !prefill && exchange->request().body.find("\"stream\":true") != std::string::npos;
  if (!stream) {
    net::HttpResponse response(
        200, "application/json",
        R"({"choices":[{"text":"x"}],"usage":{"completion_tokens":1},"kv_transfer_params":{"remote_block_ids":[1,2,3]}})");
    (void)co_await exchange->respond(std::move(response));
    co_return;
  }
  net::Headers headers;
  headers.add("content-type", "text/event-stream");
  (void)co_await exchange->begin_stream(200, std::move(headers));
  for (int i = 0; i < kEventsPerStream; ++i) {
    std::string event = R"(data: {"id":"cmpl-1","object":"text_completion","choices":[{"index":0,"text":" word"}]})"
                        "\n\n";
    (void)co_await exchange->write(std::move(event));
  }
  (void)co_await exchange->end_stream();
}

struct Load {
  int clients = 1;
  int requests = 100;  ///< for each client
  std::string body;
};

struct Outcome {
  std::vector<double> seconds;
  std::size_t bytes = 0;
  int failed = 0;
};

Task<void> client_loop(std::shared_ptr<net::HttpClient> client, Load load, Outcome* outcome) {
  for (int i = 0; i < load.requests; ++i) {
    const auto begin = Steady::now();
    net::ClientRequest request("POST", "/v1/completions");
    request.body = load.body;
    auto response = co_await client->send(std::move(request), net::ClientTimeouts(), net::Cancel());
    if (!response) {
      ++outcome->failed;
      continue;
    }
    auto body = co_await (*response)->read_all(64U << 20);
    if (!body || (*response)->status() != 200) ++outcome->failed;
    if (body) outcome->bytes += body->size();
    outcome->seconds.push_back(seconds(Steady::now() - begin));
  }
}

/// Requests a second; also the median latency.
std::pair<double, double> measure(std::uint16_t port, const Load& load) {
  Thread thread;
  auto client =
      net::HttpClient::create(thread.io.get_executor(), net::Endpoint("127.0.0.1", port), net::ClientLimits());
  std::vector<Outcome> outcomes(static_cast<std::size_t>(load.clients));
  std::vector<std::future<void>> futures;
  const auto begin = Steady::now();
  for (auto& outcome : outcomes) {
    futures.push_back(boost::asio::co_spawn(thread.io, client_loop(client, load, &outcome), boost::asio::use_future));
  }
  for (auto& future : futures) future.get();
  const double took = seconds(Steady::now() - begin);
  std::vector<double> all;
  int failed = 0;
  for (const auto& outcome : outcomes) {
    all.insert(all.end(), outcome.seconds.begin(), outcome.seconds.end());
    failed += outcome.failed;
  }
  if (failed > 0 || all.empty()) {
    std::fprintf(stderr, "error: %d requests failed\n", failed);
    std::exit(1);
  }
  std::nth_element(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2), all.end());
  return {static_cast<double>(all.size()) / took, all[all.size() / 2]};
}

void report(const char* what, std::uint16_t direct, std::uint16_t proxied, const Load& load, int events) {
  double best[2][2] = {{0, 1e9}, {0, 1e9}};
  for (int round = 0; round < 3; ++round) {  // turn and turn about, so that a noisy moment hits both
    int side = 0;
    for (const auto port : {direct, proxied}) {
      const auto [rate, median] = measure(port, load);
      best[side][0] = std::max(best[side][0], rate);
      best[side][1] = std::min(best[side][1], median);
      ++side;
    }
  }
  const double per = events > 0 ? events : 1;
  std::printf("%-34s direct %9.0f /s, median %7.3f ms   proxy %9.0f /s, median %7.3f ms\n", what, best[0][0] * per,
              best[0][1] * 1e3, best[1][0] * per, best[1][1] * 1e3);
}

int run() {
  log::configure(log::Level::kWarning, "");
  Thread backends;
  auto server = net::HttpServer::create(backends.io.get_executor(), net::ServerLimits());
  server->route("POST", "/v1/completions", answer);
  const auto backend = server->listen("127.0.0.1", 0);
  if (!backend) {
    std::fprintf(stderr, "error: %s\n", backend.error().message().c_str());
    return 1;
  }
  config::ProxyConfig config;
  config.host = "127.0.0.1";
  config.port = 0;
  config.prefillers = {{"127.0.0.1", *backend}};
  config.decoders = {{"127.0.0.1", *backend}};
  obs::Registry registry;
  proxy::ProxyServer proxy(config, registry);
  const auto port = proxy.start();
  if (!port) {
    std::fprintf(stderr, "error: %s\n", port.error().message().c_str());
    return 1;
  }
  const std::string prompt(2000, 'a');
  Load load;
  load.body = R"({"model":"m","max_tokens":16,"prompt":")" + prompt + "\"}";
  load.requests = 1000;
  report("requests, one at a time", *backend, *port, load, 0);
  load.clients = 32;
  load.requests = 200;
  report("requests, 32 clients", *backend, *port, load, 0);
  load.body = R"({"model":"m","stream":true,"prompt":")" + prompt + "\"}";
  load.requests = 10;
  report("streamed events, 32 clients", *backend, *port, load, kEventsPerStream);
  proxy.stop(std::chrono::milliseconds(0));
  std::promise<void> stopped;
  boost::asio::post(backends.io, [&] {
    server.reset();
    stopped.set_value();
  });
  stopped.get_future().wait();
  return 0;
}

}  // namespace
}  // namespace tandem

int main() { return tandem::run(); }
