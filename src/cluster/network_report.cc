// SPDX-License-Identifier: Apache-2.0
// The table of `tandem check network`, for people and as JSON.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <cstdlib>
#include <map>

#include "cluster/network_check.h"

namespace tandem::cluster {
namespace {

constexpr std::string_view kDevice = "device ";

/// A tool or a peer may print anything; a table must stay a table.
std::string printable(std::string text) {
  constexpr std::size_t kLongest = 400;
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 32 || c == 127) c = ' ';
  return text;
}

/// Rows of well devices with the same question, in the order of their first one.
struct Line {
  CheckRow row;
  std::vector<std::string> devices;
  std::string last_found;
};

std::string device_range(const std::vector<std::string>& devices) {
  if (devices.size() == 1) return fmt::format("device {}", devices[0]);
  std::vector<int> ids;
  for (const std::string& id : devices) ids.push_back(std::atoi(id.c_str()));
  const bool dense = ids.back() - ids.front() + 1 == static_cast<int>(ids.size());
  return dense ? fmt::format("devices {}-{}", ids.front(), ids.back()) : fmt::format("{} devices", ids.size());
}

std::vector<CheckRow> folded(std::span<const CheckRow> rows) {
  std::vector<Line> lines;
  std::map<std::string, std::size_t> open;  // node and check
  for (const CheckRow& row : rows) {
    const bool foldable = row.outcome == Outcome::kOk && row.subject.starts_with(kDevice);
    const std::string id = foldable ? row.subject.substr(kDevice.size()) : "";
    if (foldable) {
      const auto [at, fresh] = open.try_emplace(row.node + "\n" + row.check, lines.size());
      if (!fresh) {
        lines[at->second].devices.push_back(id);
        lines[at->second].last_found = row.found;
        continue;
      }
    }
    lines.push_back({row, {}, row.found});
    if (foldable) lines.back().devices.push_back(id);
  }
  std::vector<CheckRow> out;
  for (Line& line : lines) {
    if (!line.devices.empty()) line.row.subject = device_range(line.devices);
    if (line.last_found != line.row.found) line.row.found += " ... " + line.last_found;
    for (std::string* text : {&line.row.node, &line.row.subject, &line.row.check, &line.row.found, &line.row.remedy})
      *text = printable(std::move(*text));
    out.push_back(std::move(line.row));
  }
  return out;
}

}  // namespace

std::string check_table_text(std::span<const CheckRow> rows) {
  const std::vector<CheckRow> lines = folded(rows);
  std::array<std::size_t, 3> width{4, 7, 5};
  for (const CheckRow& row : lines)
    width = {std::max(width[0], row.node.size()), std::max(width[1], row.subject.size()),
             std::max(width[2], row.check.size())};
  std::string out = fmt::format("{:{}}  {:{}}  {:{}}  {:7}  {}\n", "NODE", width[0], "WHAT", width[1], "CHECK",
                                width[2], "", "FOUND");
  for (const CheckRow& row : lines) {
    out += fmt::format("{:{}}  {:{}}  {:{}}  {:7}  {}\n", row.node, width[0], row.subject, width[1], row.check,
                       width[2], outcome_name(row.outcome), row.found);
    if (!row.remedy.empty()) out += fmt::format("{:{}}  mend: {}\n", "", width[0], row.remedy);
  }
  const std::size_t failed = num_failed(rows);
  const auto done =
      std::count_if(rows.begin(), rows.end(), [](const auto& row) { return row.outcome != Outcome::kSkipped; });
  out += failed == 0 ? fmt::format("all is well: {} checks\n", done)
                     : fmt::format("{} of {} checks failed\n", failed, done);
  return out;
}

std::string check_table_json(std::span<const CheckRow> rows) {
  namespace json = boost::json;
  json::array checks;
  for (const CheckRow& row : rows) {
    json::object one{{"node", row.node},
                     {"subject", row.subject},
                     {"check", row.check},
                     {"outcome", row.outcome == Outcome::kFailed ? "failed" : outcome_name(row.outcome)},
                     {"found", row.found}};
    if (!row.remedy.empty()) one["remedy"] = row.remedy;
    checks.push_back(std::move(one));
  }
  const std::size_t failed = num_failed(rows);
  return std::string(
             json::serialize(json::object{{"ok", failed == 0}, {"failed", failed}, {"checks", std::move(checks)}})) +
         "\n";
}

}  // namespace tandem::cluster
