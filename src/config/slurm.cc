// SPDX-License-Identifier: Apache-2.0
#include "config/slurm.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

#include "config/values.h"

namespace tandem::config {
namespace {

struct Variable {
  std::string name;
  std::string value;
};

std::optional<Variable> first_set(const Environment& environment, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (auto value = environment(name); value && !value->empty()) return Variable{name, *value};
  return std::nullopt;
}

Result<std::int32_t> number_of(const Variable& variable, std::int64_t low) {
  constexpr std::int64_t kMost = 1 << 20;
  auto number = parse_integer(variable.value, low, kMost);
  if (!number) return number.error().context("environment variable " + variable.name);
  return static_cast<std::int32_t>(*number);
}

}  // namespace

Result<std::string> first_slurm_host(std::string_view list) {
  const auto bad = [&] {
    return Status(Code::kInvalidArgument, fmt::format("'{}' is not a list of hosts", list.substr(0, 200)));
  };
  const std::size_t open = list.find_first_of("[,");
  if (list.empty() || open == 0) return bad();
  if (open == std::string_view::npos || list[open] == ',') return std::string(list.substr(0, open));
  const std::size_t close = list.find(']', open);
  if (close == std::string_view::npos) return bad();
  const std::string_view numbers = list.substr(open + 1, close - open - 1);
  const std::string_view first = numbers.substr(0, numbers.find_first_of(",-"));
  const bool digits =
      !first.empty() && std::all_of(first.begin(), first.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (!digits) return bad();
  const std::string_view rest = list.substr(close + 1);
  return fmt::format("{}{}{}", list.substr(0, open), first, rest.substr(0, rest.find(',')));
}

Result<std::optional<SlurmPlace>> slurm_place(const Environment& environment) {
  const auto process = first_set(environment, {"SLURM_PROCID"});
  const auto count = first_set(environment, {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NNODES"});
  const auto nodes = first_set(environment, {"SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST"});
  if (!process || !count || !nodes) return std::optional<SlurmPlace>();
  SlurmPlace place;
  TANDEM_ASSIGN(place.num_processes, number_of(*count, 1));
  TANDEM_ASSIGN(place.process, number_of(*process, 0));
  if (place.num_processes == 1) return std::optional<SlurmPlace>();
  if (place.process >= place.num_processes)
    return Status(Code::kInvalidArgument, fmt::format("environment variable SLURM_PROCID is {}, but {} is {}",
                                                      place.process, count->name, place.num_processes));
  auto host = first_slurm_host(nodes->value);
  if (!host) return host.error().context("environment variable " + nodes->name);
  place.first_host = std::move(*host);
  return std::optional(std::move(place));
}

}  // namespace tandem::config
