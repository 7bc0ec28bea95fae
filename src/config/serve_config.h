// SPDX-License-Identifier: Apache-2.0
// Options of `tandem serve`: vLLM's flags as far as they mean something here (vllm_api.md 14.2), already checked as far
// as that is possible without the model. JSON stays text where only the model part can judge it.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/tls_config.h"

namespace tandem::config {

enum class KvRole { kProducer, kConsumer, kBoth };
std::string_view kv_role_name(KvRole role);  ///< "kv_producer", ...

/// Ways in which KV moves.
enum class KvConnector {
  kPull,       ///< MooncakeConnector, MooncakeConnectorV1: the decoder fetches from the prefiller
  kLayerwise,  ///< MooncakeLayerwiseConnector: the prefiller pushes to a decoder that was asked first
  kRankTable,  ///< LLMDataDistCMgrConnector: pull between the devices of a rank table
};

enum class LoadFailure { kFail, kRecompute };

/// --kv-transfer-config (pd_protocol.md 1). An instance without one neither hands KV over nor fetches any.
struct KvTransferConfig {
  std::string connector;  ///< as named, for example "MooncakeConnectorV1"
  KvConnector kind = KvConnector::kPull;
  KvRole role = KvRole::kBoth;
  std::uint16_t port = 14579;  ///< base port of the transfer engine: kv_port, or VLLM_ASCEND_LLMDD_RPC_PORT
  std::string bind_host;       ///< VLLM_ASCEND_LLMDD_RPC_IP; empty: the address peers are told
  std::string rank_table;      ///< DISAGGREGATED_PREFILL_RANK_TABLE_PATH; only with kRankTable
  std::vector<std::string> visible_devices;  ///< ASCEND_RT_VISIBLE_DEVICES; empty: all of the rank table's
  std::vector<std::string> peer_hosts;       ///< of the rank table's other role; empty: anybody may be a peer
  std::string engine_id;                     ///< empty: a random one is made at start
  std::string ip;                            ///< kv_ip if it was given and is not loopback: the address peers are told
  LoadFailure load_failure = LoadFailure::kFail;

  bool produces() const { return role != KvRole::kConsumer; }
  bool consumes() const { return role != KvRole::kProducer; }
  /// Whether a pushing prefiller connects here.
  bool receives() const { return kind == KvConnector::kLayerwise && consumes(); }
  /// Whether peers connect here at all.
  bool listens() const { return produces() || receives(); }
};

enum class DType { kAuto, kBfloat16, kFloat32 };
/// --quantization. kAuto: what the checkpoint says; kW8A8: int8 made at load; the others: how the checkpoint must be.
enum class Quantization { kAuto, kNone, kW8A8, kAscend, kCompressedTensors, kGptq, kAwq, kFp8 };
/// "w8a8", "ascend"; "auto" for kAuto.
std::string_view quantization_name(Quantization quantization);
/// --logprobs-mode: what answers have as log-probabilities. kProcessed...: after penalties, masks, temperature and
/// cuts.
enum class LogprobsMode { kRawLogprobs, kProcessedLogprobs, kRawLogits, kProcessedLogits };
/// "raw_logprobs".
std::string_view logprobs_mode_name(LogprobsMode mode);
enum class LoadFormat { kAuto, kStub };
enum class Scheduling { kFcfs, kPriority };
/// --isa: what kernels::Isa has, or the best of it.
enum class Isa { kAuto, kPortable, kAvx2, kAvx512, kNeon, kDotprod };
inline constexpr std::array<std::pair<std::string_view, Isa>, 6> kIsaNames{{{"auto", Isa::kAuto},
                                                                            {"portable", Isa::kPortable},
                                                                            {"avx2", Isa::kAvx2},
                                                                            {"avx512", Isa::kAvx512},
                                                                            {"neon", Isa::kNeon},
                                                                            {"dotprod", Isa::kDotprod}}};
enum class KvTransport { kAuto, kShm, kTcp };
enum class KvCacheType { kAuto, kBfloat16, kFloat32, kInt8 };
enum class ContentFormat { kAuto, kString, kParts };
/// --tool-call-parser: how models write tool calls.
enum class ToolFormat { kNone, kHermes, kQwen3Coder, kLlama3Json };
/// --reasoning-parser. Both know <think> and </think>; with kQwen3 a request can turn thinking off (enable_thinking).
enum class ReasoningFormat { kNone, kQwen3, kDeepseekR1 };

/// --cpu-bind: which CPUs compute threads may run on.
struct CpuBinding {
  enum class Mode {
    kAuto,   ///< threads stay on a NUMA node, where there are several
    kNone,   ///< anywhere
    kLists,  ///< one thread on each CPU listed
  };
  Mode mode = Mode::kAuto;
  std::vector<std::vector<int>> lists;  ///< kLists: each rank's CPUs; all of one length, no CPU twice
};

/// --override-generation-config: server defaults that stand over those of generation_config.json.
struct GenerationOverrides {
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<std::int64_t> top_k, max_new_tokens;
};

/// --data-parallel-*: ranks with a scheduler and KV of their own each, over one process or over one on each host
/// (vllm_api.md 14.2). Each rank has tensor_parallel_size ranks below it.
struct DataParallel {
  std::int32_t size = 1;                      ///< ranks of the whole instance
  std::int32_t local = 1;                     ///< ranks in this process
  std::int32_t start_rank = 0;                ///< the first one here
  std::string address = "127.0.0.1";          ///< of the first process
  std::uint16_t rpc_port = 29550;             ///< there
  bool headless = false;                      ///< not the first process: no API here, the first one's is in front of it
  std::chrono::seconds start_timeout{600};    ///< for processes that wait for each other
  std::optional<std::int32_t> external_rank;  ///< an instance of its own, one of those that an outside balancer joins

  bool one_process() const { return local == size; }
};

struct ServeConfig {
  // Model.
  std::string model;                            ///< folder or .gguf file
  std::string tokenizer;                        ///< tokenizer.json or a folder with one; empty: the model's own
  std::vector<std::string> served_model_names;  ///< never empty; the first one is canonical
  DType dtype = DType::kAuto;
  Quantization quantization = Quantization::kAuto;
  LoadFormat load_format = LoadFormat::kAuto;
  std::string hf_overrides = "{}";         ///< JSON object; --rope-scaling and --rope-theta are merged in
  std::string generation_config = "auto";  ///< "auto", "vllm" (constants only), or a folder
  GenerationOverrides generation_overrides;
  std::uint64_t seed = 0;
  std::optional<std::int64_t> max_model_len;  ///< nullopt: the checkpoint's
  bool allow_long_max_model_len = false;      ///< VLLM_ALLOW_LONG_MAX_MODEL_LEN=1

  // Cache.
  std::int32_t block_size = 16;
  /// Share of the free memory that weights and KV take. nullopt: KV stays modest, two instances may share a machine.
  std::optional<double> memory_utilization;
  std::optional<std::int64_t> kv_cache_bytes;  ///< wins over memory_utilization
  std::optional<std::int32_t> num_blocks;      ///< wins over both
  bool enable_prefix_caching = true;
  KvCacheType kv_cache_type = KvCacheType::kAuto;  ///< auto: the type of computation

  // Scheduler.
  std::int32_t max_num_seqs = 128;
  std::int32_t max_num_batched_tokens = 512;
  std::int32_t long_prefill_token_threshold = 0;
  Scheduling scheduling = Scheduling::kFcfs;
  /// Steps of up to so many decoding requests (of each data-parallel rank) allocate nothing, from the first one on.
  std::int32_t planned_decodes = 0;
  bool async_scheduling = false;  ///< the next step is scheduled while this one computes

  // Frontend.
  std::string host;  ///< empty: all interfaces
  std::uint16_t port = 8000;
  std::vector<std::string> api_keys;    ///< --api-key or VLLM_API_KEY; empty: the server is open
  std::string uds;                      ///< path of a Unix socket, which stands for host and port
  std::chrono::seconds keep_alive{75};  ///< idle connections; VLLM_HTTP_TIMEOUT_KEEP_ALIVE
  /// For running requests, and for KV that decoders were promised, after SIGTERM; 0: they are ended at once.
  std::chrono::milliseconds shutdown_timeout{0};
  ServerTls tls;
  bool dev_mode = false;              ///< VLLM_SERVER_DEV_MODE=1: endpoints that tell of, and change, the inside
  bool server_load_tracking = false;  ///< /load counts; else it says 0
  bool tokenizer_info = false;        ///< /tokenizer_info is there
  bool disable_docs = false;          ///< no /openapi.json, /docs, /redoc
  std::string root_path;  ///< prefix that a gateway leaves on paths; "" or "/..." without a slash at its end
  std::vector<std::string> allowed_origins{"*"}, allowed_methods{"*"}, allowed_headers{"*"};  ///< CORS
  bool allow_credentials = false;
  std::string chat_template;  ///< path or one-line literal; empty: the checkpoint's
  ContentFormat content_format = ContentFormat::kAuto;
  std::string response_role = "assistant";
  std::string default_chat_template_kwargs = "{}";  ///< JSON object under every request's chat_template_kwargs
  bool trust_request_chat_template = false;
  bool exclude_tools_when_tool_choice_none = false;
  bool enable_auto_tool_choice = false;
  ToolFormat tool_format = ToolFormat::kNone;  ///< set if enable_auto_tool_choice
  ReasoningFormat reasoning_format = ReasoningFormat::kNone;
  bool compact_json = false;  ///< structured output without any blanks between JSON's parts
  bool return_tokens_as_token_ids = false;
  bool enable_prompt_tokens_details = false;
  bool enable_force_include_usage = false;
  bool enable_request_id_headers = false;
  std::int32_t max_logprobs = 20;  ///< -1: no limit
  LogprobsMode logprobs_mode = LogprobsMode::kRawLogprobs;
  bool keep_alive_on_engine_death = false;  ///< VLLM_KEEP_ALIVE_ON_ENGINE_DEATH=1: answer 503 and 500 until stopped

  // Logging and metrics.
  bool enable_log_requests = false;
  bool enable_log_outputs = false;                       ///< only with enable_log_requests
  std::optional<std::int64_t> max_log_len;               ///< characters of text and ids of a line; nullopt: no limit
  bool access_log = true;                                ///< a line for each HTTP request
  bool disable_log_stats = false;                        ///< no periodic line, and no vllm: series
  std::chrono::milliseconds log_stats_interval{10'000};  ///< VLLM_LOG_STATS_INTERVAL
  std::string log_level = "info";                        ///< "debug", "info", "warning", "error"

  // Disaggregation.
  std::optional<KvTransferConfig> kv_transfer;
  KvTransport kv_transport = KvTransport::kAuto;
  std::chrono::milliseconds kv_lease_term{30'000};
  std::vector<std::string> kv_metaserver_hosts;  ///< whom a request may name as its metaserver; empty: anybody
  ClientTls kv_metaserver_tls;                   ///< for https metaservers
  PeerProof peer_proof;                          ///< of KV transfer, and between the processes of this instance
  std::string advertised_host;                   ///< VLLM_HOST_IP or HCCL_IF_IP; empty: found out at start
  std::string advertised_interface;              ///< HCCL_SOCKET_IFNAME and friends, counts without a host

  // Parallel.
  std::int32_t tensor_parallel_size = 1;
  DataParallel data_parallel;
  bool expert_parallel = false;  ///< experts spread over all ranks; else each process has all of them

  // System.
  int threads = 0;           ///< compute threads of all ranks together; 0: not said; CPU lists stand over it
  int threads_per_rank = 0;  ///< OMP_NUM_THREADS, counts if `threads` is not said; 0: neither
  CpuBinding cpu_binding;
  Isa isa = Isa::kAuto;
};

}  // namespace tandem::config
