// SPDX-License-Identifier: Apache-2.0
#include "net/access_log.h"

#include <fmt/format.h>

#include <iterator>
#include <string>

#include "base/log.h"
#include "net/http_parser.h"

namespace tandem::net {
namespace {

/// The path as it was sent: what it decodes to must not write lines of its own.
std::string quoted_path(const HttpRequest& request, bool with_query) {
  std::string out;
  for (const char c : request.path) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("/-._~!$&'()*+,;=:@").find(c) != std::string_view::npos;
    if (plain)
      out += c;
    else
      fmt::format_to(std::back_inserter(out), "%{:02X}", static_cast<unsigned char>(c));
  }
  if (request.query.empty() || !with_query) return out;
  out += '?';
  for (const char c : request.query) out += c > ' ' && c != '"' && c != '\x7f' ? c : '_';
  return out;
}

}  // namespace

void log_answered(const HttpRequest& request, std::string_view version, int status, bool with_query) {
  if (!log::enabled(log::Level::kInfo)) return;
  log::info("{} - \"{} {} HTTP/{}\" {} {}", request.peer, request.method, quoted_path(request, with_query), version,
            status, reason_phrase(status));
}

}  // namespace tandem::net
