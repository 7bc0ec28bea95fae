// SPDX-License-Identifier: Apache-2.0
// The OpenAI endpoints of one instance. Everything runs on the HTTP server's thread; tokenising and templates too (they
// are bounded: Context::max_text_bytes), so that /health answers within the time of the longest prompt's tokenisation.
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
