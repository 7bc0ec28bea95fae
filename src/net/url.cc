// SPDX-License-Identifier: Apache-2.0
#include "net/url.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace tandem::net {
namespace {

constexpr std::size_t kMostBytes = 2048;
constexpr std::string_view kPlain = "http://";
constexpr std::string_view kTls = "https://";
constexpr std::string_view kHostCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
constexpr std::string_view kIpv6Characters = "0123456789abcdefABCDEF:.";

Status wrong(std::string_view text, std::string_view why) {
  return Status(Code::kInvalidArgument,
                fmt::format("'{}' is not a URL that can be used: {}; expected http://host[:port]/path or https://",
                            text.substr(0, 200), why));
}

bool consists_of(std::string_view text, std::string_view allowed) {
  return !text.empty() && text.find_first_not_of(allowed) == std::string_view::npos;
}

}  // namespace

Result<HttpUrl> parse_http_url(std::string_view text) {
  if (text.size() > kMostBytes) return wrong(text, fmt::format("it has {} bytes, at most {}", text.size(), kMostBytes));
  if (std::any_of(text.begin(), text.end(), [](char c) { return c <= ' ' || c > '~'; })) {
    return wrong("...", "it holds a blank, a control character or one that is not ASCII");
  }
  const bool tls = text.starts_with(kTls);
  if (!tls && !text.starts_with(kPlain)) return wrong(text, "its scheme is not http or https");
  const std::size_t scheme = tls ? kTls.size() : kPlain.size();
  const std::string_view rest = text.substr(scheme, text.find('#') - scheme);
  const std::size_t path = std::min(rest.find_first_of("/?"), rest.size());
  std::string_view authority = rest.substr(0, path);
  HttpUrl url;
  url.target = std::string(rest.substr(path));
  if (!url.target.starts_with('/')) url.target.insert(0, "/");
  std::string_view host = authority.substr(0, authority.rfind(':'));
  if (authority.starts_with('[')) {
    const std::size_t end = authority.find(']');
    if (end == std::string_view::npos) return wrong(text, "its IPv6 address has no closing bracket");
    host = authority.substr(1, end - 1);
    authority.remove_prefix(end + 1);
    if (!consists_of(host, kIpv6Characters)) return wrong(text, "the brackets hold no IPv6 address");
  } else {
    if (!consists_of(host, kHostCharacters)) return wrong(text, "it names no host, or one with other characters");
    authority.remove_prefix(host.size());
  }
  url.endpoint = Endpoint(std::string(host), tls ? 443 : 80);
  url.endpoint.tls = tls;
  if (authority.empty()) return url;
  const char* const end = authority.data() + authority.size();
  const auto [stop, error] = std::from_chars(authority.data() + 1, end, url.endpoint.port);
  if (authority.front() != ':' || error != std::errc() || stop != end || url.endpoint.port == 0) {
    return wrong(text, "its port is not a number from 1 to 65535");
  }
  return url;
}

}  // namespace tandem::net
