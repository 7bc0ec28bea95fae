// SPDX-License-Identifier: Apache-2.0
#include "bench/summary.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

namespace tandem::bench {
namespace {

constexpr double kMillisecondsPerSecond = 1000.0;

/// Of one answer: the mean time of a token after the first, 0 if there is none.
double time_per_output_token(const StreamRecord& record) {
  if (record.output_tokens < 2) return 0.0;
  return (record.latency - record.ttft) / static_cast<double>(record.output_tokens - 1);
}

bool meets(const StreamRecord& record, const std::vector<std::pair<std::string, double>>& goals) {
  return std::all_of(goals.begin(), goals.end(), [&](const auto& goal) {
    const double took = goal.first == "ttft"   ? record.ttft
                        : goal.first == "tpot" ? time_per_output_token(record)
                                               : record.latency;
    return took * kMillisecondsPerSecond <= goal.second;
  });
}

/// Whole seconds from the first request on: events with tokens, and requests that were under way. A map, so that a long
/// pause costs nothing.
struct PerSecond {
  std::map<std::int64_t, std::int64_t> tokens, requests;

  void add(const StreamRecord& record, TimePoint begin) {
    const double start = seconds(record.start - begin);
    double now = start + record.ttft;
    ++tokens[static_cast<std::int64_t>(now)];
    for (const float gap : record.itls) {
      now += double{gap};
      ++tokens[static_cast<std::int64_t>(now)];
    }
    const auto last = static_cast<std::int64_t>(start + record.latency);
    for (auto second = static_cast<std::int64_t>(start); second <= last; ++second) ++requests[second];
  }
};

std::int64_t largest(const std::map<std::int64_t, std::int64_t>& counts) {
  std::int64_t most = 0;
  for (const auto& [second, count] : counts) most = std::max(most, count);
  return most;
}

}  // namespace

double percentile(std::span<const double> sorted, double percent) {
  if (sorted.empty()) return 0.0;
  const double place = percent / 100.0 * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  const double share = place - static_cast<double>(below);
  return sorted[below] + (sorted[above] - sorted[below]) * share;
}

Distribution distribution(std::vector<double> samples, std::span<const double> percents) {
  for (double& sample : samples) sample *= kMillisecondsPerSecond;
  std::sort(samples.begin(), samples.end());
  Distribution result;
  const auto count = static_cast<double>(std::max<std::size_t>(samples.size(), 1));
  result.mean = std::accumulate(samples.begin(), samples.end(), 0.0) / count;
  double squares = 0.0;
  for (const double sample : samples) squares += (sample - result.mean) * (sample - result.mean);
  result.std = std::sqrt(squares / count);
  result.median = percentile(samples, 50.0);
  for (const double percent : percents) result.percentiles.emplace_back(percent, percentile(samples, percent));
  return result;
}

Summary summarise(std::span<const StreamRecord> records, double duration, const config::BenchConfig& config) {
  Summary summary;
  summary.duration = duration;
  std::int64_t good = 0;
  std::vector<double> ttfts, tpots, itls, e2els;
  TimePoint begin = TimePoint::max();
  for (const StreamRecord& record : records)
    if (record.success) begin = std::min(begin, record.start);
  PerSecond per_second;
  for (const StreamRecord& record : records) {
    if (!record.success) {
      ++summary.failed;
      continue;
    }
    ++summary.completed;
    summary.total_input += record.prompt_tokens;
    summary.total_output += record.output_tokens;
    ttfts.push_back(record.ttft);
    e2els.push_back(record.latency);
    if (record.output_tokens > 1) tpots.push_back(time_per_output_token(record));
    itls.insert(itls.end(), record.itls.begin(), record.itls.end());
    if (!config.goodput.empty() && meets(record, config.goodput)) ++good;
    per_second.add(record, begin);
  }
  const double over = std::max(duration, std::numeric_limits<double>::min());
  summary.request_throughput = static_cast<double>(summary.completed) / over;
  summary.request_goodput = static_cast<double>(good) / over;
  summary.output_throughput = static_cast<double>(summary.total_output) / over;
  summary.total_token_throughput = static_cast<double>(summary.total_input + summary.total_output) / over;
  summary.max_output_tokens_per_s = static_cast<double>(largest(per_second.tokens));
  summary.max_concurrent_requests = largest(per_second.requests);
  summary.ttft = distribution(std::move(ttfts), config.percentiles);
  summary.tpot = distribution(std::move(tpots), config.percentiles);
  summary.itl = distribution(std::move(itls), config.percentiles);
  summary.e2el = distribution(std::move(e2els), config.percentiles);
  return summary;
}

}  // namespace tandem::bench
