// SPDX-License-Identifier: Apache-2.0
// Values of flags: text to typed value, with errors that say what was found and what is allowed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace tandem::config {

/// A count with vLLM's suffixes: k m g t are powers of 1000 (decimals allowed: "25.6k"), K M G T powers of 1024 (whole
/// numbers only). "32k" = 32000, "32K" = 32768.
Result<std::int64_t> parse_size(std::string_view text);

Result<std::int64_t> parse_integer(std::string_view text, std::int64_t low, std::int64_t high);
/// Above `low` (or equal if `low_allowed`), at most `high`.
Result<double> parse_number(std::string_view text, double low, bool low_allowed, double high);
/// "30s", "500ms" or plain seconds ("1.5"); at least 1 ms, or nothing at all if `zero_allowed`.
Result<std::int64_t> parse_milliseconds(std::string_view text, bool zero_allowed = false);

/// The value that goes with `text` in `choices`; the error lists them.
template <class T>
Result<T> parse_choice(std::string_view text, const std::vector<std::pair<std::string_view, T>>& choices) {
  std::string names;
  for (const auto& [name, value] : choices) {
    if (name == text) return value;
    names += (names.empty() ? "" : ", ") + std::string(name);
  }
  return Status(Code::kInvalidArgument, "invalid choice: '" + std::string(text) + "' (choose from " + names + ")");
}

/// Checks that `text` is a JSON object (depth and size bounded) and returns it compactly.
Result<std::string> parse_json_object(std::string_view text);

}  // namespace tandem::config
