// SPDX-License-Identifier: Apache-2.0
// The engine requests behind one HTTP request: queues them, brings their outputs from the engine's thread to the
// server's, and ends all of them when the client leaves.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "api/refusal.h"
#include "engine/engine.h"
#include "net/http_server.h"

namespace tandem::api {

class Generation {
 public:
  struct News {
    std::size_t choice = 0;
    engine::Output output;
  };

  /// Queues all requests, or none (those queued before a refused one are aborted). `engine` outlives the
  /// generation; `executor` is the server's thread, where everything here happens.
  static Outcome<std::unique_ptr<Generation>> start(engine::Engine& engine, boost::asio::any_io_executor executor,
                                                    std::vector<engine::GenerationRequest> requests);
  /// Aborts what is not finished.
  ~Generation();
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  /// The next output; nullopt once all choices had their last one, or after cancel(). When the engine dies without a
  /// last word, an output with an error comes in its place.
  net::Task<std::optional<News>> next();
  /// Aborts everything and wakes next(). Hand-overs that still arrive are given up.
  void cancel();
  bool cancelled() const;

 private:
  struct Inbox;
  explicit Generation(std::shared_ptr<Inbox> inbox) : inbox_(std::move(inbox)) {}

  std::shared_ptr<Inbox> inbox_;  ///< the engine's sinks know it weakly
  std::vector<engine::RequestHandle> handles_;
};

}  // namespace tandem::api
