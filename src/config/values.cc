// SPDX-License-Identifier: Apache-2.0
#include "config/values.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

#include "base/json.h"

namespace tandem::config {
namespace {

template <class Number>
std::optional<Number> whole_text(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

Status bad_size(std::string_view text) {
  return Status(Code::kInvalidArgument,
                fmt::format("'{}' is not a size; expected a count such as 32768, 32k (=32000) or 32K (=32768)", text));
}

}  // namespace

Result<std::int64_t> parse_size(std::string_view text) {
  static constexpr std::string_view kDecimal = "kmgt";
  static constexpr std::string_view kBinary = "KMGT";
  if (text.empty()) return bad_size(text);
  const std::string_view digits = text.substr(0, text.size() - 1);
  if (const auto power = kBinary.find(text.back()); power != std::string_view::npos) {
    const int shift = 10 * (static_cast<int>(power) + 1);
    const auto count = whole_text<std::int64_t>(digits);
    if (!count || *count < 0 || *count > (std::numeric_limits<std::int64_t>::max() >> shift)) return bad_size(text);
    return *count << shift;
  }
  if (const auto power = kDecimal.find(text.back()); power != std::string_view::npos) {
    const auto count = whole_text<double>(digits);
    if (!count || !std::isfinite(*count) || *count < 0) return bad_size(text);
    const double value = std::round(*count * std::pow(1000.0, static_cast<double>(power + 1)));
    if (value > 9.0e15) return bad_size(text);
    return static_cast<std::int64_t>(value);
  }
  const auto count = whole_text<std::int64_t>(text);
  if (!count || *count < 0) return bad_size(text);
  return *count;
}

Result<std::int64_t> parse_integer(std::string_view text, std::int64_t low, std::int64_t high) {
  const auto number = whole_text<std::int64_t>(text);
  if (!number) return Status(Code::kInvalidArgument, fmt::format("invalid int value: '{}'", text));
  if (*number < low || *number > high)
    return Status(Code::kInvalidArgument, fmt::format("{} is out of range; allowed are {} to {}", *number, low, high));
  return *number;
}

Result<double> parse_number(std::string_view text, double low, bool low_allowed, double high) {
  const auto number = whole_text<double>(text);
  if (!number || !std::isfinite(*number))
    return Status(Code::kInvalidArgument, fmt::format("invalid float value: '{}'", text));
  if (*number < low || (*number == low && !low_allowed) || *number > high)
    return Status(Code::kInvalidArgument, fmt::format("{} is out of range; allowed are {} {} to {}", *number,
                                                      low_allowed ? "from" : "above", low, high));
  return *number;
}

Result<std::int64_t> parse_milliseconds(std::string_view text, bool zero_allowed) {
  double unit = 1000.0;
  std::string_view digits = text;
  if (digits.ends_with("ms")) {
    unit = 1.0;
    digits.remove_suffix(2);
  } else if (digits.ends_with('s')) {
    digits.remove_suffix(1);
  }
  const auto number = whole_text<double>(digits);
  if (number && *number == 0.0 && zero_allowed) return 0;
  if (!number || !std::isfinite(*number) || *number * unit < 1.0 || *number * unit > 1.0e12)
    return Status(
        Code::kInvalidArgument,
        fmt::format("'{}' is not a time; expected seconds such as 30 or 1.5, or milliseconds such as 500ms", text));
  return static_cast<std::int64_t>(*number * unit);
}

Result<std::string> parse_json_object(std::string_view text) {
  auto value = parse_json(text, JsonLimits{.max_depth = 32, .max_bytes = 1U << 20});
  if (!value) return value.error();
  if (!value->is_object())
    return Status(Code::kInvalidArgument, fmt::format("expected a JSON object, found {}",
                                                      std::string_view(boost::json::to_string(value->kind()))));
  return std::string(boost::json::serialize(*value));
}

}  // namespace tandem::config
