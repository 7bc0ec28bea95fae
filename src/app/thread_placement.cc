// SPDX-License-Identifier: Apache-2.0
#include "app/thread_placement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "config/cpu_binding.h"

namespace tandem::app {
namespace {

constexpr int kAnyNode = -1;

bool contains(const std::vector<int>& list, int value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

std::map<int, int> node_of_cpu(const std::vector<NumaNode>& nodes) {
  std::map<int, int> found;
  for (const NumaNode& node : nodes)
    for (const int cpu : node.cpus) found[cpu] = node.id;
  return found;
}

/// One thread on each listed CPU.
Result<ThreadPlacement> on_listed_cpus(const config::CpuBinding& binding, const std::vector<int>& usable) {
  ThreadPlacement placement;
  for (std::size_t rank = 0; rank < binding.lists.size(); ++rank)
    for (const int cpu : binding.lists[rank]) {
      if (!contains(usable, cpu))
        return Status(Code::kInvalidArgument,
                      fmt::format("--cpu-bind (or VLLM_CPU_OMP_THREADS_BIND): CPU {} of rank {} cannot be used; this "
                                  "process may run on {}",
                                  cpu, rank, fmt::join(usable, ",")),
                      Scope::kProcess);
      placement.cpus.push_back({cpu});
    }
  placement.num_threads = static_cast<int>(placement.cpus.size());
  return placement;
}

/// Threads in order over the CPUs ordered by node: ranks, whose threads are neighbours, stay together. A thread may
/// move within its node, so that two instances on one machine do not sit on the same CPUs.
void keep_on_nodes(ThreadPlacement& placement, const std::vector<int>& usable, const std::vector<NumaNode>& nodes) {
  std::vector<std::vector<int>> usable_of;
  std::vector<std::size_t> node_of_slot;  // one slot a CPU
  for (const NumaNode& node : nodes) {
    std::vector<int> cpus;
    for (const int cpu : node.cpus)
      if (contains(usable, cpu)) cpus.push_back(cpu);
    if (cpus.empty()) continue;
    node_of_slot.insert(node_of_slot.end(), cpus.size(), usable_of.size());
    usable_of.push_back(std::move(cpus));
  }
  if (usable_of.size() < 2) return;
  const auto count = static_cast<std::size_t>(placement.num_threads);
  for (std::size_t thread = 0; thread < count; ++thread)
    placement.cpus.push_back(usable_of[node_of_slot[thread * node_of_slot.size() / count]]);
}

/// The node on which all of a rank's threads are, rank by rank.
std::vector<int> nodes_of_ranks(const ThreadPlacement& placement, int ranks, const std::vector<NumaNode>& nodes) {
  if (nodes.size() < 2 || placement.cpus.empty() || placement.num_threads % ranks != 0) return {};
  const std::map<int, int> node_of = node_of_cpu(nodes);
  const auto each = static_cast<std::size_t>(placement.num_threads / ranks);
  std::vector<int> found;
  for (std::size_t thread = 0; thread < placement.cpus.size(); ++thread) {
    const auto node = node_of.find(placement.cpus[thread].front());
    const int id = node == node_of.end() ? kAnyNode : node->second;
    if (thread % each == 0)
      found.push_back(id);
    else if (found.back() != id)
      found.back() = kAnyNode;
  }
  return found;
}

}  // namespace

std::vector<NumaNode> numa_nodes(const std::string& directory) {
  constexpr int kMostNodes = 1024;  // as Linux has them; ids may have gaps
  std::vector<NumaNode> nodes;
  for (int id = 0; id < kMostNodes; ++id) {
    std::ifstream in(fmt::format("{}/node{}/cpulist", directory, id));
    std::string text;
    // A node of memory only has an empty list.
    if (!std::getline(in, text) || text.empty()) continue;
    if (auto cpus = config::parse_cpu_list(text)) nodes.push_back({id, std::move(*cpus)});
  }
  return nodes;
}

Result<ThreadPlacement> place_threads(const config::ServeConfig& config, const std::vector<int>& usable,
                                      const std::vector<NumaNode>& nodes) {
  ThreadPlacement placement;
  if (config.cpu_binding.mode == config::CpuBinding::Mode::kLists) {
    TANDEM_ASSIGN(placement, on_listed_cpus(config.cpu_binding, usable));
  } else {
    const auto all = static_cast<int>(usable.size());
    placement.num_threads = config.threads > 0 ? config.threads : all;
    if (config.threads == 0 && config.threads_per_rank > 0) {
      const int wanted = config.threads_per_rank * config.tensor_parallel_size;
      placement.num_threads = std::min(wanted, all);
      if (wanted > all)
        placement.note = fmt::format(
            "OMP_NUM_THREADS {} for each of {} ranks is more than the {} usable CPUs; {} threads are used "
            "(--threads sets another number)",
            config.threads_per_rank, config.tensor_parallel_size, all, all);
    }
    if (config.cpu_binding.mode == config::CpuBinding::Mode::kAuto) keep_on_nodes(placement, usable, nodes);
  }
  placement.rank_nodes = nodes_of_ranks(placement, config.tensor_parallel_size, nodes);
  return placement;
}

}  // namespace tandem::app
