// SPDX-License-Identifier: Apache-2.0
// Two small programs in one for bench/api/run.py:
//   api_overhead_bench bare PERIOD_MS   a server that does nothing but HTTP: fixed events or one fixed answer, as many
//   as
//                                       max_tokens says, PERIOD_MS apart. What no server can be faster than. Prints its
//                                       port; ends with its standard input.
//   api_overhead_bench ask PORT ROUNDS  asks one request at a time, each way in turn, and prints the median latency of
//                                       each way as one JSON object a line.
#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "net/http_client.h"
#include "net/http_server.h"

namespace tandem {
namespace {

using net::Exchange;
using net::Task;
using Steady = std::chrono::steady_clock;

// Shapes and sizes as the real server's.
constexpr std::string_view kEvent =
    R"(data: {"id":"cmpl-0123456789abcdef0123456789abcdef","object":"text_completion","created":1764500000,"model":"m",)"
    R"("choices":[{"index":0,"text":" word","logprobs":null,"finish_reason":null,"stop_reason":null}]})"
    "\n\n";
constexpr std::string_view kAnswer =
    R"({"id":"cmpl-0123456789abcdef0123456789abcdef","object":"text_completion","created":1764500000,"model":"m",)"
    R"("choices":[{"index":0,"text":" word","logprobs":null,"finish_reason":"length","stop_reason":null}],)"
    R"("usage":{"prompt_tokens":1,"total_tokens":2,"completion_tokens":1}})";

int number_after(const std::string& body, std::string_view key) {
  const std::size_t at = body.find(key);
  int number = 1;
  if (at != std::string::npos) std::from_chars(body.data() + at + key.size(), body.data() + body.size(), number);
  return number;
}

class BareServer {
 public:
  explicit BareServer(std::chrono::milliseconds period) : period_(period) {}

  Task<void> answer(std::shared_ptr<Exchange> exchange) {
    const std::string& body = exchange->request().body;
    if (body.find("\"stream\":true") == std::string::npos) {
      net::HttpResponse response(200, "application/json", std::string(kAnswer));
      (void)co_await exchange->respond(std::move(response));
      co_return;
    }
    const int count = number_after(body, "\"max_tokens\":");
    net::Headers headers;
    headers.add("content-type", "text/event-stream; charset=utf-8");
    (void)co_await exchange->begin_stream(200, std::move(headers));
    boost::asio::steady_timer timer(exchange->executor());
    const auto begin = Steady::now();
    for (int i = 0; i < count; ++i) {
      if (period_.count() > 0) {
        timer.expires_at(begin + (i + 1) * period_);
        co_await timer.async_wait(boost::asio::use_awaitable);
      }
      std::string event(kEvent);
      (void)co_await exchange->write(std::move(event));
    }
    std::string end =
        fmt::format("data: {{\"choices\":[],\"usage\":{{\"completion_tokens\":{}}}}}\n\ndata: [DONE]\n\n", count);
    (void)co_await exchange->write(std::move(end));
    (void)co_await exchange->end_stream();
  }

 private:
  std::chrono::milliseconds period_;
};

int serve_bare(int period_ms) {
  boost::asio::io_context io(1);
  BareServer bare{std::chrono::milliseconds(period_ms)};
  auto server = net::HttpServer::create(io.get_executor(), net::ServerLimits());
  for (const char* path : {"/v1/completions", "/v1/chat/completions"})
    server->route("POST", path, [&bare](auto exchange) { return bare.answer(std::move(exchange)); });
  const auto port = server->listen("127.0.0.1", 0);
  if (!port) {
    std::fprintf(stderr, "error: %s\n", port.error().message().c_str());
    return 1;
  }
  std::printf("%u\n", unsigned{*port});
  std::fflush(stdout);
  std::thread end([&io] {
    while (std::getchar() != EOF) {
    }
    io.stop();
  });
  io.run();
  end.join();
  return 0;
}

/// A way to ask: which endpoint, whole or streamed, how long the prompt and the answer are.
struct Way {
  bool chat = false, stream = false;
  int prompt_words = 0, tokens = 0;
  std::vector<double> seconds;

  std::string body(int round) const {
    // The beginning differs, so that nothing is found in a prefix cache.
    std::string prompt = fmt::format("Question {} of {}:", round, prompt_words);
    for (int i = 0; i < prompt_words; ++i) prompt += " river";
    const std::string question = chat ? fmt::format(R"("messages":[{{"role":"user","content":"{}"}}])", prompt)
                                      : fmt::format(R"("prompt":"{}")", prompt);
    return fmt::format(R"({{"model":"m",{},"max_tokens":{},"temperature":0,"ignore_eos":true{}}})", question, tokens,
                       stream ? R"(,"stream":true)" : "");
  }
};

Task<void> ask_in_turns(std::shared_ptr<net::HttpClient> client, std::vector<Way>* ways, int rounds, bool* failed) {
  for (int round = 0; round < rounds && !*failed; ++round) {
    for (Way& way : *ways) {
      net::ClientRequest request("POST", way.chat ? "/v1/chat/completions" : "/v1/completions");
      request.headers.add("content-type", "application/json");
      request.body = way.body(round);
      const auto begin = Steady::now();
      auto response = co_await client->send(std::move(request), net::ClientTimeouts(), net::Cancel());
      if (!response) {
        std::fprintf(stderr, "error: %s\n", response.error().message().c_str());
        *failed = true;
        co_return;
      }
      const auto body = co_await (*response)->read_all(64U << 20);
      way.seconds.push_back(seconds(Steady::now() - begin));
      if (!body || (*response)->status() != 200) {
        std::fprintf(stderr, "error: HTTP %d: %s\n", (*response)->status(),
                     body ? body->substr(0, 300).c_str() : body.error().message().c_str());
        *failed = true;
        co_return;
      }
    }
  }
}

int ask(std::uint16_t port, int rounds) {
  std::vector<Way> ways;
  for (const bool chat : {false, true})
    for (const bool stream : {false, true})
      for (const auto& [prompt_words, tokens] : {std::pair{64, 1}, std::pair{64, 129}, std::pair{1088, 1}})
        ways.push_back(Way{chat, stream, prompt_words, tokens, {}});
  boost::asio::io_context io(1);
  auto client = net::HttpClient::create(io.get_executor(), net::Endpoint("127.0.0.1", port), net::ClientLimits());
  bool failed = false;
  boost::asio::co_spawn(io, ask_in_turns(client, &ways, rounds, &failed),
                        [&io](const std::exception_ptr&) { io.stop(); });
  io.run();
  if (failed) return 1;
  for (Way& way : ways) {
    const auto middle = way.seconds.begin() + static_cast<std::ptrdiff_t>(way.seconds.size() / 2);
    std::nth_element(way.seconds.begin(), middle, way.seconds.end());
    std::printf("{\"chat\": %s, \"stream\": %s, \"prompt_words\": %d, \"tokens\": %d, \"p50_us\": %.1f}\n",
                way.chat ? "true" : "false", way.stream ? "true" : "false", way.prompt_words, way.tokens,
                *middle * 1e6);
  }
  return 0;
}

int run(int count, char** arguments) {
  log::configure(log::Level::kWarning, "");
  const std::string what = count > 1 ? arguments[1] : "";
  if (what == "bare" && count == 3) return serve_bare(std::atoi(arguments[2]));
  if (what == "ask" && count == 4)
    return ask(static_cast<std::uint16_t>(std::atoi(arguments[2])), std::atoi(arguments[3]));
  std::fprintf(stderr, "usage: api_overhead_bench bare PERIOD_MS | ask PORT ROUNDS\n");
  return 2;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) { return tandem::run(argc, argv); }
