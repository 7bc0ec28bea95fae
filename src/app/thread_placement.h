// SPDX-License-Identifier: Apache-2.0
// How many compute threads an instance has and on which CPUs they run (--threads, --cpu-bind). Pure, except for
// numa_nodes().
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "config/serve_config.h"

namespace tandem::app {

struct NumaNode {
  int id = 0;
  std::vector<int> cpus;
};

/// The nodes with CPUs under `directory` (in life /sys/devices/system/node), by id. Empty if it says nothing.
std::vector<NumaNode> numa_nodes(const std::string& directory);

struct ThreadPlacement {
  int num_threads = 1;
  std::vector<std::vector<int>> cpus;  ///< for each thread the CPUs it may run on; empty: all threads anywhere
  std::vector<int> rank_nodes;         ///< the node of all threads of a rank, -1 if there is none; empty if not known
  std::string note;                    ///< something the user should know, "" if nothing
};

/// `usable`: CPUs that this process may run on. An error names a CPU that is not among them.
Result<ThreadPlacement> place_threads(const config::ServeConfig& config, const std::vector<int>& usable,
                                      const std::vector<NumaNode>& nodes);

}  // namespace tandem::app
