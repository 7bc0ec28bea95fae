// SPDX-License-Identifier: Apache-2.0
// Follows JSON text character by character, so that it is known at each one whether the text can still become JSON and
// where in it we are. Strict (RFC 8259); strings may hold any UTF-8, escapes of surrogates only in pairs, and
// exponents only of some digits: many parsers refuse what is beyond, ours too, when a client sends a call back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tandem::api {

class JsonCursor {
 public:
  /// False if `next` cannot stand here; then the cursor is of no more use.
  bool push(char next);

  /// One whole value was read (a number only when something follows it). Only white space may follow.
  bool complete() const { return expect_ == Expect::kNothing; }
  std::size_t depth() const { return open_.size(); }  ///< of objects and arrays that are open
  /// Inside a string, number or literal.
  bool in_scalar() const { return scalar_ != Scalar::kNone; }
  bool in_number() const { return scalar_ == Scalar::kNumber; }
  /// Inside the name of a member.
  bool in_key() const { return in_scalar() && key_; }

 private:
  enum class Expect : std::uint8_t { kValue, kValueOrEnd, kKey, kKeyOrEnd, kColon, kCommaOrEnd, kNothing };
  enum class Scalar : std::uint8_t { kNone, kString, kEscape, kUnicode, kNumber, kLiteral };
  enum class Number : std::uint8_t { kSign, kZero, kDigits, kPoint, kFraction, kExponent, kExponentSign, kPower };

  bool begin_value(char next);
  bool push_scalar(char next);
  bool push_hex(char next);
  bool push_number(char next);
  bool open(char bracket);
  bool close(char bracket);
  void end_value() { expect_ = open_.empty() ? Expect::kNothing : Expect::kCommaOrEnd; }
  void end_string();

  Expect expect_ = Expect::kValue;
  Scalar scalar_ = Scalar::kNone;
  Number number_ = Number::kSign;
  bool key_ = false;        ///< the string is a member's name
  int digits_ = 0;          ///< of \uXXXX or of an exponent
  std::uint32_t code_ = 0;  ///< of \uXXXX
  bool half_ = false;       ///< the first of two surrogates stands before this character
  const char* rest_ = "";   ///< of a literal
  std::string open_;        ///< the brackets
};

}  // namespace tandem::api
