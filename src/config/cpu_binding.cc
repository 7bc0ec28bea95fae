// SPDX-License-Identifier: Apache-2.0
#include "config/cpu_binding.h"

#include <fmt/format.h>

#include <set>
#include <string>
#include <utility>

#include "config/values.h"

namespace tandem::config {
namespace {

Status invalid(std::string message) { return Status(Code::kInvalidArgument, std::move(message)); }

}  // namespace

Result<std::vector<int>> parse_cpu_list(std::string_view text) {
  constexpr std::int64_t kMostCpus = 1024;  // of the kernel's affinity masks as glibc has them
  std::vector<bool> listed(kMostCpus, false);
  while (true) {
    const std::string_view range = text.substr(0, text.find(','));
    const std::size_t dash = range.find('-');
    TANDEM_ASSIGN(const std::int64_t first, parse_integer(range.substr(0, dash), 0, kMostCpus - 1));
    std::int64_t last = first;
    if (dash != std::string_view::npos) {
      TANDEM_ASSIGN(last, parse_integer(range.substr(dash + 1), first, kMostCpus - 1));
    }
    for (std::int64_t cpu = first; cpu <= last; ++cpu) {
      if (listed[static_cast<std::size_t>(cpu)]) return invalid(fmt::format("CPU {} is listed twice", cpu));
      listed[static_cast<std::size_t>(cpu)] = true;
    }
    if (range.size() == text.size()) break;
    text.remove_prefix(range.size() + 1);
  }
  std::vector<int> cpus;
  for (int cpu = 0; cpu < kMostCpus; ++cpu)
    if (listed[static_cast<std::size_t>(cpu)]) cpus.push_back(cpu);
  return cpus;
}

Result<CpuBinding> parse_cpu_binding(std::string_view text) {
  if (text == "auto") return CpuBinding{};
  if (text == "nobind") return CpuBinding{CpuBinding::Mode::kNone, {}};
  CpuBinding binding{CpuBinding::Mode::kLists, {}};
  while (true) {
    const std::string_view part = text.substr(0, text.find('|'));
    auto list = parse_cpu_list(part);
    if (!list)
      return list.error().context(fmt::format(
          "'{}' is no list of CPUs (expected auto, nobind, or one list a rank, for example 0-15|16-31)", part));
    binding.lists.push_back(std::move(*list));
    if (part.size() == text.size()) return binding;
    text.remove_prefix(part.size() + 1);
  }
}

Result<void> check_cpu_lists(const std::vector<std::vector<int>>& lists, std::int32_t num_ranks) {
  if (lists.empty()) return {};
  if (lists.size() != static_cast<std::size_t>(num_ranks))
    return invalid(fmt::format("{} CPU lists for tensor-parallel size {}; give one list a rank, separated by |",
                               lists.size(), num_ranks));
  std::set<int> seen;
  for (const auto& list : lists) {
    if (list.size() != lists[0].size())
      return invalid(fmt::format("lists of {} and of {} CPUs; all ranks need as many, since they wait for each other",
                                 lists[0].size(), list.size()));
    for (const int cpu : list)
      if (!seen.insert(cpu).second) return invalid(fmt::format("CPU {} is in two lists", cpu));
  }
  return {};
}

}  // namespace tandem::config
