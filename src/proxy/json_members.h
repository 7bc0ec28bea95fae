// SPDX-License-Identifier: Apache-2.0
// A JSON object as the raw texts of its top-level members. Members can be read, replaced and dropped while all others
// stay what the client wrote, byte for byte: 64-bit integers, long decimals and unknown members included. (Parsing into
// numbers and writing them again does not promise that.)
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace tandem::proxy {

class JsonMembers {
 public:
  /// An error if the text is not one JSON object within the limits.
  static Result<JsonMembers> parse(std::string_view text, JsonLimits limits = {});

  /// Raw text of a member's value ("true", "12", "{...}"); nullopt if absent. Of a name that is there twice the last
  /// one counts, as in Python.
  std::optional<std::string_view> find(std::string_view name) const;
  bool is_true(std::string_view name) const { return find(name) == "true"; }
  /// Replaces the value, or adds the member at the end. `raw` must be valid JSON.
  void set(std::string_view name, std::string_view raw);
  void remove(std::string_view name);
  std::string text() const;

 private:
  struct Member {
    Member(std::string decoded, std::string quoted, std::string raw)
        : name(std::move(decoded)), raw_name(std::move(quoted)), value(std::move(raw)) {}
    std::string name;      ///< decoded
    std::string raw_name;  ///< with quotes and escapes as written
    std::string value;
  };
  std::vector<Member> members_;
};

/// Raw texts of an array's elements, views into it; empty if it is no array. `array` must be valid JSON, as a member of
/// JsonMembers is.
std::vector<std::string_view> json_elements(std::string_view array);

/// Quotes and escapes; what is no UTF-8 (bytes of an instance, a text that was cut) becomes U+FFFD.
std::string json_quote(std::string_view text);

}  // namespace tandem::proxy
