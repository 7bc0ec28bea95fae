// SPDX-License-Identifier: Apache-2.0
#include "api/unknown_fields.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <boost/json.hpp>
#include <string_view>
#include <vector>

#include "api/json_writer.h"

namespace tandem::api {
namespace {

/// Escaped, so that a name cannot write lines of its own, and never cut within a character.
std::string in_the_log(std::string_view name) {
  const bool is_long = name.size() > UnknownFields::kMostCharacters;
  std::size_t end = is_long ? UnknownFields::kMostCharacters : name.size();
  while (is_long && end > 0 && (static_cast<unsigned char>(name[end]) & 0xC0U) == 0x80U) --end;
  std::string text;
  append_json_string(text, name.substr(0, end));
  return is_long ? text + "..." : text;
}

}  // namespace

std::optional<std::string> UnknownFields::line_about(const boost::json::object& body, Schema schema) {
  std::vector<std::string> names;
  bool full = false;
  for (const auto& member : body) {
    const std::string_view name = member.key();
    if (lists(schema, name)) continue;
    const std::lock_guard lock(mutex_);
    if (told_.size() >= kMostNames) break;
    const auto [place, is_new] = told_.insert(in_the_log(name));
    if (is_new) names.push_back(*place);
    full = told_.size() >= kMostNames;
  }
  if (names.empty()) return std::nullopt;
  return fmt::format("The following fields were present in the request but ignored: {{{}}}{}", fmt::join(names, ", "),
                     full ? " (enough; no further names are told)" : "");
}

}  // namespace tandem::api
