// SPDX-License-Identifier: Apache-2.0
// The rank table of LLMDataDist deployments (DISAGGREGATED_PREFILL_RANK_TABLE_PATH), in the A2 form and in the A3 form
// with super pods: typed, checked, and written byte for byte as gen_ranktable.py writes it (pd_protocol.md 10.3).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tandem::cluster {

/// One row of a table. The file has only text; numbers are kept as written.
struct RankTableDevice {
  std::string server_id;                       ///< the node's address
  std::string device_id;                       ///< number of the device on its node
  std::string device_ip;                       ///< the device's own address
  std::optional<std::string> super_pod_id;     ///< A3 only, with super_device_id
  std::optional<std::string> super_device_id;  ///< A3 only: SDID
  std::string cluster_id;                      ///< 1, 2, ... over prefill, then decode devices

  bool operator==(const RankTableDevice&) const = default;
};

struct RankTable {
  std::string version = "1.2";
  std::string server_count;  ///< number of nodes
  std::vector<RankTableDevice> prefill_device_list;
  std::vector<RankTableDevice> decode_device_list;
  std::string status = "completed";

  bool operator==(const RankTable&) const = default;
};

/// All that is wrong with a table, each one line that names the field: "prefill_device_list[3].device_ip: ...".
/// `table` is what could be read.
struct RankTableReading {
  RankTable table;
  std::vector<std::string> problems;
};
/// An error only if `text` is no JSON object.
Result<RankTableReading> read_rank_table(std::string_view text);

/// The table, or the first problem (and how many more there are).
Result<RankTable> parse_rank_table(std::string_view text);
/// The same from a file of at most 16 MiB; errors name the file.
Result<RankTable> load_rank_table(const std::string& path);
Result<std::string> read_text_file(const std::string& path, std::size_t max_bytes);

/// As Python's json.dump(table, file, indent=4): four spaces, no newline at the end.
std::string rank_table_json(const RankTable& table);
/// Via a file beside it and a rename, so that no reader sees half a table.
Result<void> write_text_file(const std::string& path, std::string_view text);

/// The devices of one node, in order; cluster_id is still empty.
struct NodeDevices {
  std::string server_id;
  std::vector<RankTableDevice> devices;
};
/// Numbers the devices of all nodes (prefill nodes first) and deals them out: the first `prefill_count` are prefill,
/// the next `decode_count` decode, what is left over is dropped. An error names the flag and both counts, or the first
/// thing wrong with the table this would make.
Result<RankTable> make_rank_table(std::span<const NodeDevices> nodes, int prefill_count, int decode_count);

/// A node's share, written on that node and merged by `tandem ranktable --merge`.
std::string partial_table_json(const NodeDevices& node);
Result<NodeDevices> parse_partial_table(std::string_view text);

enum class TableRole { kPrefill, kDecode };
/// The row that tensor-parallel rank `tp_rank` on node `server_id` takes (pd_protocol.md 8.4): the tp_rank-th of the
/// node's rows in the role's list whose device_id is among `visible_devices` (all if empty).
Result<RankTableDevice> device_of_rank(const RankTable& table, TableRole role, std::string_view server_id,
                                       std::span<const std::string> visible_devices, int tp_rank);

}  // namespace tandem::cluster
