// SPDX-License-Identifier: Apache-2.0
// A line of the log for each HTTP request, when its answer begins, as uvicorn writes it:
// 127.0.0.1:45678 - "POST /v1/completions HTTP/1.1" 200 OK
#pragma once

#include <string_view>

#include "net/http_server.h"

namespace tandem::net {

/// For ServerObserver::answered. Without `with_query` what stands behind a path's '?' is left out: it may be a secret.
void log_answered(const HttpRequest& request, std::string_view version, int status, bool with_query = true);

}  // namespace tandem::net
