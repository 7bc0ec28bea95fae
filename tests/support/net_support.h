// SPDX-License-Identifier: Apache-2.0
// For tests of net and proxy: an io_context with its thread, and a plain blocking TCP client that can do all the things
// that well-behaved HTTP libraries do not.
#pragma once

#include <atomic>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_future.hpp>
#include <chrono>
#include <functional>
#include <future>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "net/http_server.h"

namespace tandem::test {

/// Runs an io_context on a thread of its own. Everything of net happens there; tests hand work over.
class IoThread {
 public:
  IoThread() : work_(boost::asio::make_work_guard(io_)), thread_([this] { io_.run(); }) {}
  ~IoThread() {
    work_.reset();
    io_.stop();
    thread_.join();
  }
  IoThread(const IoThread&) = delete;
  IoThread& operator=(const IoThread&) = delete;

  boost::asio::any_io_executor executor() { return io_.get_executor(); }
  boost::asio::io_context& context() { return io_; }

  /// Runs a coroutine there and waits for its value; throws std::runtime_error after 20 s.
  template <class T>
  T run(net::Task<T> task) {
    auto future = boost::asio::co_spawn(io_, std::move(task), boost::asio::use_future);
    if (future.wait_for(std::chrono::seconds(20)) != std::future_status::ready) {
      throw std::runtime_error("a coroutine did not end within 20 s");
    }
    return future.get();
  }
  /// Runs a function there and waits for its value.
  template <class F>
  auto call(F function) {
    auto task = std::make_shared<std::packaged_task<decltype(function())()>>(std::move(function));
    auto future = task->get_future();
    boost::asio::post(io_, [task] { (*task)(); });
    return future.get();
  }

 private:
  boost::asio::io_context io_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  std::thread thread_;
};

/// Waits until the condition holds; false after the time is over.
inline bool eventually(const std::function<bool()>& condition,
                       std::chrono::milliseconds within = std::chrono::milliseconds(5000)) {
  const auto until = std::chrono::steady_clock::now() + within;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

/// A blocking client; every read gives up after 10 s.
class RawClient {
 public:
  explicit RawClient(std::uint16_t port);
  ~RawClient();
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  void send(std::string_view bytes);
  void shutdown_send();
  void close();
  /// Closes so that the peer sees a reset.
  void reset();
  /// Reads until the text has come (inclusive); what has come if the peer closed or time is over.
  std::string read_until(std::string_view text);
  /// Reads until the peer closes.
  std::string read_all();
  /// Bytes that come within a time, at least one unless nothing came.
  std::string read_some(std::chrono::milliseconds within);
  /// One response with Content-Length or chunked framing, head and raw body.
  std::string read_response();
  bool closed_by_peer() const { return peer_closed_; }

 private:
  bool fill(std::chrono::milliseconds within);

  int fd_ = -1;
  bool peer_closed_ = false;
  std::string buffer_;
};

/// A server that plays one script per accepted connection. A script is a list of answers: each is sent after one whole
/// request was read. Marks inside an answer make it stop, close or wait.
class ScriptedPeer {
 public:
  static const std::string kClose;         ///< close the connection here
  static const std::string kReadAndClose;  ///< as a whole answer: read a request, then close
  static const std::string kPause;         ///< 30 ms, so that what follows is a segment of its own
  static const std::string kHang;          ///< say nothing until the client closes
  static const std::string kDrip;          ///< one byte every 50 ms until the client closes

  explicit ScriptedPeer(std::vector<std::vector<std::string>> scripts);
  ~ScriptedPeer();
  ScriptedPeer(const ScriptedPeer&) = delete;
  ScriptedPeer& operator=(const ScriptedPeer&) = delete;

  std::uint16_t port() const { return port_; }
  int num_connections() const { return num_connections_; }
  int num_closed() const { return num_closed_; }
  int num_hanging() const { return num_hanging_; }
  std::vector<std::string> requests() const;

 private:
  void serve(int fd, const std::vector<std::string>& script);
  bool send_answer(int fd, std::string_view answer);
  void wait_for_close(int fd, bool drip);

  int listener_ = -1;
  std::uint16_t port_ = 0;
  std::vector<std::vector<std::string>> scripts_;
  std::atomic<bool> stopping_{false};
  std::atomic<int> num_connections_{0};
  std::atomic<int> num_closed_{0};
  std::atomic<int> num_hanging_{0};
  mutable std::mutex mutex_;
  std::vector<std::string> requests_;
  std::thread thread_;
};

/// "POST path" with a JSON body, ready to be sent raw.
std::string post_text(std::string_view path, std::string_view body, std::string_view extra_headers = "");
/// Head and body of a response as read_response() gives it.
int status_of(std::string_view response);
std::string body_of(std::string_view response);
std::string head_of(std::string_view response);
/// Body of a chunked response with its framing taken away.
std::string dechunk(std::string_view framed);

}  // namespace tandem::test
