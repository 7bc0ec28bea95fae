// SPDX-License-Identifier: Apache-2.0
// Peaks from register-only loops, memory speed from summing a large buffer; best of several runs, since other
// processes only ever make them lower.
#include "machine_limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/kernels.h"
#include "kernels/thread_team.h"
#include "peak_loops.h"

namespace tandem::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// Operations per second of all threads together, in units of 1e9; best of five runs of about 20 ms.
double best_rate(kernels::ThreadTeam& team, double (*loop)(std::int64_t rounds)) {
  constexpr std::int64_t kRounds = 3'000'000 / 4;
  double best = 0;
  for (int run = 0; run < 5; ++run) {
    std::vector<double> operations(static_cast<std::size_t>(team.size()));
    const auto start = Clock::now();
    team.run([&](int thread) { operations[static_cast<std::size_t>(thread)] = loop(kRounds); });
    const double elapsed = seconds_since(start);
    double total = 0;
    for (const double value : operations) total += value;
    best = std::max(best, total / elapsed / 1e9);
  }
  return best;
}

/// Four sums keep enough loads in flight; the compiler makes vector loads of them.
std::uint64_t sum_words(const std::uint64_t* words, std::size_t count) {
  std::uint64_t sum[8] = {};
  for (std::size_t i = 0; i + 8 <= count; i += 8) {
    for (std::size_t j = 0; j < 8; ++j) sum[j] += words[i + j];
  }
  std::uint64_t total = 0;
  for (const std::uint64_t value : sum) total += value;
  return total;
}

double best_read_rate(kernels::ThreadTeam& team) {
  constexpr std::size_t kBytesPerThread = std::size_t{192} << 20;
  constexpr std::size_t kWords = kBytesPerThread / sizeof(std::uint64_t);
  std::vector<std::vector<std::uint64_t>> buffers(static_cast<std::size_t>(team.size()));
  team.run([&](int thread) { buffers[static_cast<std::size_t>(thread)].assign(kWords, 1); });
  double best = 0;
  for (int run = 0; run < 5; ++run) {
    std::vector<std::uint64_t> sums(buffers.size());
    const auto start = Clock::now();
    team.run([&](int thread) {
      const auto index = static_cast<std::size_t>(thread);
      sums[index] = sum_words(buffers[index].data(), kWords);
    });
    const double elapsed = seconds_since(start);
    const bool right = std::all_of(sums.begin(), sums.end(), [](std::uint64_t sum) { return sum == kWords; });
    if (right) best = std::max(best, static_cast<double>(kBytesPerThread * buffers.size()) / elapsed / 1e9);
  }
  return best;
}

}  // namespace

Limits measure_limits(int threads) {
  const auto usable = kernels::usable_cpus();
  std::vector<std::vector<int>> cpus;
  if (usable.size() >= static_cast<std::size_t>(threads)) {
    for (int thread = 0; thread < threads; ++thread) cpus.push_back({usable[static_cast<std::size_t>(thread)]});
  }
  kernels::ThreadTeam team(threads, cpus);
  Limits limits;
  limits.threads = threads;
  switch (kernels::detect_isa()) {
    case kernels::Isa::kAvx512:
      limits.int8_gops = best_rate(team, int8_peak_avx512);
      limits.bf16_gflops = best_rate(team, bf16_peak_avx512);
      limits.f32_gflops = best_rate(team, f32_peak_avx512);
      break;
    case kernels::Isa::kAvx2:
      limits.int8_gops = best_rate(team, int8_peak_avx2);
      limits.f32_gflops = best_rate(team, f32_peak_avx2);
      break;
    case kernels::Isa::kPortable:
    case kernels::Isa::kNeon:
    case kernels::Isa::kDotprod:
      break;
  }
  limits.read_gbps = best_read_rate(team);
  return limits;
}

std::string limits_json(int threads) {
  std::string entries;
  for (const int count : threads == 1 ? std::vector<int>{1} : std::vector<int>{1, threads}) {
    const Limits limits = measure_limits(count);
    entries += fmt::format(
        R"({}{{"threads": {}, "int8_gops": {:.1f}, "bf16_gflops": {:.1f}, "f32_gflops": {:.1f}, "read_gbps": {:.2f}}})",
        entries.empty() ? "" : ", ", limits.threads, limits.int8_gops, limits.bf16_gflops, limits.f32_gflops,
        limits.read_gbps);
  }
  return fmt::format(R"({{"isa": "{}", "limits": [{}]}})", kernels::isa_name(kernels::detect_isa()), entries);
}

}  // namespace tandem::bench
