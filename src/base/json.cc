// SPDX-License-Identifier: Apache-2.0
#include "base/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <boost/json/basic_parser_impl.hpp>
#include <charconv>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>

namespace tandem {
namespace json = boost::json;
namespace {

Status wrong_type(std::string_view key, const json::value& value, std::string_view expected) {
  return Status(Code::kInvalidArgument, fmt::format("field '{}' is {}, expected {}", key,
                                                    std::string_view(json::to_string(value.kind())), expected));
}

const json::value* present(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

/// Hears of everything in a JSON text and keeps nothing.
struct Listener {
  static constexpr std::size_t max_object_size = std::numeric_limits<std::size_t>::max();
  static constexpr std::size_t max_array_size = max_object_size;
  static constexpr std::size_t max_key_size = max_object_size;
  static constexpr std::size_t max_string_size = max_object_size;

  using Error = boost::system::error_code;
  using Text = json::string_view;
  bool on_document_begin(Error& /*error*/) { return true; }
  bool on_document_end(Error& /*error*/) { return true; }
  bool on_object_begin(Error& /*error*/) { return true; }
  bool on_object_end(std::size_t /*size*/, Error& /*error*/) { return true; }
  bool on_array_begin(Error& /*error*/) { return true; }
  bool on_array_end(std::size_t /*size*/, Error& /*error*/) { return true; }
  bool on_key_part(Text /*text*/, std::size_t /*size*/, Error& /*error*/) { return true; }
  bool on_key(Text /*text*/, std::size_t /*size*/, Error& /*error*/) { return true; }
  bool on_string_part(Text /*text*/, std::size_t /*size*/, Error& /*error*/) { return true; }
  bool on_string(Text /*text*/, std::size_t /*size*/, Error& /*error*/) { return true; }
  bool on_number_part(Text /*text*/, Error& /*error*/) { return true; }
  bool on_int64(std::int64_t /*number*/, Text /*text*/, Error& /*error*/) { return true; }
  bool on_uint64(std::uint64_t /*number*/, Text /*text*/, Error& /*error*/) { return true; }
  bool on_double(double /*number*/, Text /*text*/, Error& /*error*/) { return true; }
  bool on_bool(bool /*value*/, Error& /*error*/) { return true; }
  bool on_null(Error& /*error*/) { return true; }
  bool on_comment_part(Text /*text*/, Error& /*error*/) { return true; }
  bool on_comment(Text /*text*/, Error& /*error*/) { return true; }
};

Status too_large(std::size_t bytes, const JsonLimits& limits) {
  return {Code::kInvalidArgument,
          fmt::format("JSON of {} bytes is larger than the limit of {} bytes", bytes, limits.max_bytes)};
}

Status invalid_at(std::size_t byte, const boost::system::error_code& error) {
  return {Code::kInvalidArgument, fmt::format("invalid JSON at byte {}: {}", byte, error.message())};
}

/// How many bytes can be JSON; if that is not all of them, or not a whole value, the reason.
std::size_t read_through(std::string_view text, const JsonLimits& limits, boost::system::error_code& error) {
  json::parse_options options;
  options.max_depth = limits.max_depth;
  json::basic_parser<Listener> parser(options);
  const std::size_t consumed = parser.write_some(false, text.data(), text.size(), error);
  if (!error && consumed < text.size()) error = json::error::extra_data;
  return consumed;
}

template <class Number>
std::optional<Number> number_from_text(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace

Result<json::value> parse_json(std::string_view text, JsonLimits limits) {
  if (text.size() > limits.max_bytes) return too_large(text.size(), limits);
  json::parse_options options;
  options.max_depth = limits.max_depth;
  json::stream_parser parser({}, options);
  boost::system::error_code error;
  const std::size_t consumed = parser.write_some(text.data(), text.size(), error);
  if (!error && consumed < text.size()) error = json::error::extra_data;
  if (!error) parser.finish(error);
  if (error) return invalid_at(consumed, error);
  return parser.release();
}

Result<void> check_json(std::string_view text, JsonLimits limits) {
  if (text.size() > limits.max_bytes) return too_large(text.size(), limits);
  boost::system::error_code error;
  const std::size_t consumed = read_through(text, limits, error);
  if (error) return invalid_at(consumed, error);
  return {};
}

std::string json_invalid_message(std::string_view body, JsonLimits limits) {
  boost::system::error_code error;
  const std::string_view good = body.substr(0, read_through(body, limits, error));
  const auto begins_character = [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; };
  return fmt::format(
      "[{{'type': 'json_invalid', 'loc': ('body', {}), 'msg': 'JSON decode error', 'ctx': {{'error': '{}'}}}}]",
      std::count_if(good.begin(), good.end(), begins_character), error.message());
}

Result<json::value> read_json_file(const std::string& path, JsonLimits limits) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return Status(Code::kNotFound, fmt::format("cannot open {}", path));
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  auto value = parse_json(text, limits);
  if (!value) return value.error().context(path);
  return value;
}

std::optional<std::int64_t> json_int_of(const json::value& value) {
  if (value.is_int64()) return value.as_int64();
  if (value.is_bool()) return value.as_bool() ? 1 : 0;
  if (value.is_string()) return number_from_text<std::int64_t>(value.as_string());
  const double number = value.is_double() ? value.as_double() : std::nan("");
  if (std::trunc(number) != number || std::abs(number) >= 9.0e15) return std::nullopt;
  return static_cast<std::int64_t>(number);
}

Result<std::optional<std::int64_t>> json_int(const json::object& object, std::string_view key) {
  const json::value* value = present(object, key);
  if (value == nullptr) return std::optional<std::int64_t>();
  if (const auto number = json_int_of(*value)) return number;
  return wrong_type(key, *value, "an integer");
}

Result<std::optional<double>> json_double(const json::object& object, std::string_view key) {
  const json::value* value = present(object, key);
  if (value == nullptr) return std::optional<double>();
  if (value->is_number()) return std::optional(value->to_number<double>());
  if (value->is_string())
    if (auto number = number_from_text<double>(value->as_string()); number && std::isfinite(*number)) return number;
  return wrong_type(key, *value, "a number");
}

Result<std::optional<bool>> json_bool(const json::object& object, std::string_view key) {
  const json::value* value = present(object, key);
  if (value == nullptr) return std::optional<bool>();
  if (value->is_bool()) return std::optional(value->as_bool());
  if (value->is_int64() && (value->as_int64() == 0 || value->as_int64() == 1))
    return std::optional(value->as_int64() == 1);
  if (value->is_string()) {
    std::string text;
    for (const char c : value->as_string()) text.push_back(static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c));
    for (const char* yes : {"true", "yes", "on", "t", "y", "1"})
      if (text == yes) return std::optional(true);
    for (const char* no : {"false", "no", "off", "f", "n", "0"})
      if (text == no) return std::optional(false);
  }
  return wrong_type(key, *value, "a boolean");
}

Result<std::optional<std::string>> json_string(const json::object& object, std::string_view key) {
  const json::value* value = present(object, key);
  if (value == nullptr) return std::optional<std::string>();
  if (!value->is_string()) return wrong_type(key, *value, "a string");
  return std::optional(std::string(value->as_string()));
}

}  // namespace tandem
