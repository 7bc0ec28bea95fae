// SPDX-License-Identifier: Apache-2.0
#include "app/rank_place.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "base/log.h"
#include "cluster/host_network.h"
#include "cluster/rank_table.h"

namespace tandem::app {
namespace {

using cluster::RankTableDevice;

std::set<std::string> servers_of(const std::vector<RankTableDevice>& devices) {
  std::set<std::string> servers;
  for (const RankTableDevice& device : devices) servers.insert(device.server_id);
  return servers;
}

/// The server_id of this host in the role's list.
Result<std::string> own_server(const config::ServeConfig& config, const std::vector<std::string>& addresses,
                               const std::set<std::string>& own, const std::set<std::string>& other) {
  const config::KvTransferConfig& kv = *config.kv_transfer;
  const std::vector<std::string> candidates =
      config.advertised_host.empty() ? addresses : std::vector<std::string>{config.advertised_host};
  for (const std::string& candidate : candidates)
    if (own.contains(candidate)) return candidate;
  const std::string_view list = kv.produces() ? "prefill_device_list" : "decode_device_list";
  const bool in_other =
      std::any_of(candidates.begin(), candidates.end(), [&](const auto& one) { return other.contains(one); });
  return Status(Code::kFailedPrecondition,
                fmt::format("{}.server_id: none is this host ({}: {}), it has {}{}", list,
                            config.advertised_host.empty() ? "its addresses" : "VLLM_HOST_IP",
                            fmt::join(candidates, ", "), fmt::join(own, ", "),
                            in_other ? fmt::format("; the host is in the other list: is kv_role {} right?",
                                                   config::kv_role_name(kv.role))
                                     : "; set VLLM_HOST_IP to the host's server_id, or make the table again"));
}

}  // namespace

Result<void> take_place_in_rank_table(config::ServeConfig& config, const std::vector<std::string>& addresses) {
  config::KvTransferConfig& kv = *config.kv_transfer;
  const std::string where = fmt::format("rank table {} (DISAGGREGATED_PREFILL_RANK_TABLE_PATH)", kv.rank_table);
  const auto fail = [&](const Status& error) { return error.context(where).with_scope(Scope::kProcess); };
  auto table = cluster::load_rank_table(kv.rank_table);
  if (!table) return fail(table.error());
  const std::set<std::string> prefill = servers_of(table->prefill_device_list);
  const std::set<std::string> decode = servers_of(table->decode_device_list);
  auto server = own_server(config, addresses, kv.produces() ? prefill : decode, kv.produces() ? decode : prefill);
  if (!server) return fail(server.error());
  const auto role = kv.produces() ? cluster::TableRole::kPrefill : cluster::TableRole::kDecode;
  // The last rank first: its error counts how many rows are wanted.
  for (int rank = config.tensor_parallel_size; rank-- > 0;) {
    auto device = cluster::device_of_rank(*table, role, *server, kv.visible_devices, rank);
    if (!device) return fail(device.error().context(fmt::format("--tensor-parallel-size {}", rank + 1)));
    log::info("rank {} is device {} ({}) of {}, cluster_id {}", rank, device->device_id, device->device_ip, *server,
              device->cluster_id);
  }
  const std::set<std::string>& peers = kv.produces() ? decode : prefill;
  config.advertised_host = *server;
  kv.peer_hosts.assign(peers.begin(), peers.end());
  return {};
}

std::vector<std::string> host_addresses() {
  std::vector<std::string> addresses;
  std::vector<std::string> loopback;
  for (const cluster::HostInterface& one : cluster::host_interfaces())
    (one.loopback ? loopback : addresses).push_back(one.address);
  addresses.insert(addresses.end(), loopback.begin(), loopback.end());
  return addresses;
}

}  // namespace tandem::app
