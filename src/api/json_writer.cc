// SPDX-License-Identifier: Apache-2.0
#include "api/json_writer.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>

namespace tandem::api {
namespace {

constexpr std::string_view kNotFinite = "-9999.0";

template <class Real>
void append_real(std::string& out, Real value) {
  if (!std::isfinite(value)) {
    out += kNotFinite;
    return;
  }
  const std::size_t start = out.size();
  fmt::format_to(std::back_inserter(out), "{}", value);
  // A whole number keeps its point, so that clients read a float.
  if (out.find_first_of(".eE", start) == std::string::npos) out += ".0";
}

}  // namespace

void append_json_string(std::string& out, std::string_view text) {
  out.push_back('"');
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20)
          fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<unsigned>(static_cast<unsigned char>(c)));
        else
          out.push_back(c);
    }
  }
  out.push_back('"');
}

void JsonWriter::separate() {
  if (comma_) text_.push_back(',');
  comma_ = true;
}

JsonWriter& JsonWriter::open(char bracket) {
  separate();
  text_.push_back(bracket);
  comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::close(char bracket) {
  text_.push_back(bracket);
  comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::key(std::string_view name) {
  separate();
  text_.push_back('"');
  text_ += name;
  text_ += "\":";
  comma_ = false;  // the value follows without a comma
  return *this;
}

JsonWriter& JsonWriter::text_key(std::string_view name) {
  separate();
  append_json_string(text_, name);
  text_.push_back(':');
  comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::integer(std::int64_t value) {
  separate();
  fmt::format_to(std::back_inserter(text_), "{}", value);
  return *this;
}

JsonWriter& JsonWriter::real(double value) {
  separate();
  append_real(text_, value);
  return *this;
}

JsonWriter& JsonWriter::real(float value) {
  separate();
  append_real(text_, value);
  return *this;
}

JsonWriter& JsonWriter::string(std::string_view text) {
  separate();
  append_json_string(text_, text);
  return *this;
}

JsonWriter& JsonWriter::raw(std::string_view json) {
  separate();
  text_ += json;
  return *this;
}

}  // namespace tandem::api
