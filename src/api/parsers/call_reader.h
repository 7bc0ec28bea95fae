// SPDX-License-Identifier: Apache-2.0
// Reads one tool call that a model writes as a JSON object, {"name": "f", "arguments": {...}}, character by character.
// Members may come in any order, others are skipped; a second name or second arguments make it malformed.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/parsers/json_cursor.h"

namespace tandem::api {

class CallReader {
 public:
  /// Names that the member with the arguments may have; they outlive the reader.
  explicit CallReader(std::initializer_list<std::string_view> arguments_keys) : arguments_keys_(arguments_keys) {}

  enum class State : std::uint8_t {
    kOpen,
    kComplete,   ///< the object is closed and has a name (arguments may be missing: has_arguments())
    kMalformed,  ///< it is no JSON, or no call; the last character pushed was the one too much
  };
  State push(char next);

  bool has_name() const { return has_name_; }
  bool has_arguments() const { return has_arguments_; }
  /// The first character of their text is there.
  bool has_begun_arguments() const { return has_begun_arguments_; }
  const std::string& name() const { return name_; }
  /// What is new in the text of the arguments, exactly as the model wrote it.
  std::string take_arguments() { return std::exchange(arguments_, {}); }

 private:
  enum class Member : std::uint8_t { kOther, kName, kArguments };

  void begin_value();
  bool end_value();
  Member member_of(std::string_view key) const;

  JsonCursor json_;
  std::vector<std::string_view> arguments_keys_;
  bool in_value_ = false;  ///< of a member of the call itself
  Member member_ = Member::kOther;
  std::string text_;  ///< of the member's name, then of the call's name, with their quotes
  std::string name_;
  std::string arguments_;
  bool has_name_ = false;
  bool has_arguments_ = false;
  bool has_begun_arguments_ = false;
};

}  // namespace tandem::api
