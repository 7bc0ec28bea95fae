// SPDX-License-Identifier: Apache-2.0
#include "api/access.h"

#include <algorithm>
#include <string>
#include <vector>

namespace tandem::api {
namespace {

constexpr std::string_view kStateful[] = {"/tandem/release", "/reset_prefix_cache"};

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](char x, char y) { return lower(x) == lower(y); });
}

/// Takes as long whatever `given` is, but for its length, which its sender knows.
bool equal_in_constant_time(std::string_view given, std::string_view key) {
  unsigned difference = given.size() == key.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const char expected = key.empty() ? '\0' : key[i % key.size()];
    difference |= static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(expected);
  }
  return difference == 0;
}

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
  return path.starts_with("/v1") || std::find(std::begin(kStateful), std::end(kStateful), path) != std::end(kStateful);
}

bool has_key(const config::ServeConfig& config, const net::HttpRequest& request) {
  if (config.api_keys.empty()) return true;
  const std::string_view header = request.headers.find("authorization").value_or("");
  const std::size_t space = header.find(' ');
  if (space == std::string_view::npos || !equal_ignoring_case(header.substr(0, space), "bearer")) return false;
  const std::string_view given = header.substr(space + 1);
  bool found = false;
  for (const std::string& key : config.api_keys) found = equal_in_constant_time(given, key) || found;
  return found;
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
