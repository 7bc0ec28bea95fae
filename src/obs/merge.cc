// SPDX-License-Identifier: Apache-2.0
#include "obs/merge.h"

#include <algorithm>
#include <map>
#include <string_view>

namespace tandem::obs {
namespace {

struct Family {
  std::string head;  ///< HELP and TYPE
  std::string series;
};

constexpr std::string_view kHelp = "# HELP ";

}  // namespace

std::string merge_expositions(std::span<const std::string> texts) {
  std::map<std::string, Family, std::less<>> families;
  for (std::string_view text : texts) {
    Family* family = nullptr;
    bool first_seen = false;
    while (!text.empty()) {
      const std::size_t end = std::min(text.find('\n'), text.size() - 1) + 1;
      const std::string_view line = text.substr(0, end);
      text.remove_prefix(end);
      if (line.starts_with(kHelp)) {
        const std::string_view rest = line.substr(kHelp.size());
        family = &families[std::string(rest.substr(0, rest.find_first_of(" \n")))];
        first_seen = family->head.empty();
      }
      if (family == nullptr) continue;
      if (!line.starts_with('#'))
        family->series += line;
      else if (first_seen)
        family->head += line;
    }
  }
  std::string merged;
  for (const auto& [name, family] : families) merged += family.head + family.series;
  return merged;
}

}  // namespace tandem::obs
