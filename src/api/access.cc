// SPDX-License-Identifier: Apache-2.0
#include "api/access.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

namespace tandem::api {
namespace {

constexpr std::string_view kLocked[] = {"/tandem/release", "/reset_prefix_cache", "/invocations"};

bool contains(const std::vector<std::string>& list, std::string_view text) {
  return std::find(list.begin(), list.end(), text) != list.end();
}

std::vector<std::string> allowed_methods(const config::ServeConfig& config) {
  if (contains(config.allowed_methods, "*")) return {"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"};
  return config.allowed_methods;
}

/// Those of --allowed-headers, and what browsers may send anyway.
std::vector<std::string> allowed_headers(const config::ServeConfig& config) {
  std::vector<std::string> names{"Accept", "Accept-Language", "Content-Language", "Content-Type"};
  for (const std::string& name : config.allowed_headers)
    if (!contains(names, name)) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

/// Whether all of the names that are `asked` for are among those that are `allowed`, in any case of letters.
bool all_among(std::string_view asked, const std::vector<std::string>& allowed) {
  net::Headers known;
  for (const std::string& name : allowed) known.add(name, "");
  const std::vector<std::string> names = net::listed_names(asked);
  return std::all_of(names.begin(), names.end(), [&known](const std::string& name) { return known.find(name); });
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

bool is_preflight(const net::HttpRequest& request) {
  return request.method == "OPTIONS" && request.headers.find("origin") &&
         request.headers.find("access-control-request-method");
}

net::HttpResponse preflight_answer(const config::ServeConfig& config, const net::HttpRequest& request) {
  const std::string_view origin = request.headers.find("origin").value_or("");
  const std::string method(request.headers.find("access-control-request-method").value_or(""));
  const auto headers = request.headers.find("access-control-request-headers");
  // Browsers take "*" as a name where credentials are sent, and never as Authorization: it is spelled out.
  const bool any_header = contains(config.allowed_headers, "*");
  const std::vector<std::string> methods = allowed_methods(config);
  const std::vector<std::string> allowed = allowed_headers(config);
  std::vector<std::string> failures;
  if (allowed_origin(config, origin).empty()) failures.emplace_back("origin");
  if (!contains(methods, method)) failures.emplace_back("method");
  if (headers && !any_header && !all_among(*headers, allowed)) failures.emplace_back("headers");

  net::HttpResponse response(200, "text/plain; charset=utf-8", "OK");
  if (!failures.empty())
    response = {400, response.content_type, fmt::format("Disallowed CORS {}", fmt::join(failures, ", "))};
  response.headers.set("Access-Control-Allow-Methods", fmt::format("{}", fmt::join(methods, ", ")));
  response.headers.set("Access-Control-Max-Age", "600");
  if (!any_header)
    response.headers.set("Access-Control-Allow-Headers", fmt::format("{}", fmt::join(allowed, ", ")));
  else if (headers)
    response.headers.set("Access-Control-Allow-Headers", std::string(*headers));
  return response;
}

}  // namespace tandem::api
