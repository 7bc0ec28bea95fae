// SPDX-License-Identifier: Apache-2.0
// Who may ask what: API keys, and what browsers may do from other origins (CORS). Spec: vllm_api.md 1, 1.1.
#pragma once

#include <string_view>

#include "config/serve_config.h"
#include "net/http_server.h"

namespace tandem::api {

/// Whether a path is behind --api-key: /v1 as in vLLM, and whatever else generates or changes what the server holds.
bool needs_key(std::string_view path);

/// Headers of an answer to a request that has an Origin.
void add_cors_headers(const config::ServeConfig& config, const net::HttpRequest& request, net::Headers& headers);
/// What a browser asks before a request from another origin that is not a simple one, whatever its path.
bool is_preflight(const net::HttpRequest& request);
/// Its answer but for the headers above, as Starlette makes it.
net::HttpResponse preflight_answer(const config::ServeConfig& config, const net::HttpRequest& request);

}  // namespace tandem::api
