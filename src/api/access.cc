// SPDX-License-Identifier: Apache-2.0
#include "api/access.h"

#include <algorithm>
#include <string>
#include <vector>

namespace tandem::api {
namespace {

constexpr std::string_view kLocked[] = {"/tandem/release", "/reset_prefix_cache", "/invocations"};

bool contains(const std::vector<std::string>& list, std::string_view text) {
  return std::find(list.begin(), list.end(), text) != list.end();
}

std::string joined(const std::vector<std::string>& list) {
  std::string text;
  for (const std::string& each : list) text += (text.empty() ? "" : ", ") + each;
  return text;
}

/// What stands for the origin in answers to it; "" if it is not allowed.
std::string allowed_origin(const config::ServeConfig& config, std::string_view origin) {
  if (contains(config.allowed_origins, "*")) return config.allow_credentials ? std::string(origin) : "*";
  return contains(config.allowed_origins, origin) ? std::string(origin) : "";
}

}  // namespace

bool needs_key(std::string_view path) {
  return path.starts_with("/v1") || std::find(std::begin(kLocked), std::end(kLocked), path) != std::end(kLocked);
}

void add_cors_headers(const config::ServeConfig& config, const net::HttpRequest& request, net::Headers& headers) {
  const auto origin = request.headers.find("origin");
  if (!origin) return;
  const std::string allowed = allowed_origin(config, *origin);
  if (allowed.empty()) return;
  headers.set("Access-Control-Allow-Origin", allowed);
  if (allowed != "*") headers.set("Vary", "Origin");
  if (config.allow_credentials) headers.set("Access-Control-Allow-Credentials", "true");
}

net::HttpResponse preflight_answer(const config::ServeConfig& config, const net::HttpRequest& request) {
  const auto origin = request.headers.find("origin");
  if (origin && allowed_origin(config, *origin).empty())
    return {400, "text/plain; charset=utf-8", "Disallowed CORS origin"};
  net::HttpResponse response(200, "text/plain; charset=utf-8", "OK");
  add_cors_headers(config, request, response.headers);
  if (!origin) response.headers.set("Access-Control-Allow-Origin", "*");
  response.headers.set("Access-Control-Allow-Methods", joined(config.allowed_methods));
  response.headers.set("Access-Control-Allow-Headers", joined(config.allowed_headers));
  return response;
}

}  // namespace tandem::api
