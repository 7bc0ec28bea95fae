// SPDX-License-Identifier: Apache-2.0
// Every path of the API as one table: the server's routes, /openapi.json and /docs are made of it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/handlers.h"
#include "api/request_schema.h"

namespace tandem::api {

using Endpoint = net::Task<void> (*)(ContextPtr, ExchangePtr);

/// When a route is there; else its path is a 404 as any other.
enum class Presence {
  kAlways,
  kDevMode,        ///< VLLM_SERVER_DEV_MODE=1
  kTokenizerInfo,  ///< --enable-tokenizer-info-endpoint
  kDocs,           ///< not with --disable-fastapi-docs
};

struct Route {
  std::string_view method;
  std::string_view path;
  Endpoint endpoint = nullptr;  ///< nullptr: refused, see `refusal`
  std::string_view what;        ///< for people; why it is refused
  Schema body = {};             ///< of POST; empty: none is read
  int status = 200;             ///< refused: the status
  Presence presence = Presence::kAlways;
};

/// Those that this configuration has, in the table's order.
std::vector<Route> routes_of(const config::ServeConfig& config);

/// OpenAPI 3.1 of these routes.
std::string openapi_json(std::span<const Route> routes);
/// One page that lists them.
std::string docs_page(std::span<const Route> routes);

}  // namespace tandem::api
