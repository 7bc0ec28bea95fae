// SPDX-License-Identifier: Apache-2.0
#include "bench/load_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/json.hpp>
#include <mutex>

#include "support/net_support.h"

namespace tandem::bench {
namespace {

using test::IoThread;
using ::testing::Each;
using ::testing::HasSubstr;

/// A server on a thread of its own: three events with 20 ms between them. What it does otherwise, the model's name
/// says: "refuse", "break" (closes in the middle), "silent" (answers nothing).
class StandIn {
 public:
  StandIn() {
    port_ = io_.call([this] {
      server_ = net::HttpServer::create(io_.executor(), net::ServerLimits());
      server_->route("POST", "/v1/completions", [this](auto exchange) { return answer(std::move(exchange)); });
      server_->route("GET", "/v1/models", [this](auto exchange) { return models(std::move(exchange)); });
      return server_->listen("127.0.0.1", 0).value();
    });
  }
  ~StandIn() {
    io_.call([this] {
      server_.reset();
      return 0;
    });
  }

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  int most_at_once() const { return most_; }
  std::vector<net::HttpRequest> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  net::Task<void> pause() {
    boost::asio::steady_timer timer(io_.context());
    timer.expires_after(std::chrono::milliseconds(20));
    co_await timer.async_wait(boost::asio::use_awaitable);
  }
  net::Task<void> models(std::shared_ptr<net::Exchange> exchange) {
    net::HttpResponse response(200, "application/json", R"({"data":[{"id":"m","root":"/models/m"},{"id":"n"}]})");
    (void)co_await exchange->respond(std::move(response));
  }
  net::Task<void> answer(std::shared_ptr<net::Exchange> exchange) {
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(exchange->request());
    }
    most_ = std::max(most_.load(), ++active_);
    const std::string model(boost::json::parse(exchange->request().body).at("model").as_string());
    if (model == "refuse") {
      net::HttpResponse response(400, "application/json", R"({"error":{"message":"no such field"}})");
      (void)co_await exchange->respond(std::move(response));
    } else {
      net::Headers headers;
      headers.add("content-type", "text/event-stream");
      (void)co_await exchange->begin_stream(200, std::move(headers));
      for (int i = 0; i < 3; ++i) {
        co_await pause();
        if (model == "silent") continue;
        std::string event = "data: {\"choices\":[{\"index\":0,\"text\":\"x\"}]}\n\n";
        (void)co_await exchange->write(std::move(event));
        if (model == "break") exchange->abandon();
      }
      if (model != "break") {
        std::string end = "data: {\"choices\":[],\"usage\":{\"completion_tokens\":3}}\n\n: note\n\ndata: [DONE]\n\n";
        (void)co_await exchange->write(std::move(end));
        (void)co_await exchange->end_stream();
      }
    }
    --active_;
  }

  IoThread io_;
  std::unique_ptr<net::HttpServer> server_;
  std::uint16_t port_ = 0;
  std::atomic<int> active_{0}, most_{0};
  mutable std::mutex mutex_;
  std::vector<net::HttpRequest> requests_;
};

class LoadRuns : public ::testing::Test {
 protected:
  LoadRuns() {
    config_.base_url = server_.url();
    config_.request_id_prefix = "run-";
    config_.show_progress = false;
  }
  LoadRun::Outcome run(const std::string& model, std::size_t count, double gap = 0.0) {
    boost::asio::io_context io(1);
    auto target = Target::create(io.get_executor(), config_);
    EXPECT_TRUE(target) << target.error().message();
    const std::vector<Sample> samples(count, Sample{"prompt", 4, 3});
    std::vector<double> due;
    for (std::size_t i = 0; i < count; ++i) due.push_back(gap * static_cast<double>(i));
    boost::asio::steady_timer canceller(io);
    if (cancel_after_ > Duration::zero()) {
      canceller.expires_after(cancel_after_);
      canceller.async_wait([this](const auto&) { cancel_.cancel(); });
    }
    return LoadRun(io, **target, config_, model, samples, due, cancel_).run();
  }

  StandIn server_;
  config::BenchConfig config_;
  net::Cancel cancel_;
  Duration cancel_after_{};
};

TEST_F(LoadRuns, AllAtOnce) {
  const auto outcome = run("m", 50);
  ASSERT_EQ(outcome.records.size(), 50u);
  for (const StreamRecord& record : outcome.records) {
    ASSERT_TRUE(record.success) << record.error;
    EXPECT_EQ(record.output_tokens, 3);
    EXPECT_EQ(record.prompt_tokens, 4);
    EXPECT_EQ(record.itls.size(), 2u);
    EXPECT_GE(record.ttft, 0.02);
    EXPECT_GE(record.latency, 0.06);
    EXPECT_LE(record.latency, outcome.duration);
    EXPECT_EQ(record.text, "") << "not kept where the server counts the tokens";
  }
  EXPECT_GT(server_.most_at_once(), 10);
  EXPECT_LT(outcome.duration, 50 * 0.06);
}

TEST_F(LoadRuns, MaxConcurrencyHolds) {
  config_.max_concurrency = 3;
  const auto outcome = run("m", 12);
  EXPECT_LE(server_.most_at_once(), 3);
  EXPECT_GE(outcome.duration, 4 * 0.06);
  for (const StreamRecord& record : outcome.records) {
    EXPECT_TRUE(record.success) << record.error;
    EXPECT_LT(record.ttft, 0.06) << "the clock starts when a request is sent, not when it is due";
  }
}

TEST_F(LoadRuns, RequestsAreSentWhenTheyAreDue) {
  const auto outcome = run("m", 5, 0.05);
  for (std::size_t i = 1; i < 5; ++i) {
    const double gap = seconds(outcome.records[i].start - outcome.records[0].start);
    EXPECT_GE(gap, 0.05 * static_cast<double>(i) - 0.02);
  }
}

TEST_F(LoadRuns, HeadersAndIds) {
  config_.api_key = "secret";
  config_.headers = {{"x-more", "1"}, {"Content-Type", "application/json; charset=utf-8"}};
  run("m", 2);
  const auto requests = server_.requests();
  ASSERT_EQ(requests.size(), 2u);
  std::vector<std::string> ids;
  for (const net::HttpRequest& request : requests) {
    EXPECT_EQ(request.headers.find("authorization"), "Bearer secret");
    EXPECT_EQ(request.headers.find("x-more"), "1");
    EXPECT_EQ(request.headers.find("content-type"), "application/json; charset=utf-8");
    ids.emplace_back(request.headers.find("x-request-id").value_or(""));
  }
  EXPECT_THAT(ids, ::testing::UnorderedElementsAre("run-0", "run-1"));
}

TEST_F(LoadRuns, FailuresAreCountedAndSayWhy) {
  for (const auto& [model, why] : std::vector<std::pair<std::string, std::string>>{
           {"refuse", "HTTP 400 Bad Request: {\"error\":{\"message\":\"no such field\"}}"},
           {"break", "closed"},
           {"silent", "without an event that has choices"}}) {
    for (const StreamRecord& record : run(model, 2).records) {
      EXPECT_FALSE(record.success) << model;
      EXPECT_THAT(record.error, HasSubstr(why));
    }
  }
}

TEST_F(LoadRuns, NobodyListens) {
  config_.base_url = "http://127.0.0.1:1";
  for (const StreamRecord& record : run("m", 2).records) {
    EXPECT_FALSE(record.success);
    EXPECT_EQ(record.status, 0);
    EXPECT_THAT(record.error, HasSubstr("127.0.0.1:1"));
  }
}

TEST_F(LoadRuns, AnInterruptedRunLosesNoRequest) {
  config_.max_concurrency = 2;
  cancel_after_ = std::chrono::milliseconds(90);
  const auto outcome = run("m", 40, 0.01);
  EXPECT_LT(outcome.duration, 0.4);
  std::size_t good = 0, broken = 0, unsent = 0;
  for (const StreamRecord& record : outcome.records) {
    if (record.success) ++good;
    if (record.error.find("cancelled") != std::string::npos) ++broken;
    if (record.error.find("not sent") != std::string::npos) ++unsent;
  }
  EXPECT_GE(good, 1u);
  EXPECT_GE(broken, 1u);
  EXPECT_EQ(good + broken + unsent, 40u);
}

net::Task<bool> fetch_models(Target* target, Result<std::vector<ServedModel>>* models) {
  *models = co_await target->models(net::Cancel());
  co_return true;
}

TEST(Targets, ModelsAndTheirRoots) {
  StandIn server;
  config::BenchConfig config;
  config.base_url = server.url();
  IoThread io;
  auto target = io.call([&] { return Target::create(io.executor(), config); });
  ASSERT_TRUE(target);
  Result<std::vector<ServedModel>> models = std::vector<ServedModel>();
  io.run(fetch_models(target->get(), &models));
  io.call([&] {
    target->reset();
    return 0;
  });
  ASSERT_TRUE(models) << models.error().message();
  ASSERT_EQ(models->size(), 2u);
  EXPECT_EQ(models->at(0).id, "m");
  EXPECT_EQ(models->at(0).root, "/models/m");
  EXPECT_EQ(models->at(1).root, "");
}

TEST(Targets, ABadUrlNamesItsFlag) {
  boost::asio::io_context io(1);
  config::BenchConfig config;
  config.base_url = "ftp://x";
  const auto target = Target::create(io.get_executor(), config);
  ASSERT_FALSE(target);
  EXPECT_THAT(target.error().message(), HasSubstr("--base-url"));
}

}  // namespace
}  // namespace tandem::bench
