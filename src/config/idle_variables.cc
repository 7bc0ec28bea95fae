// SPDX-License-Identifier: Apache-2.0
#include "config/idle_variables.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <vector>

namespace tandem::config {
namespace {

/// How names begin that a script sets for vLLM on some device. LD_PRELOAD and the like are the loader's and do work.
constexpr std::string_view kFamilies[] = {"VLLM_",
                                          "HCCL_",
                                          "GLOO_",
                                          "TP_SOCKET_",
                                          "OMP_",
                                          "NCCL_",
                                          "ASCEND_",
                                          "ACL_",
                                          "KMP_",
                                          "PYTORCH_NPU_ALLOC",
                                          "DISAGGREGATED_",
                                          "MOONCAKE_",
                                          "MC_",
                                          "LCCL_",
                                          "TASK_QUEUE_ENABLE",
                                          "CPU_AFFINITY_CONF"};

/// Read by serve_device_options.cc, serve_frontend_options.cc and serve_logging_options.cc.
constexpr std::string_view kRead[] = {"OMP_NUM_THREADS",
                                      "VLLM_CPU_OMP_THREADS_BIND",
                                      "VLLM_HOST_IP",
                                      "VLLM_API_KEY",
                                      "VLLM_ALLOW_LONG_MAX_MODEL_LEN",
                                      "VLLM_LOGGING_LEVEL",
                                      "VLLM_LOG_STATS_INTERVAL",
                                      "VLLM_SERVER_DEV_MODE",
                                      "VLLM_HTTP_TIMEOUT_KEEP_ALIVE",
                                      "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH"};
constexpr std::string_view kReadForAddress[] = {"HCCL_IF_IP", "HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME",
                                                "TP_SOCKET_IFNAME"};
/// Read by kv_transfer_config.cc.
constexpr std::string_view kReadWithRankTable[] = {"DISAGGREGATED_PREFILL_RANK_TABLE_PATH", "VLLM_ASCEND_LLMDD_RPC_IP",
                                                   "VLLM_ASCEND_LLMDD_RPC_PORT", "ASCEND_RT_VISIBLE_DEVICES"};

bool is_one_of(std::span<const std::string_view> list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

}  // namespace

std::string idle_variables_note(std::span<const std::string> names, const ServeConfig& config) {
  const bool rank_table = config.kv_transfer && config.kv_transfer->kind == KvConnector::kRankTable;
  std::vector<std::string> idle;
  for (const std::string& name : names) {
    const bool known = std::any_of(std::begin(kFamilies), std::end(kFamilies),
                                   [&](std::string_view family) { return name.starts_with(family); });
    if (!known || is_one_of(kRead, name) || is_one_of(kReadForAddress, name)) continue;
    if (rank_table && is_one_of(kReadWithRankTable, name)) continue;
    idle.push_back(name);
  }
  if (idle.empty()) return {};
  std::sort(idle.begin(), idle.end());
  return fmt::format("environment variables that do nothing here: {}", fmt::join(idle, ", "));
}

}  // namespace tandem::config
