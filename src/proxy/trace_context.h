// SPDX-License-Identifier: Apache-2.0
// One trace id through proxy, prefiller and decoder: the header `traceparent` of W3C Trace Context, level 1.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tandem::proxy {

struct TraceContext {
  std::string trace_id;  ///< 32 hexadecimal digits, lower case, not all zero
  std::string span_id;   ///< 16, the same: the proxy's part of the trace
  std::string flags = "01";

  /// The client's trace with a span of our own; nullopt if the header is not well-formed (it is then ignored, as the
  /// standard wants).
  static std::optional<TraceContext> continue_from(std::string_view traceparent);
  /// A new trace.
  static TraceContext start();
  /// "00-<trace id>-<span id>-<flags>", the header for both backends.
  std::string traceparent() const;
};

}  // namespace tandem::proxy
