// SPDX-License-Identifier: Apache-2.0
// Calls to a metaserver over real connections: what is sent, which answers are errors, what is tried again, what a
// cancelled call leaves behind.
#include "api/metaserver_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <optional>

#include "support/net_support.h"

namespace tandem::api {
namespace {

using namespace std::chrono_literals;
using engine::Announcement;
using test::eventually;
using test::ScriptedPeer;
using ::testing::EndsWith;
using ::testing::HasSubstr;

/// Waits for one call's end; counts ends.
class CallEnd {
 public:
  std::function<void(Status)> callback() {
    return [state = state_](Status status) {
      const std::lock_guard lock(state->mutex);
      ++state->count;
      state->status = std::move(status);
      state->changed.notify_all();
    };
  }
  Status wait() {
    std::unique_lock lock(state_->mutex);
    EXPECT_TRUE(state_->changed.wait_for(lock, 10s, [this] { return state_->status.has_value(); }));
    return state_->status.value_or(Status(Code::kInternal, "the call never ended"));
  }
  int count() {
    const std::lock_guard lock(state_->mutex);
    return state_->count;
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<Status> status;
    int count = 0;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

std::string answer(const std::string& status, const std::string& body) {
  return "HTTP/1.1 " + status + "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

Announcement announcement_to(std::uint16_t port) {
  return {.host = "127.0.0.1",
          .port = port,
          .target = "/v1/metaserver?x=1",
          .body = R"({"request_id":"cmpl-a-0"})",
          .traceparent = "00-11-22-01"};
}

TEST(MetaserverClient, PostsAndReusesTheConnection) {
  ScriptedPeer peer({{answer("200 OK", R"({"status":"ok"})"), answer("200 OK", "null")}});
  const auto client = start_metaserver_client({});
  for (int i = 0; i < 2; ++i) {
    CallEnd outcome;
    client->announce(announcement_to(peer.port()), outcome.callback());
    EXPECT_TRUE(outcome.wait().ok()) << outcome.wait().to_string();
  }
  EXPECT_EQ(peer.num_connections(), 1);
  const std::string request = peer.requests().at(0);
  EXPECT_THAT(request, testing::StartsWith("POST /v1/metaserver?x=1 HTTP/1.1\r\n"));
  EXPECT_THAT(request, HasSubstr("Content-Type: application/json\r\n"));
  EXPECT_THAT(request, HasSubstr("traceparent: 00-11-22-01\r\n"));
  EXPECT_THAT(request, EndsWith(R"({"request_id":"cmpl-a-0"})"));
}

TEST(MetaserverClient, EveryOtherStatusIsAnErrorAndNotTriedAgain) {
  for (const std::string status : {"404 Not Found", "500 Error", "502 Bad Gateway", "302 Found"}) {
    SCOPED_TRACE(status);
    ScriptedPeer peer({{answer(status, "no prefiller\n\t could do it" + std::string(1000, 'x'))}});
    const auto client = start_metaserver_client({});
    CallEnd outcome;
    client->announce(announcement_to(peer.port()), outcome.callback());
    EXPECT_EQ(outcome.wait().code(), Code::kUnavailable);
    EXPECT_THAT(outcome.wait().message(), HasSubstr("/v1/metaserver answered " + status.substr(0, 3)));
    EXPECT_THAT(outcome.wait().message(), HasSubstr("no prefiller   could do it"));
    EXPECT_LT(outcome.wait().message().size(), 500U);
    EXPECT_EQ(peer.requests().size(), 1U);
  }
}

TEST(MetaserverClient, NobodyThereIsTriedThreeTimes) {
  std::uint16_t port = 0;
  {
    port = ScriptedPeer({}).port();
  }
  MetaserverOptions options;
  options.retry_pause = 20ms;
  const auto client = start_metaserver_client(options);
  const auto before = std::chrono::steady_clock::now();
  CallEnd outcome;
  client->announce(announcement_to(port), outcome.callback());
  EXPECT_EQ(outcome.wait().code(), Code::kUnavailable);
  EXPECT_THAT(outcome.wait().message(), HasSubstr("metaserver http://127.0.0.1:" + std::to_string(port)));
  EXPECT_GE(std::chrono::steady_clock::now() - before, 60ms) << "pauses of 20 and 40 ms";
}

TEST(MetaserverClient, WhatWasSentIsNeverSentAgain) {
  ScriptedPeer peer({{ScriptedPeer::kReadAndClose}, {answer("200 OK", "")}});
  const auto client = start_metaserver_client({});
  CallEnd outcome;
  client->announce(announcement_to(peer.port()), outcome.callback());
  EXPECT_EQ(outcome.wait().code(), Code::kUnavailable);
  EXPECT_EQ(peer.requests().size(), 1U);
}

TEST(MetaserverClient, AnAnswerThatNeverComesHasADeadline) {
  ScriptedPeer peer({{ScriptedPeer::kHang}});
  MetaserverOptions options;
  options.answer_timeout = 100ms;
  const auto client = start_metaserver_client(options);
  CallEnd outcome;
  client->announce(announcement_to(peer.port()), outcome.callback());
  EXPECT_EQ(outcome.wait().code(), Code::kDeadlineExceeded);
}

TEST(MetaserverClient, CancelClosesTheConnectionAndTheNextInLineGoes) {
  ScriptedPeer peer({{ScriptedPeer::kHang}, {answer("200 OK", "")}});
  MetaserverOptions options;
  options.max_in_flight = 1;
  const auto client = start_metaserver_client(options);
  CallEnd first, queued, last;
  const auto id = client->announce(announcement_to(peer.port()), first.callback());
  const auto queued_id = client->announce(announcement_to(peer.port()), queued.callback());
  client->announce(announcement_to(peer.port()), last.callback());
  ASSERT_TRUE(eventually([&] { return peer.num_hanging() == 1; }));
  EXPECT_EQ(peer.num_connections(), 1) << "one at a time";
  client->cancel(queued_id);
  EXPECT_EQ(queued.wait().code(), Code::kCancelled);
  EXPECT_EQ(last.count(), 0);
  client->cancel(id);
  client->cancel(id);
  client->cancel(12345);
  EXPECT_EQ(first.wait().code(), Code::kCancelled);
  EXPECT_TRUE(last.wait().ok()) << last.wait().to_string();
  EXPECT_TRUE(eventually([&] { return peer.num_closed() >= 1; }));
  EXPECT_EQ(first.count(), 1);
}

TEST(MetaserverClient, TheEndCancelsWhatIsOpen) {
  ScriptedPeer peer({{ScriptedPeer::kHang}});
  MetaserverOptions options;
  options.max_in_flight = 1;
  CallEnd running, queued;
  {
    const auto client = start_metaserver_client(options);
    client->announce(announcement_to(peer.port()), running.callback());
    client->announce(announcement_to(peer.port()), queued.callback());
    ASSERT_TRUE(eventually([&] { return peer.num_hanging() == 1; }));
  }
  EXPECT_EQ(running.wait().code(), Code::kCancelled);
  EXPECT_EQ(queued.wait().code(), Code::kCancelled);
  EXPECT_EQ(running.count() + queued.count(), 2);
}

}  // namespace
}  // namespace tandem::api
