// SPDX-License-Identifier: Apache-2.0
#include "config/kv_transfer_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/json.hpp>

#include "base/json.h"
#include "config/argument_forms.h"
#include "config/values.h"

namespace tandem::config {
namespace {

namespace json = boost::json;

constexpr std::string_view kFlag = "--kv-transfer-config";

Status invalid(std::string message) { return Status(Code::kInvalidArgument, std::move(message)); }

constexpr std::uint16_t kRankTablePort = 5557;
constexpr std::string_view kKnownConnectors =
    "MooncakeConnector, MooncakeConnectorV1, MooncakeLayerwiseConnector, LLMDataDistCMgrConnector";

struct ForeignConnector {
  std::string_view name;
  std::string_view instead;
};
/// Names that deployments use and that do something else than move a request's KV.
constexpr ForeignConnector kForeignConnectors[] = {
    {"MultiConnector", "it combines connectors, here one moves the KV: name that one directly"},
    {"AscendMultiConnector", "it combines connectors, here one moves the KV: name that one directly"},
    {"MooncakeConnectorStoreV1", "there is no shared KV pool here; use MooncakeConnectorV1 and prefix caching"},
    {"AscendStoreConnector", "there is no shared KV pool here; use MooncakeConnectorV1 and prefix caching"},
    {"UCMConnector", "there is no shared KV pool here; use MooncakeConnectorV1 and prefix caching"},
    {"MooncakeHybridConnector", "no model here has recurrent state; use MooncakeConnectorV1"},
    {"SfaRemoteD2HConnector", "no model here has sparse attention; use MooncakeLayerwiseConnector"},
    {"CPUOffloadingConnector", "KV is in host memory already; leave it out"},
    {"OffloadingConnector", "KV is in host memory already; leave it out"},
    {"SimpleCPUOffloadConnector", "KV is in host memory already; leave it out"},
    {"RecomputeCPUOffloadConnector", "KV is in host memory already; leave it out"},
};

Result<KvConnector> connector_of(const std::string& name) {
  if (name == "MooncakeConnector" || name == "MooncakeConnectorV1") return KvConnector::kPull;
  if (name == "MooncakeLayerwiseConnector") return KvConnector::kLayerwise;
  if (name == "LLMDataDistCMgrConnector") return KvConnector::kRankTable;
  for (const ForeignConnector& foreign : kForeignConnectors)
    if (name == foreign.name)
      return Status(Code::kUnsupported, fmt::format("kv_connector '{}' is not here: {}. Known are {}", name,
                                                    foreign.instead, kKnownConnectors));
  return invalid(fmt::format("unknown kv_connector '{}'; known are {}", name, kKnownConnectors));
}

Result<KvRole> role_of(const std::string& name) {
  for (const KvRole role : {KvRole::kProducer, KvRole::kConsumer, KvRole::kBoth})
    if (name == kv_role_name(role)) return role;
  return invalid(fmt::format("kv_role '{}' is unknown; allowed are kv_producer, kv_consumer, kv_both", name));
}

Result<std::string> text_or_number(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(key);
  if (value == nullptr || value->is_null()) return std::string();
  if (value->is_string()) return std::string(value->as_string());
  if (value->is_int64()) return std::to_string(value->as_int64());
  return invalid(
      fmt::format("field '{}' is {}, expected a string", key, std::string_view(json::to_string(value->kind()))));
}

/// Compares what the config says of one side ("prefill", "decode") with what this instance is.
Result<void> check_sizes(const json::object& extra, std::string_view side, ParallelSizes real) {
  const json::value* value = extra.if_contains(side);
  if (value == nullptr || value->is_null()) return {};
  if (!value->is_object()) return invalid(fmt::format("kv_connector_extra_config.{} must be an object", side));
  const json::object& sizes = value->as_object();
  TANDEM_ASSIGN(const auto tensor, json_int(sizes, "tp_size"));
  TANDEM_ASSIGN(const auto data, json_int(sizes, "dp_size"));
  TANDEM_ASSIGN(const auto pipeline, json_int(sizes, "pp_size"));
  if (tensor && *tensor != real.tensor)
    return invalid(
        fmt::format("KV transfer '{}' config has a conflicting tensor parallel size. Expected {}, but got {}.", side,
                    real.tensor, *tensor));
  if (data && *data != real.data)
    return invalid(fmt::format("KV transfer '{}' config has a conflicting data parallel size. Expected {}, but got {}.",
                               side, real.data, *data));
  if (pipeline && *pipeline != 1)
    return Status(Code::kUnsupported,
                  fmt::format("KV transfer '{}' config has pp_size {}; this version has no pipeline "
                              "parallelism, expected 1",
                              side, *pipeline));
  return {};
}

/// As in vLLM a key that nobody knows is an error: a mistyped kv_port would be another port.
Result<void> check_keys(const json::object& object, std::vector<std::string>& notes) {
  static const std::vector<std::string> kKnown = {"kv_connector",
                                                  "kv_role",
                                                  "kv_port",
                                                  "engine_id",
                                                  "kv_ip",
                                                  "kv_connector_extra_config",
                                                  "kv_load_failure_policy",
                                                  "kv_buffer_device",
                                                  "kv_buffer_size",
                                                  "kv_rank",
                                                  "kv_parallel_size",
                                                  "kv_connector_module_path",
                                                  "enable_permute_local_kv"};
  constexpr std::size_t kNumUsed = 7;  // the first ones; the others do nothing here
  std::vector<std::string> ignored;
  for (const auto& member : object) {
    std::string key(member.key());
    const auto found = std::find(kKnown.begin(), kKnown.end(), key);
    if (found == kKnown.end()) {
      const std::string near = nearest_name(key, kKnown);
      return invalid(near.empty() ? fmt::format("unknown key '{}'; known are {}", key, fmt::join(kKnown, ", "))
                                  : fmt::format("unknown key '{}' (did you mean {}?)", key, near));
    }
    if (static_cast<std::size_t>(found - kKnown.begin()) >= kNumUsed) ignored.push_back(std::move(key));
  }
  if (!ignored.empty()) notes.push_back(fmt::format("{}: ignored here: {}", kFlag, fmt::join(ignored, ", ")));
  return {};
}

Result<KvTransferConfig> read(const json::object& object, ParallelSizes real) {
  TANDEM_ASSIGN(const auto connector, json_string(object, "kv_connector"));
  TANDEM_ASSIGN(const auto role, json_string(object, "kv_role"));
  if (!connector && !role) return invalid("it names neither kv_connector nor kv_role");
  if (!connector)
    return invalid(fmt::format("kv_role '{}' needs a kv_connector, for example MooncakeConnectorV1", *role));
  KvTransferConfig config;
  config.connector = *connector;
  TANDEM_ASSIGN(config.kind, connector_of(*connector));
  if (!role)
    return invalid(fmt::format("kv_connector '{}' needs a kv_role: kv_producer, kv_consumer or kv_both", *connector));
  TANDEM_ASSIGN(config.role, role_of(*role));
  if (config.kind == KvConnector::kRankTable && config.role == KvRole::kBoth)
    return invalid(
        fmt::format("kv_connector '{}' takes kv_role kv_producer or kv_consumer, not kv_both: a rank is in "
                    "one list of the rank table",
                    *connector));
  TANDEM_ASSIGN(const auto port, json_int(object, "kv_port"));
  if (port && (*port < 0 || *port > 65535)) return invalid(fmt::format("kv_port {} is not a port (0 to 65535)", *port));
  if (port) config.port = static_cast<std::uint16_t>(*port);
  TANDEM_ASSIGN(config.engine_id, text_or_number(object, "engine_id"));
  TANDEM_ASSIGN(const auto ip, json_string(object, "kv_ip"));
  if (ip && *ip != "127.0.0.1" && *ip != "localhost" && *ip != "0.0.0.0") config.ip = *ip;
  TANDEM_ASSIGN(const auto policy, json_string(object, "kv_load_failure_policy"));
  if (policy && *policy != "fail" && *policy != "recompute")
    return invalid(fmt::format("kv_load_failure_policy '{}' is unknown; allowed are fail, recompute", *policy));
  config.load_failure = policy && *policy == "recompute" ? LoadFailure::kRecompute : LoadFailure::kFail;
  if (const json::value* extra = object.if_contains("kv_connector_extra_config");
      extra != nullptr && !extra->is_null()) {
    if (!extra->is_object()) return invalid("kv_connector_extra_config must be an object");
    if (config.produces()) TANDEM_TRY(check_sizes(extra->as_object(), "prefill", real));
    if (config.consumes()) TANDEM_TRY(check_sizes(extra->as_object(), "decode", real));
  }
  return config;
}

}  // namespace

std::string_view kv_role_name(KvRole role) {
  switch (role) {
    case KvRole::kProducer:
      return "kv_producer";
    case KvRole::kConsumer:
      return "kv_consumer";
    case KvRole::kBoth:
      return "kv_both";
  }
  return "unknown";
}

Result<void> apply_environment(KvTransferConfig& config, const Environment& environment) {
  if (config.kind != KvConnector::kRankTable) return {};
  config.rank_table = environment("DISAGGREGATED_PREFILL_RANK_TABLE_PATH").value_or("");
  if (config.rank_table.empty())
    return invalid(
        fmt::format("kv_connector '{}' needs the environment variable DISAGGREGATED_PREFILL_RANK_TABLE_PATH, "
                    "the path of a rank table; `tandem ranktable` makes one",
                    config.connector));
  config.bind_host = environment("VLLM_ASCEND_LLMDD_RPC_IP").value_or("");
  config.port = kRankTablePort;
  if (const auto text = environment("VLLM_ASCEND_LLMDD_RPC_PORT"); text && !text->empty()) {
    auto port = parse_integer(*text, 1, 65535);
    if (!port) return port.error().context("environment variable VLLM_ASCEND_LLMDD_RPC_PORT");
    config.port = static_cast<std::uint16_t>(*port);
  }
  const std::string visible = environment("ASCEND_RT_VISIBLE_DEVICES").value_or("");
  std::string_view rest = visible;
  while (!rest.empty()) {
    const std::string_view device = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), device.size() + 1));
    auto number = parse_integer(std::string(device), 0, 1 << 20);
    if (!number) return number.error().context("environment variable ASCEND_RT_VISIBLE_DEVICES");
    config.visible_devices.push_back(std::to_string(*number));
  }
  return {};
}

Result<void> check_ports(const KvTransferConfig& config, std::int64_t num_ranks, std::uint16_t http_port) {
  if (!config.listens() || config.port == 0) return {};
  const std::string_view name = config.kind == KvConnector::kRankTable ? "VLLM_ASCEND_LLMDD_RPC_PORT" : "kv_port";
  const std::int64_t last = config.port + num_ranks - 1;
  if (last > 65535)
    return invalid(fmt::format("{} {} leaves no room for {} ranks below 65536; choose a smaller one", name, config.port,
                               num_ranks));
  if (http_port >= config.port && http_port <= last)
    return invalid(fmt::format("{} takes the ports {} to {}, and --port {} is one of them; choose another", name,
                               config.port, last, http_port));
  return {};
}

Result<std::optional<KvTransferConfig>> parse_kv_transfer_config(std::string_view text, ParallelSizes real,
                                                                 std::vector<std::string>& notes) {
  auto value = parse_json(text, JsonLimits{.max_depth = 16, .max_bytes = 1U << 20});
  if (!value) return value.error();
  if (value->is_null()) return std::optional<KvTransferConfig>();
  if (!value->is_object()) return invalid("expected a JSON object");
  if (value->as_object().empty()) return std::optional<KvTransferConfig>();
  TANDEM_TRY(check_keys(value->as_object(), notes));
  TANDEM_ASSIGN(KvTransferConfig config, read(value->as_object(), real));
  return std::optional(std::move(config));
}

}  // namespace tandem::config
