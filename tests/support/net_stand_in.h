// SPDX-License-Identifier: Apache-2.0
// Stands in for a prefiller or decoder: an HTTP server that records what it is asked and answers as it is told.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "net/http_server.h"
#include "support/net_support.h"

namespace tandem::test {

/// How one request is answered.
struct Behaviour {
  enum class End : std::uint8_t {
    kProper,
    kBreak,  ///< the connection closes in the middle of the answer
    kHang,   ///< nothing more until the client leaves
  };
  int status = 200;
  std::string type = "application/json";
  std::string body;                    ///< a whole answer, unless there are pieces
  std::vector<std::string> pieces;     ///< a chunked answer, one chunk each
  std::size_t content_length = 0;      ///< with pieces: promised instead of chunks
  End end = End::kProper;              ///< with kHang and no pieces not even a head is sent
  std::chrono::milliseconds delay{0};  ///< before the head
  std::chrono::milliseconds gap{0};    ///< between pieces
  std::vector<std::pair<std::string, std::string>> headers;
};

Behaviour json_answer(std::string body);
Behaviour error_answer(int status, std::string body);
Behaviour event_stream(std::vector<std::string> pieces);
Behaviour hang();

class StandIn {
 public:
  explicit StandIn(IoThread& io, Behaviour usual);
  ~StandIn();
  StandIn(const StandIn&) = delete;
  StandIn& operator=(const StandIn&) = delete;

  std::uint16_t port() const { return port_; }
  std::string name() const { return "127.0.0.1:" + std::to_string(port_); }
  void set_usual(Behaviour usual);
  /// The next requests are answered like this, then as usual.
  void then(Behaviour behaviour);
  /// Answers GET /tandem/info like an instance with this connector; without it, like a foreign one (404).
  void set_connector(std::string name, std::string kv_role = "kv_both");
  /// The answer to GET /v1/models.
  void set_models(std::string body);
  void set_release_status(std::deque<int> statuses);

  std::vector<net::HttpRequest> requests() const;  ///< completions of both kinds
  std::vector<net::HttpRequest> releases() const;  ///< POST /tandem/release
  std::vector<net::HttpRequest> others() const;    ///< everything else but /health and /v1/models
  int num_models_asked() const;                    ///< GET /v1/models
  int num_active() const;
  int num_gone() const;  ///< clients that left before their answer was over

 private:
  net::Task<void> complete(std::shared_ptr<net::Exchange> exchange);
  net::Task<void> release(std::shared_ptr<net::Exchange> exchange);
  net::Task<void> info(std::shared_ptr<net::Exchange> exchange);
  net::Task<void> other(std::shared_ptr<net::Exchange> exchange);
  net::Task<void> play(std::shared_ptr<net::Exchange> exchange, Behaviour behaviour);

  IoThread& io_;
  std::unique_ptr<net::HttpServer> server_;
  std::uint16_t port_ = 0;
  mutable std::mutex mutex_;
  Behaviour usual_;
  std::deque<Behaviour> next_;
  std::deque<int> release_statuses_;
  std::string connector_, kv_role_, models_;
  std::vector<net::HttpRequest> requests_, releases_, others_;
  int active_ = 0;
  int gone_ = 0;
  int num_models_asked_ = 0;
};

}  // namespace tandem::test
