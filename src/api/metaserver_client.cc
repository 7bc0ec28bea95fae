// SPDX-License-Identifier: Apache-2.0
#include "api/metaserver_client.h"

#include <fmt/format.h>

#include <atomic>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <deque>
#include <map>
#include <thread>
#include <utility>

namespace tandem::api {
namespace {

namespace asio = boost::asio;

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
constexpr std::size_t kMostAnswerBytes = 1U << 20;
constexpr std::size_t kShownAnswerBytes = 200;
constexpr std::size_t kMostClients = 64;  // kept connections to this many metaservers

struct Call {
  engine::AnnouncementId id = 0;
  engine::Announcement announcement;
  std::function<void(Status)> done;
  net::Cancel cancel;
};
using CallPtr = std::shared_ptr<Call>;

class MetaserverClient final : public engine::Announcer {
 public:
  explicit MetaserverClient(const MetaserverOptions& options)
      : options_(options), guard_(asio::make_work_guard(io_)), thread_([this] { io_.run(); }) {}

  /// Ends all calls; their `done` is called.
  ~MetaserverClient() override {
    asio::post(io_, [this] {
      stopping_ = true;
      for (const auto& [id, call] : std::map(calls_)) call->cancel.cancel();
      pump();
      for (const auto& [where, client] : clients_) client->close_idle();
      guard_.reset();
    });
    thread_.join();
  }

  engine::AnnouncementId announce(engine::Announcement announcement, std::function<void(Status)> done) override {
    auto call = std::make_shared<Call>();
    call->id = next_.fetch_add(1);
    call->announcement = std::move(announcement);
    call->done = std::move(done);
    asio::post(io_, [this, call] {
      if (stopping_) call->cancel.cancel();
      calls_.emplace(call->id, call);
      waiting_.push_back(call);
      pump();
    });
    return call->id;
  }

  void cancel(engine::AnnouncementId id) override {
    asio::post(io_, [this, id] {
      const auto found = calls_.find(id);
      if (found == calls_.end()) return;
      const CallPtr call = found->second;
      call->cancel.cancel();
      if (std::erase(waiting_, call) > 0) finish(call, cancelled());
    });
  }

 private:
  // All that follows runs on thread_.

  static Status cancelled() { return {Code::kCancelled, "the call to the metaserver was given up", Scope::kTransfer}; }

  void pump() {
    while (!waiting_.empty() && (stopping_ || in_flight_ < options_.max_in_flight)) {
      const CallPtr call = waiting_.front();
      waiting_.pop_front();
      ++in_flight_;
      asio::co_spawn(io_, run(call), asio::detached);
    }
  }

  void finish(const CallPtr& call, Status result) {
    calls_.erase(call->id);
    call->done(std::move(result));
  }

  net::Task<void> run(CallPtr call) {
    Status result = co_await post(call);
    --in_flight_;
    finish(call, std::move(result));
    pump();
  }

  net::Task<Status> post(CallPtr call) {
    net::Endpoint endpoint(call->announcement.host, call->announcement.port);
    endpoint.tls = call->announcement.tls;
    // Without the query: a proxy may have put a secret there.
    const std::string& target = call->announcement.target;
    const std::string where = fmt::format("metaserver {}://{}{}", endpoint.tls ? "https" : "http", endpoint.to_string(),
                                          target.substr(0, target.find('?')));
    if (endpoint.tls && !options_.tls) co_return Status(Code::kUnsupported, where + ": no TLS here", Scope::kTransfer);
    const auto client = client_of(endpoint);
    asio::steady_timer pause(io_);
    for (int attempt = 1;; ++attempt) {
      net::ClientRequest request = request_of(call->announcement);
      const net::ClientTimeouts limits = timeouts();
      auto answer = co_await client->send(std::move(request), limits, call->cancel);
      if (call->cancel.cancelled()) co_return cancelled();
      if (answer) {
        Status result = co_await result_of(std::move(*answer), where);
        co_return result;
      }
      const bool again = answer.error().scope() == Scope::kPeer && attempt < options_.max_attempts;
      if (!again) co_return answer.error().context(where).with_scope(Scope::kTransfer);
      pause.expires_after(options_.retry_pause * attempt);
      const auto hook = call->cancel.on_cancel([&pause] { pause.cancel(); });
      co_await pause.async_wait(kAwait);
      if (call->cancel.cancelled()) co_return cancelled();
    }
  }

  static net::Task<Status> result_of(std::unique_ptr<net::ClientResponse> answer, std::string where) {
    const int status = answer->status();
    auto text = co_await answer->read_all(kMostAnswerBytes);  // so that the connection can be used again
    if (status >= 200 && status < 300) co_return Status();
    std::string shown = text ? text->substr(0, kShownAnswerBytes) : text.error().message();
    for (char& c : shown)
      if (c < ' ' || c > '~') c = ' ';
    co_return Status(Code::kUnavailable,
                     fmt::format("{} answered {}: the prefill failed or is not known there: {}", where, status, shown),
                     Scope::kTransfer);
  }

  std::shared_ptr<net::HttpClient> client_of(const net::Endpoint& endpoint) {
    if (clients_.size() >= kMostClients) clients_.clear();  // calls in flight keep theirs
    auto& client = clients_[(endpoint.tls ? "https://" : "http://") + endpoint.to_string()];
    if (!client) client = net::HttpClient::create(io_.get_executor(), endpoint, net::ClientLimits{}, options_.tls);
    return client;
  }

  static net::ClientRequest request_of(const engine::Announcement& announcement) {
    net::ClientRequest request("POST", announcement.target);
    request.headers.set("Content-Type", "application/json");
    if (!announcement.traceparent.empty()) request.headers.set("traceparent", announcement.traceparent);
    request.body = announcement.body;
    return request;
  }

  net::ClientTimeouts timeouts() const {
    net::ClientTimeouts limits;
    limits.connect = options_.connect_timeout;
    limits.head = options_.answer_timeout;
    return limits;
  }

  const MetaserverOptions options_;
  std::atomic<engine::AnnouncementId> next_{1};
  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> guard_;
  std::map<engine::AnnouncementId, CallPtr> calls_;
  std::deque<CallPtr> waiting_;
  std::map<std::string, std::shared_ptr<net::HttpClient>> clients_;
  std::size_t in_flight_ = 0;
  bool stopping_ = false;
  std::thread thread_;  ///< last: it uses all of the above
};

}  // namespace

std::unique_ptr<engine::Announcer> start_metaserver_client(const MetaserverOptions& options) {
  return std::make_unique<MetaserverClient>(options);
}

}  // namespace tandem::api
