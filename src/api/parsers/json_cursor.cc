// SPDX-License-Identifier: Apache-2.0
#include "api/parsers/json_cursor.h"

#include <string_view>

namespace tandem::api {
namespace {

constexpr std::size_t kMaxDepth = 128;
constexpr int kMostExponentDigits = 8;

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

}  // namespace

bool JsonCursor::push(char next) {
  if (scalar_ == Scalar::kNumber) {
    if (push_number(next)) return true;
    const bool whole = number_ == Number::kZero || number_ == Number::kDigits || number_ == Number::kFraction ||
                       number_ == Number::kPower;
    if (!whole) return false;
    scalar_ = Scalar::kNone;  // `next` is what follows the number
    end_value();
  } else if (scalar_ != Scalar::kNone) {
    return push_scalar(next);
  }
  if (is_space(next)) return true;
  switch (expect_) {
    case Expect::kNothing:
      return false;
    case Expect::kValueOrEnd:
      return next == ']' ? close('[') : begin_value(next);
    case Expect::kValue:
      return begin_value(next);
    case Expect::kKeyOrEnd:
      if (next == '}') return close('{');
      [[fallthrough]];
    case Expect::kKey:
      if (next != '"') return false;
      scalar_ = Scalar::kString;
      key_ = true;
      return true;
    case Expect::kColon:
      expect_ = Expect::kValue;
      return next == ':';
    case Expect::kCommaOrEnd:
      if (next == '}') return close('{');
      if (next == ']') return close('[');
      expect_ = open_.back() == '{' ? Expect::kKey : Expect::kValue;
      return next == ',';
  }
  return false;
}

bool JsonCursor::begin_value(char next) {
  key_ = false;
  switch (next) {
    case '{':
    case '[':
      return open(next);
    case '"':
      scalar_ = Scalar::kString;
      return true;
    case 't':
      rest_ = "rue";
      break;
    case 'f':
      rest_ = "alse";
      break;
    case 'n':
      rest_ = "ull";
      break;
    default:
      if (next != '-' && !is_digit(next)) return false;
      scalar_ = Scalar::kNumber;
      number_ = next == '-' ? Number::kSign : next == '0' ? Number::kZero : Number::kDigits;
      return true;
  }
  scalar_ = Scalar::kLiteral;
  return true;
}

bool JsonCursor::push_scalar(char next) {
  switch (scalar_) {
    case Scalar::kString:
      if (half_ && next != '\\') return false;
      if (next == '"')
        end_string();
      else if (next == '\\')
        scalar_ = Scalar::kEscape;
      else
        return static_cast<unsigned char>(next) >= 0x20;
      return true;
    case Scalar::kEscape:
      if (half_ && next != 'u') return false;
      scalar_ = next == 'u' ? Scalar::kUnicode : Scalar::kString;
      digits_ = 0;
      code_ = 0;
      return std::string_view("\"\\/bfnrtu").find(next) != std::string_view::npos;
    case Scalar::kUnicode:
      return push_hex(next);
    case Scalar::kLiteral:
      if (next != *rest_) return false;
      if (*++rest_ == '\0') {
        scalar_ = Scalar::kNone;
        end_value();
      }
      return true;
    case Scalar::kNone:
    case Scalar::kNumber:
      break;
  }
  return false;
}

bool JsonCursor::push_hex(char next) {
  if (!is_hex(next)) return false;
  code_ = code_ * 16 + static_cast<std::uint32_t>(is_digit(next) ? next - '0' : (next | 0x20) - 'a' + 10);
  if (++digits_ < 4) return true;
  scalar_ = Scalar::kString;
  const bool second = code_ >= 0xdc00 && code_ < 0xe000;
  if (half_ != second) return false;
  half_ = code_ >= 0xd800 && code_ < 0xdc00;
  return true;
}

/// Whether `next` goes on with the number.
bool JsonCursor::push_number(char next) {
  const auto go = [this](Number state) {
    number_ = state;
    return true;
  };
  const bool exponent = next == 'e' || next == 'E';
  switch (number_) {
    case Number::kSign:
      return is_digit(next) && go(next == '0' ? Number::kZero : Number::kDigits);
    case Number::kDigits:
      if (is_digit(next)) return true;
      [[fallthrough]];
    case Number::kZero:
      if (next == '.') return go(Number::kPoint);
      return exponent && go(Number::kExponent);
    case Number::kPoint:
      return is_digit(next) && go(Number::kFraction);
    case Number::kFraction:
      return is_digit(next) || (exponent && go(Number::kExponent));
    case Number::kExponent:
      if (next == '+' || next == '-') return go(Number::kExponentSign);
      [[fallthrough]];
    case Number::kExponentSign:
      digits_ = 1;
      return is_digit(next) && go(Number::kPower);
    case Number::kPower:
      return is_digit(next) && ++digits_ <= kMostExponentDigits;
  }
  return false;
}

void JsonCursor::end_string() {
  scalar_ = Scalar::kNone;
  if (key_)
    expect_ = Expect::kColon;
  else
    end_value();
}

bool JsonCursor::open(char bracket) {
  if (open_.size() == kMaxDepth) return false;
  open_ += bracket;
  expect_ = bracket == '{' ? Expect::kKeyOrEnd : Expect::kValueOrEnd;
  return true;
}

bool JsonCursor::close(char bracket) {
  if (open_.empty() || open_.back() != bracket) return false;
  open_.pop_back();
  end_value();
  return true;
}

}  // namespace tandem::api
