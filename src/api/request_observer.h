// SPDX-License-Identifier: Apache-2.0
// What a server tells of every HTTP request: uvicorn's access log, and the http_* series of vLLM's web instrumentation.
#pragma once

#include "config/serve_config.h"
#include "net/http_server.h"
#include "obs/metrics.h"

namespace tandem::api {

/// `registry` must outlive the server.
net::ServerObserver make_request_observer(const config::ServeConfig& config, obs::Registry& registry);

}  // namespace tandem::api
