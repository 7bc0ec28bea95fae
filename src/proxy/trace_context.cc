// SPDX-License-Identifier: Apache-2.0
#include "proxy/trace_context.h"

#include <fmt/format.h>

#include <algorithm>

#include "proxy/forwarding.h"

namespace tandem::proxy {
namespace {

bool is_lower_hex(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool is_id(std::string_view text) {
  return is_lower_hex(text) && text.find_first_not_of('0') != std::string_view::npos;
}

}  // namespace

std::optional<TraceContext> TraceContext::continue_from(std::string_view header) {
  constexpr std::size_t kVersion0Bytes = 55;
  if (header.size() < kVersion0Bytes) return std::nullopt;
  const auto version = header.substr(0, 2);
  const auto flags = header.substr(53, 2);
  // Later versions may append fields; version 0 has none, and ff is forbidden.
  const bool length_fits = version == "00" ? header.size() == kVersion0Bytes
                                           : header.size() == kVersion0Bytes || header[kVersion0Bytes] == '-';
  const bool dashes = header[2] == '-' && header[35] == '-' && header[52] == '-';
  if (!is_lower_hex(version) || version == "ff" || !length_fits || !dashes) return std::nullopt;
  if (!is_id(header.substr(3, 32)) || !is_id(header.substr(36, 16)) || !is_lower_hex(flags)) return std::nullopt;
  TraceContext trace = start();
  trace.trace_id = header.substr(3, 32);
  trace.flags = flags;
  return trace;
}

TraceContext TraceContext::start() {
  TraceContext trace;
  trace.trace_id = random_hex(32);
  trace.span_id = random_hex(16);
  return trace;
}

std::string TraceContext::traceparent() const { return fmt::format("00-{}-{}-{}", trace_id, span_id, flags); }

}  // namespace tandem::proxy
