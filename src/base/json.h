// SPDX-License-Identifier: Apache-2.0
// JSON from outside: parsed once with limits, then read field by field with errors that name the field.
// The library is Boost.JSON; include <boost/json.hpp> only in .cc files.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace tandem {

struct JsonLimits {
  std::size_t max_depth = 64;
  std::size_t max_bytes = 256U << 20;
};

/// Parses one JSON value. The error says at which byte and why.
Result<boost::json::value> parse_json(std::string_view text, JsonLimits limits = {});
/// Whether the text is one JSON value, without making it: no memory, and a fraction of the time.
Result<void> check_json(std::string_view text, JsonLimits limits = {});
/// What a server says of a body that is no JSON: where, in characters, and why. Instances and proxies say the same.
std::string json_invalid_message(std::string_view body, JsonLimits limits = {});
/// Reads and parses a file; the error names it.
Result<boost::json::value> read_json_file(const std::string& path, JsonLimits limits = {});

/// The whole number that a value stands for: 5, 5.0, "5"; true is 1.
std::optional<std::int64_t> json_int_of(const boost::json::value& value);

/// Field readers: nullopt if the key is absent or null; an error if the value has another type or is out of range.
/// Integers also accept what json_int_of does, as vLLM's do.
Result<std::optional<std::int64_t>> json_int(const boost::json::object& object, std::string_view key);
Result<std::optional<double>> json_double(const boost::json::object& object, std::string_view key);
Result<std::optional<bool>> json_bool(const boost::json::object& object, std::string_view key);
Result<std::optional<std::string>> json_string(const boost::json::object& object, std::string_view key);

}  // namespace tandem
