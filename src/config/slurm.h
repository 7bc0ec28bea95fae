// SPDX-License-Identifier: Apache-2.0
// What `srun` tells a process: which of a job's processes it is, and where the first one runs. Read from environment
// variables alone; nothing of Slurm is linked.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "config/command_options.h"

namespace tandem::config {

struct SlurmPlace {
  std::int32_t process = 0;        ///< SLURM_PROCID
  std::int32_t num_processes = 1;  ///< SLURM_STEP_NUM_TASKS or SLURM_NTASKS, else SLURM_NNODES
  std::string first_host;          ///< of SLURM_STEP_NODELIST or SLURM_NODELIST
};

/// nullopt if this is not one of several processes of a job step. An error names the variable and what it holds.
Result<std::optional<SlurmPlace>> slurm_place(const Environment& environment);

/// The first host of a list as Slurm writes it: "node[03-16,20],other7" is node03.
Result<std::string> first_slurm_host(std::string_view list);

}  // namespace tandem::config
