// SPDX-License-Identifier: Apache-2.0
#include "obs/merge.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <vector>

#include "obs/exposition.h"

namespace tandem::obs {
namespace {

struct Series {
  std::string name;  ///< with labels
  std::string value;
};

struct Family {
  std::string head;  ///< HELP and TYPE
  std::vector<Series> series;
  std::map<std::string, std::size_t, std::less<>> places;  ///< in `series`
};

constexpr std::string_view kHelp = "# HELP ";

std::optional<double> number(std::string_view text) {
  double value = 0.0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end.ec != std::errc() || end.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

/// `line`: name, labels and value.
void add(Family& family, std::string_view line) {
  const std::size_t space = line.rfind(' ');
  if (space == std::string_view::npos) return;
  const std::string_view name = line.substr(0, space);
  const std::string_view value = line.substr(space + 1);
  const auto known = family.places.find(name);
  if (known == family.places.end()) {
    family.places.emplace(name, family.series.size());
    family.series.push_back({std::string(name), std::string(value)});
    return;
  }
  Series& series = family.series[known->second];
  const auto sum = number(series.value);
  const auto more = number(value);
  if (sum && more) series.value = format_number(*sum + *more);
}

}  // namespace

std::string merge_expositions(std::span<const std::string> texts, Format format, std::string_view hidden_prefix) {
  std::map<std::string, Family, std::less<>> families;
  for (std::string_view text : texts) {
    Family* family = nullptr;
    bool first_seen = false;
    while (!text.empty()) {
      const std::size_t end = std::min(text.find('\n'), text.size());
      const std::string_view line = text.substr(0, end);
      text.remove_prefix(std::min(end + 1, text.size()));
      if (line.starts_with(kHelp)) {
        const std::string_view rest = line.substr(kHelp.size());
        family = &families[std::string(rest.substr(0, rest.find(' ')))];
        first_seen = family->head.empty();
      }
      if (family == nullptr || line.empty() || kEndOfOpenMetrics.starts_with(line)) continue;
      if (!line.starts_with('#'))
        add(*family, line);
      else if (first_seen)
        family->head.append(line).append("\n");
    }
  }
  std::string merged;
  for (const auto& [name, family] : families) {
    if (!hidden_prefix.empty() && name.starts_with(hidden_prefix)) continue;
    merged += family.head;
    for (const Series& series : family.series) merged.append(series.name).append(" ").append(series.value).append("\n");
  }
  if (format == Format::kOpenMetrics) merged += kEndOfOpenMetrics;
  return merged;
}

}  // namespace tandem::obs
