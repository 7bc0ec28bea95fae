// SPDX-License-Identifier: Apache-2.0
// --cpu-bind and VLLM_CPU_OMP_THREADS_BIND: "auto", "nobind", or one CPU list for each rank, "0-15|16-31" (the forms of
// vLLM's CPU backend).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "config/serve_config.h"

namespace tandem::config {

/// CPU numbers as Linux writes them, "0-3,8". The result ascends; a CPU listed twice is an error.
Result<std::vector<int>> parse_cpu_list(std::string_view text);

Result<CpuBinding> parse_cpu_binding(std::string_view text);

/// Whether `lists` (none, or one a rank) are of one length and share no CPU.
Result<void> check_cpu_lists(const std::vector<std::vector<int>>& lists, std::int32_t num_ranks);

}  // namespace tandem::config
