// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <memory>

#include "app/commands.h"
#include "cluster/hccn.h"
#include "cluster/node_facts.h"
#include "cluster/rank_table_sources.h"

namespace tandem::app {
namespace {

Result<void> check_file(const std::string& path) {
  constexpr std::size_t kMaxBytes = 16U << 20;
  TANDEM_ASSIGN(const std::string text, cluster::read_text_file(path, kMaxBytes));
  const auto reading = cluster::read_rank_table(text);
  if (!reading) return reading.error().context(path);
  for (const std::string& problem : reading->problems) fmt::print("{}: {}\n", path, problem);
  if (!reading->problems.empty())
    return Status(Code::kInvalidArgument, fmt::format("{}: {} problem(s)", path, reading->problems.size()));
  const cluster::RankTable& table = reading->table;
  fmt::print("{}: good: {} nodes, {} prefill and {} decode devices, {} form\n", path, table.server_count,
             table.prefill_device_list.size(), table.decode_device_list.size(),
             table.prefill_device_list[0].super_device_id ? "A3" : "A2");
  return {};
}

}  // namespace

Result<void> run_ranktable(const config::RanktableConfig& config) {
  if (!config.check_file.empty()) return check_file(config.check_file);
  const auto runner = cluster::process_runner();
  const cluster::Hccn hccn(*runner, config.hccn_tool, config.tool_timeout);
  cluster::RankTableHost host;
  host.interfaces = cluster::host_interfaces();
  if (cluster::file_exists(config.hccn_tool)) host.hccn = &hccn;
  TANDEM_ASSIGN(const cluster::RankTableFile file, cluster::build_rank_table(config, host));
  TANDEM_TRY(cluster::write_text_file(file.path, file.text));
  if (!file.partial) {
    fmt::print("{}: the rank table of {} node(s)\n", file.path, file.num_nodes);
    return {};
  }
  fmt::print(
      "{}: the share of node {} (1 of {}). Run the same command on the other nodes, bring the files together and run\n"
      "  tandem ranktable --ips {} --prefill-device-cnt {} --decode-device-cnt {} --merge ranktable.*.json\n",
      file.path, file.node, file.num_nodes, fmt::join(config.ips, " "), config.prefill_device_cnt,
      config.decode_device_cnt);
  return {};
}

}  // namespace tandem::app
