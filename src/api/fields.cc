// SPDX-License-Identifier: Apache-2.0
#include "api/fields.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <limits>
#include <utility>

#include "base/json.h"

namespace tandem::api {
namespace {

namespace json = boost::json;

constexpr JsonLimits kBodyLimits{.max_depth = 64, .max_bytes = 256U << 20};

bool is_json_media_type(std::string_view value) {
  std::string type;
  for (const char c : value.substr(0, value.find(';')))
    if (c != ' ' && c != '\t') type.push_back(static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c));
  return type == "application/json" || (type.starts_with("application/") && type.ends_with("+json"));
}

}  // namespace

void Fields::check_listed([[maybe_unused]] std::string_view name) const {
#ifndef NDEBUG
  TANDEM_ASSERT(schema_.empty() || lists(name), "a member is read that request_schema.cc does not list");
#endif
}

const json::value* Fields::find(std::string_view name) const {
  check_listed(name);
  const json::value* value = object_.if_contains(name);
  return value == nullptr || value->is_null() ? nullptr : value;
}

Outcome<std::optional<std::int64_t>> Fields::integer(std::string_view name) const {
  check_listed(name);
  if (auto value = json_int(object_, name)) return *value;
  return validation_error("int_parsing", name, "Input should be a valid integer");
}

Outcome<std::optional<double>> Fields::real(std::string_view name) const {
  check_listed(name);
  const json::value* value = find(name);
  if (value != nullptr && value->is_bool()) return std::optional(value->as_bool() ? 1.0 : 0.0);
  if (auto number = json_double(object_, name); number && (!*number || std::isfinite(**number))) return *number;
  return validation_error("float_parsing", name, "Input should be a valid number");
}

Outcome<std::optional<std::string>> Fields::text(std::string_view name) const {
  check_listed(name);
  if (auto value = json_string(object_, name)) return *value;
  return validation_error("string_type", name, "Input should be a valid string");
}

Outcome<bool> Fields::boolean(std::string_view name, bool fallback) const {
  check_listed(name);
  if (auto value = json_bool(object_, name)) return value->value_or(fallback);
  return validation_error("bool_parsing", name, "Input should be a valid boolean, unable to interpret input");
}

Outcome<std::optional<std::int32_t>> Fields::int32(std::string_view name) const {
  TANDEM_ASSIGN(const auto value, integer(name));
  if (!value) return std::optional<std::int32_t>();
  if (*value < std::numeric_limits<std::int32_t>::min() || *value > std::numeric_limits<std::int32_t>::max())
    return validation_error("int_parsing_size", name, "Input should be a valid integer of 32 bits");
  return std::optional(static_cast<std::int32_t>(*value));
}

Outcome<std::optional<std::vector<std::int32_t>>> Fields::token_ids(std::string_view name) const {
  const json::value* value = find(name);
  if (value == nullptr) return std::optional<std::vector<std::int32_t>>();
  if (!value->is_array()) return validation_error("list_type", name, "Input should be a valid list");
  std::vector<std::int32_t> ids;
  ids.reserve(value->as_array().size());
  for (const json::value& element : value->as_array()) {
    const auto id = json_int_of(element);
    if (!id || !std::in_range<std::int32_t>(*id))
      return validation_error("int_parsing", name, "Input should be a list of token ids");
    ids.push_back(static_cast<std::int32_t>(*id));
  }
  return std::optional(std::move(ids));
}

std::optional<std::int32_t> int32_of(const json::value& value) {
  double number = 0.0;
  if (value.is_int64())
    number = static_cast<double>(value.as_int64());
  else if (value.is_double())
    number = value.as_double();
  else
    return std::nullopt;
  if (std::trunc(number) != number || number < std::numeric_limits<std::int32_t>::min() ||
      number > std::numeric_limits<std::int32_t>::max())
    return std::nullopt;
  return static_cast<std::int32_t>(number);
}

Outcome<json::object> read_json_body(const net::HttpRequest& request) {
  if (!is_json_media_type(request.headers.find("content-type").value_or("")))
    return bad_request("Unsupported Media Type: Only 'application/json' is allowed");
  auto value = parse_json(request.body, kBodyLimits);
  if (!value) return bad_request(json_invalid_message(request.body, kBodyLimits));
  if (!value->is_object())
    return validation_error("model_attributes_type", "",
                            "Input should be a valid dictionary or object to extract fields from");
  return std::move(value->as_object());
}

}  // namespace tandem::api
