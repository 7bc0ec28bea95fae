// SPDX-License-Identifier: Apache-2.0
// Header fields: ordered, names compared without case. Lists are short, so a linear search is the fast one.
#include <algorithm>
#include <cctype>

#include "net/http_server.h"

namespace tandem::net {
namespace {

bool same_name(std::string_view a, std::string_view b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](char x, char y) {
           return std::tolower(static_cast<unsigned char>(x)) == std::tolower(static_cast<unsigned char>(y));
         });
}

}  // namespace

void Headers::add(std::string name, std::string value) { fields_.emplace_back(std::move(name), std::move(value)); }

void Headers::set(std::string name, std::string value) {
  remove(name);
  add(std::move(name), std::move(value));
}

void Headers::remove(std::string_view name) {
  std::erase_if(fields_, [name](const auto& field) { return same_name(field.first, name); });
}

std::optional<std::string_view> Headers::find(std::string_view name) const {
  for (const auto& [field, value] : fields_) {
    if (same_name(field, name)) return std::string_view(value);
  }
  return std::nullopt;
}

std::vector<std::string> listed_names(std::string_view value) {
  std::vector<std::string> names;
  while (!value.empty()) {
    const auto comma = std::min(value.find(','), value.size());
    auto name = value.substr(0, comma);
    value.remove_prefix(std::min(comma + 1, value.size()));
    while (name.starts_with(' ')) name.remove_prefix(1);
    while (name.ends_with(' ')) name.remove_suffix(1);
    if (!name.empty()) names.emplace_back(name);
  }
  return names;
}

}  // namespace tandem::net
