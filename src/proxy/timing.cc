// SPDX-License-Identifier: Apache-2.0
#include "proxy/timing.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace tandem::proxy {
namespace {

constexpr std::size_t kMostParts = 32;
constexpr std::size_t kMostNameBytes = 32;
constexpr double kMostSeconds = 1e6;  ///< sums of these stay exact to the microsecond
/// Parts of a decoder in which it waits for KV, the longest first to be blamed.
constexpr std::string_view kWaits[] = {"transfer", "lease_wait", "queue"};

bool is_name(std::string_view text) {
  const auto fits = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.'; };
  return !text.empty() && text.size() <= kMostNameBytes && std::all_of(text.begin(), text.end(), fits);
}

double sum(const TimingParts& parts) {
  double total = 0;
  for (const auto& [name, seconds] : parts) total += seconds;
  return total;
}

/// Takes up to `seconds` out of the parts in which a decoder waited; returns how much that was.
double take_waiting(TimingParts& parts, double seconds) {
  double taken = 0;
  for (const auto name : kWaits) {
    for (auto& [part, value] : parts) {
      if (part != name) continue;
      const double share = std::min(value, seconds - taken);
      value -= share;
      taken += share;
    }
  }
  return taken;
}

/// Adds "other", so that the parts add up to `seconds`; shrinks them if they are more than that (two clocks).
void complete(TimingParts& parts, double seconds) {
  const double known = sum(parts);
  if (known > seconds) {
    for (auto& [name, value] : parts) value *= seconds / known;
  }
  parts.emplace_back("other", std::max(0.0, seconds - known));
}

void append(std::string& out, std::string_view prefix, const TimingParts& parts) {
  for (const auto& [name, seconds] : parts) out += fmt::format("{}{}={:.6f};", prefix, name, seconds);
}

}  // namespace

TimingParts parse_timing(std::string_view header) {
  TimingParts parts;
  while (!header.empty() && parts.size() < kMostParts) {
    const auto end = std::min(header.find(';'), header.size());
    auto item = header.substr(0, end);
    header.remove_prefix(std::min(end + 1, header.size()));
    while (item.starts_with(' ')) item.remove_prefix(1);
    const auto equals = item.find('=');
    if (equals == std::string_view::npos || !is_name(item.substr(0, equals))) continue;
    const auto number = item.substr(equals + 1);
    double seconds = 0;
    const auto [stop, error] = std::from_chars(number.data(), number.data() + number.size(), seconds);
    if (error != std::errc() || stop != number.data() + number.size() || !(seconds >= 0 && seconds <= kMostSeconds))
      continue;
    parts.emplace_back(std::string(item.substr(0, equals)), seconds);
  }
  return parts;
}

std::string combine_timing(double total, const StageTime& prefill, const StageTime& decode, bool overlapped) {
  TimingParts of_prefill = parse_timing(prefill.header);
  TimingParts of_decode = parse_timing(decode.header);
  const double asked = std::min(decode.seconds, total);
  double prefill_seconds = std::min(prefill.seconds, total);
  double decode_seconds = asked;
  if (overlapped) {
    const double unnamed = std::max(0.0, asked - sum(of_decode));
    prefill_seconds = std::min(prefill_seconds, asked);
    const double waited = take_waiting(of_decode, prefill_seconds);
    prefill_seconds = std::min(prefill_seconds, waited + unnamed);
    decode_seconds = asked - prefill_seconds;
  }
  std::string out;
  if (prefill_seconds > 0) {
    complete(of_prefill, prefill_seconds);
    append(out, "prefill.", of_prefill);
  }
  complete(of_decode, decode_seconds);
  append(out, "decode.", of_decode);
  return out + fmt::format("proxy={:.6f}", std::max(0.0, total - prefill_seconds - decode_seconds));
}

}  // namespace tandem::proxy
