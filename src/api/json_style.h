// SPDX-License-Identifier: Apache-2.0
// How the JSON of a schema is to be written, beside what the schema says. One place for all schemas of a request:
// response_format, structured_outputs, guided_*, tools, and those within structural tags.
#pragma once

#include <boost/json/fwd.hpp>
#include <optional>
#include <string>

namespace tandem::api {

struct JsonStyle {
  std::optional<std::string> whitespace_pattern;
  bool disable_any_whitespace = false;
  bool disable_additional_properties = false;  ///< objects that do not say whether others may come say no
};

/// The schema (an object or a boolean) with the style in it, as llguidance reads it.
boost::json::value in_style(boost::json::value schema, const JsonStyle& style);

}  // namespace tandem::api
