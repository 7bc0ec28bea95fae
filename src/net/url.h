// SPDX-License-Identifier: Apache-2.0
// http:// and https:// URLs that come from outside, e.g. the metaserver of a layerwise proxy.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "net/http_client.h"

namespace tandem::net {

struct HttpUrl {
  HttpUrl() {}
  Endpoint endpoint;
  std::string target;  ///< path and query, "/" if the URL has none
};

/// Only http and https (Endpoint::tls), at most 2048 visible ASCII characters, with a host; without user, and what
/// follows # is dropped. IPv6 hosts stand in brackets; port 80 or 443 if there is none.
Result<HttpUrl> parse_http_url(std::string_view text);

}  // namespace tandem::net
