// SPDX-License-Identifier: Apache-2.0
// What passes a proxy and what does not: headers, ids, and error bodies in OpenAI's form.
#pragma once

#include <string>
#include <string_view>

#include "config/proxy_config.h"
#include "net/http_server.h"

namespace tandem::proxy {

/// The client's headers for a backend: without hop-by-hop fields (and those that Connection names), Host,
/// Content-Length, Expect and Accept-Encoding. X-Request-Id is the attempt's. The client's own Content-Type (instances
/// refuse what is not JSON) stays, and its Authorization unless there is an instance_api_key; without one the
/// fallback_api_key is sent, if there is one.
net::Headers backend_headers(const net::Headers& client, std::string_view request_id,
                             const config::ProxyConfig& config);

/// Random, in the form of RFC 4122 with dashes.
std::string make_uuid();
/// Random, lower case, up to 32 digits; never all zero.
std::string random_hex(std::size_t digits);

/// 128 random bits of the operating system, in hexadecimal: nobody can tell one from others that he has seen.
std::string random_secret();

/// {"error": {"message", "type", "param", "code"}}; `param`: the member that is wrong, "" is null.
std::string error_body(int status, std::string_view message, std::string_view param = "");
/// The same as the last event of a stream, in an instance's bytes.
std::string error_event(int status, std::string_view message);
net::HttpResponse error_response(int status, std::string_view message, std::string_view param = "");

}  // namespace tandem::proxy
