// SPDX-License-Identifier: Apache-2.0
// The OpenAI endpoints of one instance. Everything runs on the HTTP server's thread, but for large bodies, which are
// parsed and tokenised on a helper thread, so that /health answers meanwhile.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "api/context.h"
#include "net/http_server.h"

namespace tandem::api {

class Service {
 public:
  Service(const config::ServeConfig& config, ServiceParts parts);
  /// Adds the routes. Handlers share the context, so they may outlive the service, but not the engine.
  void install(net::HttpServer& server);
  /// The list of routes as vLLM writes it when it starts: scripts look for it.
  void log_routes() const;
  /// A process of the instance came or went (ServiceParts::instance_view). On the server's thread.
  void instance_changed();
  /// From here on requests that generate, and questions about health, get 503 with Retry-After: whoever routes goes
  /// elsewhere. All else is answered as before, since decoders still fetch and release what they were promised. On the
  /// server's thread.
  void begin_drain();
  /// Nothing is left to wait for: no answer under way, no request in the engine, no KV kept for a decoder.
  bool drained() const;

 private:
  std::shared_ptr<Context> context_;
};

/// For a server that listens before its service is there: the usual paths answer 503 and say what it waits for. A
/// service that is installed later takes their place.
void install_starting(net::HttpServer& server, const config::ServeConfig& config,
                      std::function<std::string()> waiting_for);

}  // namespace tandem::api
