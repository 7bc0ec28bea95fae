// SPDX-License-Identifier: Apache-2.0
// The OpenAI endpoints of one instance. Everything runs on the HTTP server's thread, but for large bodies, which are
// parsed and tokenised on a helper thread, so that /health answers meanwhile.
#pragma once

#include <memory>

#include "api/context.h"
#include "net/http_server.h"

namespace tandem::api {

class Service {
 public:
  Service(const config::ServeConfig& config, ServiceParts parts);
  /// Adds the routes. Handlers share the context, so they may outlive the service, but not the engine.
  void install(net::HttpServer& server);

 private:
  std::shared_ptr<Context> context_;
};

}  // namespace tandem::api
