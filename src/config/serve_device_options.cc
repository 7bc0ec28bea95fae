// SPDX-License-Identifier: Apache-2.0
// Flags and variables of people's scripts that were written for another device: what they mean here, or one line that
// says why they do nothing. docs/coming-from-vllm-ascend.md is the table for people.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/json.hpp>
#include <utility>

#include "base/json.h"
#include "config/command_options.h"
#include "config/cpu_binding.h"

namespace tandem::config {
namespace {

namespace json = boost::json;

constexpr JsonLimits kLimits{.max_depth = 16, .max_bytes = 1U << 20};
constexpr std::int64_t kMostSequences = 65536;
constexpr std::string_view kGraphs = "there are no device graphs here";

Status invalid(std::string message) { return Status(Code::kInvalidArgument, std::move(message)); }

/// The largest of cudagraph_capture_sizes; nullopt if the key is not there.
Result<std::optional<std::int32_t>> largest_size(const json::object& object) {
  const json::value* value = object.if_contains("cudagraph_capture_sizes");
  if (value == nullptr || value->is_null()) return std::optional<std::int32_t>();
  if (!value->is_array()) return invalid("cudagraph_capture_sizes must be a list of numbers");
  std::int64_t largest = 0;
  for (const json::value& size : value->as_array()) {
    if (!size.is_int64() || size.as_int64() < 1 || size.as_int64() > kMostSequences)
      return invalid(fmt::format("cudagraph_capture_sizes holds {}; expected numbers from 1 to {}",
                                 std::string(json::serialize(size)), kMostSequences));
    largest = std::max(largest, size.as_int64());
  }
  return std::optional(static_cast<std::int32_t>(largest));
}

/// Whether graphs are wanted; nullopt if the key is not there.
Result<std::optional<bool>> wants_graphs(const json::object& object) {
  TANDEM_ASSIGN(const auto mode, json_string(object, "cudagraph_mode"));
  if (!mode) return std::optional<bool>();
  auto wanted = parse_choice<bool>(
      *mode,
      {{"NONE", false}, {"PIECEWISE", true}, {"FULL", true}, {"FULL_DECODE_ONLY", true}, {"FULL_AND_PIECEWISE", true}});
  if (!wanted) return wanted.error().context("cudagraph_mode");
  return std::optional(*wanted);
}

struct KnownKey {
  std::string_view name;
  std::string_view why;
};
/// Keys of --additional-config that deployments use.
constexpr KnownKey kAdditionalKeys[] = {
    {"ascend_scheduler_config", "the one scheduler here joins decodes and chunks of prompts"},
    {"ascend_compilation_config", kGraphs},
    {"torchair_graph_config", kGraphs},
    {"xlite_graph_config", kGraphs},
    {"enable_shared_expert_dp", "no model here has shared experts"},
    {"multistream_overlap_shared_expert", "no model here has shared experts"},
    {"multistream_overlap_gate", "there are no device streams here"},
    {"recompute_scheduler_enable", "a decoder computes again what it preempted"},
    {"finegrained_tp_config", "ranks of a process share one thread team"},
    {"lmhead_tensor_parallel_size", "ranks of a process share one thread team"},
    {"oproj_tensor_parallel_size", "ranks of a process share one thread team"},
    {"weight_prefetch_config", "weights are in the memory that computes"},
    {"enable_weight_nz_layout", "weights are packed for this CPU"},
    {"expert_map_path", "experts are where the remainder rule puts them"},
    {"expert_map_record_path", "experts are where the remainder rule puts them"},
    {"dynamic_eplb", "experts are where the remainder rule puts them"},
    {"num_redundant_experts", "experts are where the remainder rule puts them"},
    {"eplb_config", "experts are where the remainder rule puts them"},
    {"chunked_prefill_for_mla", "prompts are cut into chunks always"},
    {"enable_cpu_binding", "--cpu-bind says which CPUs compute"},
    {"refresh", "settings are read once a process"},
};

Result<std::string> additional_note(const std::string& text) {
  TANDEM_ASSIGN(const json::value value, parse_json(text, kLimits));
  if (!value.is_object()) return invalid("expected a JSON object");
  std::vector<std::string> parts;
  for (const auto& member : value.as_object()) {
    const std::string_view name = member.key();
    const auto* known = std::find_if(std::begin(kAdditionalKeys), std::end(kAdditionalKeys),
                                     [&](const KnownKey& key) { return key.name == name; });
    parts.push_back(fmt::format("{} ({})", name, known == std::end(kAdditionalKeys) ? "not known here" : known->why));
  }
  if (parts.empty()) return std::string("--additional-config is ignored: it is empty");
  return fmt::format("--additional-config is ignored: {}", fmt::join(parts, ", "));
}

}  // namespace

Result<void> ServeOptions::read_compilation_config(const std::string& text, std::vector<std::string>& notes) {
  TANDEM_ASSIGN(const json::value value, parse_json(text, kLimits));
  if (value.is_int64()) {  // -O3
    notes.push_back(
        fmt::format("--compilation-config {}: the level is ignored, the program is compiled already", text));
    return {};
  }
  if (!value.is_object()) return invalid("expected a JSON object or a level");
  const json::object& object = value.as_object();
  TANDEM_ASSIGN(const auto size, largest_size(object));
  TANDEM_ASSIGN(const auto graphs, wants_graphs(object));
  planned_decodes_ = size;
  if (!size && graphs.value_or(false)) planned_decodes_ = static_cast<std::int32_t>(kMostSequences);
  if (graphs == false) planned_decodes_ = 0;
  std::vector<std::string> ignored;
  for (const auto& member : object)
    if (member.key() != "cudagraph_capture_sizes" && member.key() != "cudagraph_mode")
      ignored.emplace_back(member.key());
  if (!ignored.empty())
    notes.push_back(fmt::format("--compilation-config: ignored here: {}", fmt::join(ignored, ", ")));
  return {};
}

void ServeOptions::finish_planned_decodes(std::vector<std::string>& notes) {
  if (enforce_eager_) {
    notes.push_back(fmt::format("--enforce-eager: no decode steps are planned at start, and {}", kGraphs));
    return;
  }
  if (!planned_decodes_) return;
  config_.planned_decodes = std::min(*planned_decodes_, config_.max_num_seqs);
  if (config_.planned_decodes == 0)
    notes.push_back(fmt::format("--compilation-config: no decode steps are planned at start, and {}", kGraphs));
  else
    notes.push_back(
        fmt::format("--compilation-config: steps of up to {} decoding requests are planned at start and "
                    "allocate nothing; {}",
                    config_.planned_decodes, kGraphs));
}

void ServeOptions::add_device(FlagList& flags) {
  flags.group("ModelConfig");
  flags.toggle("--enforce-eager", "plan no decode steps at start, whatever --compilation-config says", enforce_eager_);
  flags.group("VllmConfig");
  flags
      .one("--compilation-config", "JSON",
           "cudagraph_capture_sizes: memory of decode steps up to the largest of these sizes is there from the start; "
           "cudagraph_mode without sizes: up to --max-num-seqs; NONE: no size",
           "{}", [this, &flags](const std::string& value) { return read_compilation_config(value, flags.notes()); })
      .short_form("-O")
      .json();
}

void ServeOptions::add_refused(FlagList& flags) {
  flags.refused("--enable-ssl-refresh", Arity::kNone, "certificates are read at start; restart to read new ones");
  flags.refused("--middleware", Arity::kOne, "there is no Python here; put a gateway in front");
  flags.refused("--tool-parser-plugin", Arity::kOne,
                "there is no Python here; --tool-call-parser has hermes, qwen3_coder and llama3_json");
  flags.refused("--speculative-config", Arity::kOne, "speculative decoding is not in this version");
  flags.refused("--kv-events-config", Arity::kOne, "KV events are not in this version");
  const std::string lora = "LoRA adapters are not in this version";
  flags.refused("--enable-lora", Arity::kNone, lora);
  flags.refused("--lora-modules", Arity::kMany, lora);
  for (const char* name : {"--max-loras", "--max-lora-rank"}) flags.refused(name, Arity::kOne, lora);
}

/// In vLLM's groups; the help of each says why it does nothing.
void ServeOptions::add_accepted(FlagList& flags) {
  const std::string always = "it is always so here";
  const std::string one_process = "all ranks of a host run in this process";
  const std::string experts = "experts are where the remainder rule puts them";
  flags.group("ModelConfig");
  flags.ignored("--trust-remote-code", Arity::kNone, "there is no Python here, so no code of a model is ever run");
  flags.one("--tokenizer-mode", "MODE", "auto or slow: there is one kind of tokenizer", "auto",
            [](const std::string& value) -> Result<void> {
              TANDEM_TRY(parse_choice<bool>(value, {{"auto", true}, {"slow", true}}));
              return {};
            });
  flags.ignored("--skip-tokenizer-init", Arity::kNone, "prompts may be ids anyway");
  flags.ignored("--enable-sleep-mode", Arity::kNone, "weights and KV stay in memory");
  flags.group("VllmConfig");
  flags
      .one("--additional-config", "JSON", "keys that steer another device; each is named in the log", "{}",
           [&flags](const std::string& value) -> Result<void> {
             TANDEM_ASSIGN(std::string note, additional_note(value));
             flags.notes().push_back(std::move(note));
             return {};
           })
      .json();
  flags.group("ParallelConfig");
  flags.one(
      "--distributed-executor-backend", "NAME", one_process, "mp",
      [&flags, one_process](const std::string& value) -> Result<void> {
        TANDEM_TRY(
            parse_choice<bool>(value, {{"mp", true}, {"ray", true}, {"uni", true}, {"external_launcher", true}}));
        flags.notes().push_back(fmt::format("--distributed-executor-backend {} is ignored: {}", value, one_process));
        return {};
      });
  flags.ignored("--data-parallel-backend", Arity::kOne, one_process).short_form("-dpb");
  flags.ignored("--enable-eplb", Arity::kNone, experts);
  flags.ignored("--eplb-config", Arity::kOne, experts);
  flags.ignored("--max-parallel-loading-workers", Arity::kOne, "the compute threads load the weights");
  flags.group("SchedulerConfig");
  flags.ignored("--enable-chunked-prefill", Arity::kNone, always);
  flags.ignored("--max-num-partial-prefills", Arity::kOne, "prompts share a step as its token budget allows");
  flags.ignored("--max-long-partial-prefills", Arity::kOne, "prompts share a step as its token budget allows");
  flags.group("CacheConfig");
  flags.ignored("--swap-space", Arity::kOne, "KV is never swapped");
  flags.ignored("--cpu-offload-gb", Arity::kOne, "everything is on the CPU");
  flags.ignored("--prefix-caching-hash-algo", Arity::kOne, "one algorithm serves all");
  flags.group("MultiModalConfig");
  flags.ignored("--limit-mm-per-prompt", Arity::kOne, "models here read text only");
  flags.group("ObservabilityConfig");
  flags.ignored("--show-hidden-metrics-for-version", Arity::kOne, "old metric names are shown anyway");
  flags.ignored("--otlp-traces-endpoint", Arity::kOne, "traces are not exported");
  flags.ignored("--collect-detailed-traces", Arity::kOne, "traces are not exported");
  flags.group("Frontend");
  flags.ignored("--log-config-file", Arity::kOne, "it configures Python's logging; see --log-level");
  flags.ignored("--log-error-stack", Arity::kNone, "errors are one line here");
  flags.ignored("--h11-max-incomplete-event-size", Arity::kOne, "heads are limited to 64 KiB, bodies to 64 MiB");
  flags.ignored("--h11-max-header-count", Arity::kOne, "heads are limited to 64 KiB, whatever is in them");
  flags.group("Deprecated");
  flags.ignored("--use-v2-block-manager", Arity::kNone, always);
  flags.ignored("--enable-reasoning", Arity::kNone, "it says nothing without a parser");
  flags.ignored("--disable-log-requests", Arity::kNone,
                "requests are not logged unless --enable-log-requests is given");
  flags.ignored("--guided-decoding-backend", Arity::kOne, "llguidance serves all");
}

Result<void> ServeOptions::read_environment(const Environment& environment) {
  if (const auto threads = environment("OMP_NUM_THREADS"); threads && !threads->empty()) {
    // OpenMP allows a list, one number for each nesting level: the first one counts.
    if (auto result = integer_into(config_.threads_per_rank, 1, 1024)(threads->substr(0, threads->find(','))); !result)
      return result.error().context("environment variable OMP_NUM_THREADS");
  }
  if (const auto binding = environment("VLLM_CPU_OMP_THREADS_BIND"); binding && !binding->empty() && !binding_given_) {
    auto parsed = parse_cpu_binding(*binding);
    if (!parsed) return parsed.error().context("environment variable VLLM_CPU_OMP_THREADS_BIND");
    config_.cpu_binding = std::move(*parsed);
  }
  const auto first_of = [&](std::initializer_list<const char*> names) {
    for (const char* name : names)
      if (auto value = environment(name); value && !value->empty()) return *value;
    return std::string();
  };
  config_.advertised_host = first_of({"VLLM_HOST_IP", "HCCL_IF_IP"});
  config_.advertised_interface = first_of({"HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"});
  config_.allow_long_max_model_len = environment("VLLM_ALLOW_LONG_MAX_MODEL_LEN").value_or("0") == "1";
  return {};
}

}  // namespace tandem::config
