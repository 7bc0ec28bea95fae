// SPDX-License-Identifier: Apache-2.0
// Writes JSON in the order of the calls: compact, UTF-8 not escaped, never NaN or infinity. Responses have exact key
// orders and streams write one small object a token, so there is no tree in between.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace tandem::api {

class JsonWriter {
 public:
  JsonWriter& begin_object() { return open('{'); }
  JsonWriter& end_object() { return close('}'); }
  JsonWriter& begin_array() { return open('['); }
  JsonWriter& end_array() { return close(']'); }

  /// The name of the next value. Names are our own: not escaped.
  JsonWriter& key(std::string_view name);
  /// The same for a name that is somebody's text: escaped.
  JsonWriter& text_key(std::string_view name);

  JsonWriter& null() { return raw("null"); }
  JsonWriter& boolean(bool value) { return raw(value ? "true" : "false"); }
  JsonWriter& integer(std::int64_t value);
  /// Shortest text that reads back equal. What is not finite becomes -9999.0 (the field's stand-in for -inf).
  JsonWriter& real(double value);
  JsonWriter& real(float value);
  /// `text` must be UTF-8.
  JsonWriter& string(std::string_view text);
  /// A value that is JSON already.
  JsonWriter& raw(std::string_view json);

  // Member by member.
  JsonWriter& member(std::string_view name, std::string_view text) { return key(name).string(text); }
  JsonWriter& member(std::string_view name, const char* text) { return key(name).string(text); }
  JsonWriter& member(std::string_view name, std::int64_t value) { return key(name).integer(value); }
  JsonWriter& member(std::string_view name, bool value) { return key(name).boolean(value); }
  JsonWriter& null_member(std::string_view name) { return key(name).null(); }

  const std::string& text() const { return text_; }
  std::string take() { return std::move(text_); }

 private:
  JsonWriter& open(char bracket);
  JsonWriter& close(char bracket);
  void separate();

  std::string text_;
  bool comma_ = false;  ///< whether a value stands before this place in the same object or array
};

/// `text` as a JSON string with its quotes, appended to `out`.
void append_json_string(std::string& out, std::string_view text);

}  // namespace tandem::api
