// SPDX-License-Identifier: Apache-2.0
// Flags of `tandem serve`: vLLM's names and meaning (vllm_api.md 14.2).
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>

#include "base/json.h"
#include "config/command_options.h"
#include "config/cpu_binding.h"
#include "config/kv_transfer_config.h"
#include "config/tls_options.h"

namespace tandem::config {
namespace {

namespace json = boost::json;

constexpr std::int64_t kMaxTokens = 1LL << 30;

Status invalid(std::string message) { return Status(Code::kInvalidArgument, std::move(message)); }

Setter json_object_into(std::optional<std::string>& target) {
  return [&target](const std::string& value) -> Result<void> {
    TANDEM_ASSIGN(target, parse_json_object(value));
    return {};
  };
}

Setter number_into(std::optional<double>& target, double low, bool low_allowed, double high) {
  return [&target, low, low_allowed, high](const std::string& value) -> Result<void> {
    TANDEM_ASSIGN(target, parse_number(value, low, low_allowed, high));
    return {};
  };
}

Result<void> read_overrides(const std::string& text, GenerationOverrides& overrides, std::vector<std::string>& notes) {
  TANDEM_ASSIGN(const json::value value, parse_json(text, JsonLimits{.max_depth = 16, .max_bytes = 1U << 16}));
  if (!value.is_object()) return invalid("expected a JSON object");
  const json::object& object = value.as_object();
  TANDEM_ASSIGN(overrides.temperature, json_double(object, "temperature"));
  TANDEM_ASSIGN(overrides.top_p, json_double(object, "top_p"));
  TANDEM_ASSIGN(overrides.min_p, json_double(object, "min_p"));
  TANDEM_ASSIGN(overrides.repetition_penalty, json_double(object, "repetition_penalty"));
  TANDEM_ASSIGN(overrides.top_k, json_int(object, "top_k"));
  TANDEM_ASSIGN(overrides.max_new_tokens, json_int(object, "max_new_tokens"));
  for (const auto& member : object) {
    static constexpr std::string_view kKnown[] = {"temperature",        "top_p", "min_p",
                                                  "repetition_penalty", "top_k", "max_new_tokens"};
    if (std::find(std::begin(kKnown), std::end(kKnown), std::string_view(member.key())) == std::end(kKnown))
      notes.push_back(fmt::format("--override-generation-config: ignored here: {}", std::string_view(member.key())));
  }
  return {};
}

/// Also the names under which vLLM chooses its fast kernels.
std::vector<std::pair<std::string_view, Quantization>> quantization_choices() {
  return {{"none", Quantization::kNone},     {"w8a8", Quantization::kW8A8},
          {"ascend", Quantization::kAscend}, {"compressed-tensors", Quantization::kCompressedTensors},
          {"gptq", Quantization::kGptq},     {"gptq_marlin", Quantization::kGptq},
          {"awq", Quantization::kAwq},       {"awq_marlin", Quantization::kAwq},
          {"fp8", Quantization::kFp8}};
}

std::vector<std::pair<std::string_view, LogprobsMode>> logprobs_modes() {
  return {{"raw_logprobs", LogprobsMode::kRawLogprobs},
          {"processed_logprobs", LogprobsMode::kProcessedLogprobs},
          {"raw_logits", LogprobsMode::kRawLogits},
          {"processed_logits", LogprobsMode::kProcessedLogits}};
}

template <class T>
std::string_view name_of(T wanted, const std::vector<std::pair<std::string_view, T>>& choices,
                         std::string_view otherwise) {
  for (const auto& [name, value] : choices)
    if (value == wanted) return name;
  return otherwise;
}

}  // namespace

std::string_view quantization_name(Quantization quantization) {
  return name_of(quantization, quantization_choices(), "auto");
}

std::string_view logprobs_mode_name(LogprobsMode mode) { return name_of(mode, logprobs_modes(), ""); }

ServeOptions::ServeOptions(FlagList& flags) {
  add_model(flags);
  add_cache(flags);
  add_scheduler(flags);
  add_frontend(flags);
  add_logging(flags);
  add_disaggregation(flags);
  add_parallel(flags);
  add_device(flags);
  add_refused(flags);
  add_accepted(flags);
}

void ServeOptions::add_model(FlagList& flags) {
  flags.group("ModelConfig");
  flags.one("--model", "PATH", "model folder or .gguf file; the same as the positional", "", text_into(model_flag_));
  flags
      .one("--tokenizer", "PATH", "tokenizer.json or a folder that holds one", "the model's",
           text_into(config_.tokenizer))
      .nullable();
  flags.one("--dtype", "TYPE", "type of computation: auto, bfloat16, float32", "auto",
            [this, &flags](const std::string& value) -> Result<void> {
              if (value == "half" || value == "float16")
                flags.notes().push_back(fmt::format("--dtype {}: this device computes in bfloat16 instead", value));
              TANDEM_ASSIGN(config_.dtype, parse_choice<DType>(value, {{"auto", DType::kAuto},
                                                                       {"bfloat16", DType::kBfloat16},
                                                                       {"float32", DType::kFloat32},
                                                                       {"float", DType::kFloat32},
                                                                       {"half", DType::kBfloat16},
                                                                       {"float16", DType::kBfloat16}}));
              return {};
            });
  flags
      .one("--quantization", "METHOD",
           "w8a8: int8 weights and activations, made at load; or how the checkpoint is quantised: ascend "
           "(msModelSlim), compressed-tensors, gptq, awq, fp8; none: it is not",
           "what the checkpoint says", choice_into<Quantization>(config_.quantization, quantization_choices()))
      .short_form("-q")
      .nullable();
  flags.group("LoadConfig");
  flags.one("--load-format", "FORMAT", "auto, or stub: a scripted worker in place of a model, for tests", "auto",
            choice_into<LoadFormat>(config_.load_format, {{"auto", LoadFormat::kAuto},
                                                          {"safetensors", LoadFormat::kAuto},
                                                          {"gguf", LoadFormat::kAuto},
                                                          {"stub", LoadFormat::kStub}}));
  flags.group("ModelConfig");
  flags
      .one("--max-model-len", "TOKENS", "longest prompt plus output; 32k = 32000, 32K = 32768, auto = the model's",
           "auto",
           [this](const std::string& value) -> Result<void> {
             if (value == "auto" || value == "-1") {
               config_.max_model_len.reset();
               return {};
             }
             return size_into(config_.max_model_len, 1, kMaxTokens)(value);
           })
      .nullable();
  flags
      .one("--hf-overrides", "JSON", "merged over the model's config.json", "{}",
           [this](const std::string& value) -> Result<void> {
             TANDEM_ASSIGN(config_.hf_overrides, parse_json_object(value));
             return {};
           })
      .json();
  flags
      .one("--rope-scaling", "JSON", "for example {\"rope_type\":\"yarn\",\"factor\":4.0}", "",
           json_object_into(rope_scaling_))
      .json();
  flags
      .one("--rope-theta", "NUMBER", "base of the rotary embedding", "the model's",
           number_into(rope_theta_, 0, false, 1e12))
      .nullable();
  flags.one("--logprobs-mode", "MODE",
            "raw_logprobs, processed_logprobs, raw_logits or processed_logits; processed: after penalties, masks, "
            "temperature and cuts",
            "raw_logprobs", choice_into(config_.logprobs_mode, logprobs_modes()));
  flags.one("--generation-config", "WHERE", "sampling defaults: auto (the model's), vllm (none), or a folder", "auto",
            text_into(config_.generation_config));
  flags
      .one("--override-generation-config", "JSON", "sampling defaults that stand over the model's", "{}",
           [this, &flags](const std::string& value) {
             return read_overrides(value, config_.generation_overrides, flags.notes());
           })
      .json();
  flags.one("--seed", "N", "seed of requests that bring none", "0", [this](const std::string& value) -> Result<void> {
    return integer_into(config_.seed, 0, std::numeric_limits<std::int64_t>::max())(value);
  });
}

void ServeOptions::add_cache(FlagList& flags) {
  flags.group("CacheConfig");
  flags
      .one("--block-size", "TOKENS", "tokens in a KV block: 1, 8, 16, 32, 64 or 128", "16",
           choice_into<std::int32_t>(config_.block_size,
                                     {{"1", 1}, {"8", 8}, {"16", 16}, {"32", 32}, {"64", 64}, {"128", 128}}))
      .nullable();
  flags.one("--gpu-memory-utilization", "SHARE",
            "share of the free memory that weights and KV take, as far as "
            "--max-num-seqs requests can use it",
            "modest: KV takes a quarter, 4 GiB at most", [this](const std::string& value) -> Result<void> {
              TANDEM_ASSIGN(config_.memory_utilization, parse_number(value, 0, false, 1));
              return {};
            });
  flags
      .one("--kv-cache-memory-bytes", "SIZE", "memory for KV; stands over --gpu-memory-utilization", "",
           size_into(config_.kv_cache_bytes, 1, std::int64_t{1} << 50))
      .nullable();
  flags
      .one("--num-gpu-blocks-override", "N", "exact number of KV blocks", "",
           [this](const std::string& value) -> Result<void> {
             std::int32_t blocks = 0;
             TANDEM_TRY(integer_into(blocks, 1, 1 << 30)(value));
             config_.num_blocks = blocks;
             return {};
           })
      .nullable();
  flags.toggle("--enable-prefix-caching", "reuse the KV of equal prompt beginnings", config_.enable_prefix_caching);
  flags.one("--kv-cache-dtype", "TYPE", "type of KV: auto (as computed), bfloat16, float32, int8 (half the memory)",
            "auto", [this](const std::string& value) -> Result<void> {
              if (value.starts_with("fp8"))
                return Status(Code::kUnsupported,
                              value + " is not in this version: CPUs have no 8-bit floats; int8 takes the same memory");
              return choice_into<KvCacheType>(config_.kv_cache_type, {{"auto", KvCacheType::kAuto},
                                                                      {"bfloat16", KvCacheType::kBfloat16},
                                                                      {"float32", KvCacheType::kFloat32},
                                                                      {"int8", KvCacheType::kInt8}})(value);
            });
}

void ServeOptions::add_scheduler(FlagList& flags) {
  flags.group("SchedulerConfig");
  flags
      .one("--max-num-seqs", "N", "requests that run at once", "128, at most the token budget",
           [this](const std::string& value) -> Result<void> {
             std::int32_t seqs = 0;
             TANDEM_TRY(integer_into(seqs, 1, 65536)(value));
             max_num_seqs_ = seqs;
             return {};
           })
      .nullable();
  flags
      .one("--max-num-batched-tokens", "TOKENS", "token budget of a step", "512",
           size_into(config_.max_num_batched_tokens, 1, 1 << 20))
      .nullable();
  flags.one("--long-prefill-token-threshold", "TOKENS", "most prompt tokens of one request in a step; 0: no limit", "0",
            integer_into(config_.long_prefill_token_threshold, 0, 1 << 20));
  flags.one(
      "--scheduling-policy", "POLICY", "fcfs or priority", "fcfs",
      choice_into<Scheduling>(config_.scheduling, {{"fcfs", Scheduling::kFcfs}, {"priority", Scheduling::kPriority}}));
  flags.one("--stream-interval", "N", "tokens in a chunk of a stream; chunks are sent as tokens come, whatever it says",
            "1", [&flags](const std::string& value) -> Result<void> {
              TANDEM_ASSIGN(const std::int64_t tokens, parse_integer(value, 1, 1 << 20));
              if (tokens > 1)
                flags.notes().push_back(
                    fmt::format("--stream-interval {} is ignored: a chunk is sent for each token", tokens));
              return {};
            });
  flags.toggle("--async-scheduling", "schedule the next step while this one computes", config_.async_scheduling);
}

void ServeOptions::add_disaggregation(FlagList& flags) {
  flags.group("VllmConfig");
  flags
      .one("--kv-transfer-config", "JSON", "connector, role and port of KV transfer", "none",
           [this](const std::string& value) -> Result<void> {
             kv_transfer_config_ = value;
             return {};
           })
      .nullable()
      .json();
  flags.group("Tandem");
  flags.one(
      "--kv-transport", "NAME", "how KV moves: auto (shared memory on one host, else TCP), shm, tcp", "auto",
      choice_into<KvTransport>(config_.kv_transport,
                               {{"auto", KvTransport::kAuto}, {"shm", KvTransport::kShm}, {"tcp", KvTransport::kTcp}}));
  flags.one("--kv-lease-term", "TIME", "how long a prefiller keeps KV that no decoder asks for", "30s",
            [this](const std::string& value) -> Result<void> {
              TANDEM_ASSIGN(const std::int64_t term, parse_milliseconds(value));
              if (term < 50 || term > 3'600'000) return invalid(value + " is out of range; allowed are 50ms to 3600s");
              config_.kv_lease_term = std::chrono::milliseconds(term);
              return {};
            });
  flags.many("--kv-metaserver-hosts", "HOST", "hosts that a request may name as its metaserver (layerwise push)", "any",
             [this](const std::vector<std::string>& hosts) -> Result<void> {
               config_.kv_metaserver_hosts = hosts;
               return {};
             });
  add_client_tls(flags, "--kv-metaserver", "https metaservers", config_.kv_metaserver_tls);
  add_peer_proof(flags, config_.peer_proof);
  flags.one("--threads", "N",
            "compute threads of all ranks together; 0: OMP_NUM_THREADS for each rank, or one for each usable CPU", "0",
            integer_into(config_.threads, 0, 1024));
  flags.one(
      "--cpu-bind", "WHERE",
      "CPUs of the compute threads: auto (each stays on a NUMA node), nobind, or a list for each rank, one thread "
      "a CPU: 0-15|16-31",
      "auto, or VLLM_CPU_OMP_THREADS_BIND", [this](const std::string& value) -> Result<void> {
        TANDEM_ASSIGN(config_.cpu_binding, parse_cpu_binding(value));
        binding_given_ = true;
        return {};
      });
  flags.one("--isa", "ISA", "instruction set: auto, portable, avx2, avx512, neon, dotprod", "auto",
            choice_into<Isa>(config_.isa, {kIsaNames.begin(), kIsaNames.end()}));
}

Result<void> ServeOptions::merge_hf_overrides() {
  if (!rope_scaling_ && !rope_theta_) return {};
  TANDEM_ASSIGN(json::value overrides, parse_json(config_.hf_overrides));
  if (rope_scaling_) {
    TANDEM_ASSIGN(overrides.as_object()["rope_scaling"], parse_json(*rope_scaling_));
  }
  if (rope_theta_) overrides.as_object()["rope_theta"] = *rope_theta_;
  config_.hf_overrides = std::string(json::serialize(overrides));
  return {};
}

Result<ServeConfig> ServeOptions::finish(const std::vector<std::string>& positional, const Environment& environment,
                                         std::vector<std::string>& notes) {
  if (positional.size() > 1) return invalid(fmt::format("unrecognized arguments: {}", positional[1]));
  if (!positional.empty() && !model_flag_.empty() && positional[0] != model_flag_)
    return invalid(fmt::format("two models were given: {} and --model {}", positional[0], model_flag_));
  config_.model = positional.empty() ? model_flag_ : positional[0];
  if (config_.model.empty()) return invalid("the following arguments are required: model (a folder or a .gguf file)");
  if (config_.served_model_names.empty()) config_.served_model_names = {config_.model};
  config_.max_num_seqs = max_num_seqs_.value_or(std::min(config_.max_num_seqs, config_.max_num_batched_tokens));
  if (config_.max_num_batched_tokens < config_.max_num_seqs)
    return invalid(fmt::format("max_num_batched_tokens ({}) must be greater than or equal to max_num_seqs ({}).",
                               config_.max_num_batched_tokens, config_.max_num_seqs));
  finish_planned_decodes(notes);
  TANDEM_TRY(finish_frontend(environment));
  TANDEM_TRY(finish_logging(environment));
  TANDEM_TRY(merge_hf_overrides());
  TANDEM_TRY(finish_peer_proof(config_.peer_proof, environment));
  TANDEM_TRY(finish_parallel(environment, notes));
  TANDEM_TRY(read_environment(environment));
  if (auto checked = check_cpu_lists(config_.cpu_binding.lists, config_.tensor_parallel_size); !checked)
    return checked.error().context(binding_given_ ? "argument --cpu-bind"
                                                  : "environment variable VLLM_CPU_OMP_THREADS_BIND");
  TANDEM_TRY(finish_kv_transfer(environment, notes));
  return config_;
}

Result<void> ServeOptions::finish_kv_transfer(const Environment& environment, std::vector<std::string>& notes) {
  const std::int32_t data_size = num_data_parallel_ranks_.value_or(config_.data_parallel.size);
  if (kv_transfer_config_) {
    const ParallelSizes real{.tensor = config_.tensor_parallel_size, .data = data_size};
    auto parsed = parse_kv_transfer_config(*kv_transfer_config_, real, notes);
    if (!parsed) return parsed.error().context("argument --kv-transfer-config");
    config_.kv_transfer = std::move(*parsed);
  }
  if (config_.kv_transfer) {
    auto complete = apply_environment(*config_.kv_transfer, environment);
    const std::int64_t num_ranks = std::int64_t{config_.tensor_parallel_size} * data_size;
    if (complete) complete = check_ports(*config_.kv_transfer, num_ranks, config_.uds.empty() ? config_.port : 0);
    if (!complete) return complete.error().context("argument --kv-transfer-config");
    if (const auto rank = config_.data_parallel.external_rank) {
      KvTransferConfig& kv = *config_.kv_transfer;
      if (kv.port != 0) kv.port = static_cast<std::uint16_t>(kv.port + *rank * config_.tensor_parallel_size);
      if (!kv.engine_id.empty()) kv.engine_id += fmt::format("_dp{}", *rank);
    }
  }
  return {};
}

}  // namespace tandem::config
