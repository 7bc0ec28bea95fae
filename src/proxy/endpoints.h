// SPDX-License-Identifier: Apache-2.0
// The proxy's endpoints other than the completions: about instances, not about pairs.
#pragma once

#include <memory>

#include "net/http_server.h"
#include "proxy/proxy_context.h"

namespace tandem::proxy {

/// Adds all of them to the server.
void add_endpoints(net::HttpServer& server, const std::shared_ptr<ProxyContext>& context);

}  // namespace tandem::proxy
