// SPDX-License-Identifier: Apache-2.0
#include "net/bearer.h"

#include <algorithm>

namespace tandem::net {
namespace {

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](char x, char y) { return lower(x) == lower(y); });
}

}  // namespace

bool equal_in_constant_time(std::string_view given, std::string_view secret) {
  unsigned difference = given.size() == secret.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const char expected = secret.empty() ? '\0' : secret[i % secret.size()];
    difference |= static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(expected);
  }
  return difference == 0;
}

bool has_bearer(const HttpRequest& request, const std::vector<std::string>& keys) {
  if (keys.empty()) return true;
  const std::string_view header = request.headers.find("authorization").value_or("");
  const std::size_t space = header.find(' ');
  if (space == std::string_view::npos || !equal_ignoring_case(header.substr(0, space), "bearer")) return false;
  const std::string_view given = header.substr(space + 1);
  bool found = false;
  for (const std::string& key : keys) found = equal_in_constant_time(given, key) || found;
  return found;
}

}  // namespace tandem::net
