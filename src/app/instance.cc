// SPDX-License-Identifier: Apache-2.0
#include "app/instance.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <chrono>
#include <filesystem>
#include <optional>
#include <random>

#include "api/metaserver_client.h"
#include "app/isa_choice.h"
#include "app/peer_proof.h"
#include "app/port_reservation.h"
#include "app/sizing.h"
#include "app/thread_placement.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "kernels/kernels.h"
#include "model/expert_placement.h"
#include "model/hf_metadata.h"
#include "model/weights.h"
#include "net/tls.h"
#include "obs/process_metrics.h"
#include "worker/model_worker.h"
#include "worker/stub_worker.h"

namespace tandem::app {
namespace {

namespace json = boost::json;

constexpr double kMiB = 1024.0 * 1024.0;
constexpr std::int64_t kStubContext = 8192;
constexpr std::int32_t kStubBlocks = 4096;

model::ComputeType compute_type(const config::ServeConfig& config) {
  if (config.quantization == config::Quantization::kW8A8) return model::ComputeType::kW8A8;
  return config.dtype == config::DType::kFloat32 ? model::ComputeType::kFloat32 : model::ComputeType::kBf16;
}

/// The flag against what the checkpoint says of itself.
Result<void> check_quantization(config::Quantization flag, std::string_view found) {
  using config::Quantization;
  const std::string_view asked = config::quantization_name(flag);
  if (flag == Quantization::kAuto || asked == found) return {};
  if (found.empty() && (flag == Quantization::kNone || flag == Quantization::kW8A8)) return {};
  const std::string_view hint =
      flag == Quantization::kAscend ? " (msModelSlim's files have a quant_model_description.json)" : "";
  return Status(Code::kInvalidArgument,
                fmt::format("--quantization {} was given, but the checkpoint is {}{}; leave the flag out, or give the "
                            "checkpoint that it is for",
                            asked, found.empty() ? "not quantised" : fmt::format("quantised as {}", found), hint),
                Scope::kProcess);
}

std::optional<kv::ElementType> kv_element(config::KvCacheType type) {
  switch (type) {
    case config::KvCacheType::kAuto:
      return std::nullopt;
    case config::KvCacheType::kBfloat16:
      return kv::ElementType::kBf16;
    case config::KvCacheType::kFloat32:
      return kv::ElementType::kF32;
    case config::KvCacheType::kInt8:
      return kv::ElementType::kInt8;
  }
  return std::nullopt;
}

Result<model::ModelOptions> model_options(const config::ServeConfig& config) {
  model::ModelOptions options;
  options.compute = compute_type(config);
  TANDEM_ASSIGN(options.isa, choose_isa(config.isa));
  options.float32_rest = config.dtype == config::DType::kFloat32;
  options.tensor_parallel_size = config.tensor_parallel_size;
  options.kv_element = kv_element(config.kv_cache_type);
  // Over several processes wait_for_all() says which has which ranks.
  if (config.expert_parallel) options.experts.num_ranks = config.data_parallel.size * config.tensor_parallel_size;
  return options;
}

/// The experts of each layer that this process will have.
model::ExpertRange local_experts(const config::ServeConfig& config, std::int32_t num_experts) {
  const config::DataParallel& data = config.data_parallel;
  if (!config.expert_parallel || data.one_process()) return {0, num_experts};
  const std::int32_t first = data.start_rank * config.tensor_parallel_size;
  const std::int32_t last = first + data.local * config.tensor_parallel_size - 1;
  const std::int32_t ranks = data.size * config.tensor_parallel_size;
  return {model::experts_of_rank(num_experts, ranks, first).begin,
          model::experts_of_rank(num_experts, ranks, last).end};
}

std::string random_engine_id() {
  std::random_device random;
  std::string id;
  for (int word = 0; word < 4; ++word) id += fmt::format("{:08x}", random());
  return id;
}

/// Loading takes long: a line every tenth.
std::function<void(double)> progress_lines() {
  auto shown = std::make_shared<int>(-1);
  return [shown](double share) {
    const int tenth = static_cast<int>(share * 10.0);
    if (tenth <= *shown) return;
    *shown = tenth;
    log::info("loading weights {} %", tenth * 10);
  };
}

/// sampling defaults of --generation-config FOLDER.
Result<model::GenerationDefaults> read_generation_folder(const std::string& folder) {
  const std::string path = (std::filesystem::path(folder) / "generation_config.json").string();
  TANDEM_ASSIGN(const json::value value, read_json_file(path, JsonLimits{.max_depth = 32, .max_bytes = 1U << 20}));
  if (!value.is_object()) return Status(Code::kInvalidArgument, path + ": expected a JSON object");
  auto defaults = model::parse_generation_config(value.as_object());
  if (!defaults) return defaults.error().context(path);
  return defaults;
}

/// What vllm:cache_config_info says of the command line, in Python's words.
obs::Labels cache_labels(const config::ServeConfig& config) {
  const auto text = [](const auto& number) { return number ? fmt::format("{}", *number) : std::string("None"); };
  return {{"gpu_memory_utilization", text(config.memory_utilization)},
          {"kv_cache_memory_bytes", text(config.kv_cache_bytes)},
          {"num_gpu_blocks_override", text(config.num_blocks)}};
}

worker::LogprobsMode logprobs_mode(config::LogprobsMode mode) {
  using Mode = config::LogprobsMode;
  return {.processed = mode == Mode::kProcessedLogprobs || mode == Mode::kProcessedLogits,
          .logits = mode == Mode::kRawLogits || mode == Mode::kProcessedLogits};
}

/// --hf-overrides of a stub: its timing, size and death.
Result<worker::StubOptions> stub_options(const config::ServeConfig& config, std::int32_t vocab_size) {
  worker::StubOptions options;
  TANDEM_ASSIGN(const json::value value, parse_json(config.hf_overrides));
  const json::object& object = value.as_object();
  TANDEM_ASSIGN(const auto step, json_double(object, "seconds_per_step"));
  TANDEM_ASSIGN(const auto prefill, json_double(object, "seconds_per_prefill_token"));
  TANDEM_ASSIGN(const auto decode, json_double(object, "seconds_per_decode_token"));
  TANDEM_ASSIGN(const auto sampled_ids, json_int(object, "sampled_ids"));
  if (sampled_ids && (*sampled_ids < 1 || *sampled_ids > vocab_size))
    return Status(
        Code::kInvalidArgument,
        fmt::format("--hf-overrides of a stub: sampled_ids is {}; allowed are 1 to {}", *sampled_ids, vocab_size));
  options.sampled_ids = static_cast<std::int32_t>(sampled_ids.value_or(0));
  TANDEM_ASSIGN(const auto last_step, json_double(object, "dies_at_step"));
  options.seconds_per_step = step.value_or(0.0);
  options.seconds_per_prefill_token = prefill.value_or(0.0);
  options.seconds_per_decode_token = decode.value_or(0.0);
  if (last_step) {
    options.before_step = [left = *last_step](const worker::StepPlan&) mutable {
      left -= 1.0;
      return left > 0.0 ? Status() : Status(Code::kInternal, "the script ends here (dies_at_step)", Scope::kProcess);
    };
  }
  options.vocab_size = vocab_size;
  options.block_size = config.block_size;
  options.logprobs_mode = logprobs_mode(config.logprobs_mode);
  const std::int32_t num_ranks = config.data_parallel.local;
  options.num_blocks = num_ranks * config.num_blocks.value_or(std::max(1, kStubBlocks / num_ranks));
  return options;
}

}  // namespace

std::string advertised_host(const config::ServeConfig& config) {
  if (!config.advertised_host.empty()) return config.advertised_host;
  if (config.kv_transfer && !config.kv_transfer->ip.empty()) return config.kv_transfer->ip;
  if (is_loopback(config.host)) return "127.0.0.1";
  if (!config.host.empty() && config.host != "0.0.0.0" && config.host != "::") return config.host;
  return local_address();
}

Instance::Instance(const config::ServeConfig& config)
    : config_(config),
      metrics_(
          obs::Labels{
              {"engine", std::to_string(config.data_parallel.external_rank.value_or(config.data_parallel.start_rank))},
              {"model_name", config.served_model_names.front()}},
          config.disable_log_stats ? "vllm:" : "") {
  // Behind the first process of an instance it is that one that is measured: two processes have no common start time.
  if (!config.data_parallel.headless) obs::add_process_metrics(metrics_);
}

Instance::~Instance() { stop(); }

Result<std::unique_ptr<Instance>> Instance::load(const config::ServeConfig& config, const Hooks& hooks) {
  std::unique_ptr<Instance> instance(new Instance(config));
  TANDEM_ASSIGN(instance->peer_tls_, make_peer_tls(config.peer_proof));
  if (config.load_format == config::LoadFormat::kStub)
    TANDEM_TRY(instance->load_stub(hooks));
  else
    TANDEM_TRY(instance->load_model(hooks));
  hooks.before_transfer();
  TANDEM_TRY(instance->start_transfer());
  instance->start_engine();
  return instance;
}

/// Before anything large is read: a process whose flags do not fit to the others' is told now.
Result<void> Instance::join_processes(const Hooks& hooks, model::ModelOptions& options) {
  if (config_.data_parallel.one_process()) return {};
  TANDEM_ASSIGN(processes_, Processes::start(config_, {.http_port = hooks.http_port,
                                                       .checkpoint = checkpoint_.get(),
                                                       .model = options,
                                                       .tls = peer_tls_,
                                                       .changed = hooks.processes_changed}));
  hooks.on_processes(processes_);
  TANDEM_ASSIGN(options.experts, processes_->wait_for_all());
  return {};
}

Result<void> Instance::load_model(const Hooks& hooks) {
  const auto start = std::chrono::steady_clock::now();
  TANDEM_ASSIGN(const json::value overrides, parse_json(config_.hf_overrides));
  TANDEM_ASSIGN(checkpoint_, model::Checkpoint::open(config_.model, overrides.as_object()));
  TANDEM_TRY(check_quantization(config_.quantization, checkpoint_->quantization()));
  TANDEM_ASSIGN(text_, load_text(config_, *checkpoint_));
  if (config_.generation_config == "auto") {
    generation_defaults_ = checkpoint_->generation_defaults();
  } else if (config_.generation_config != "vllm") {
    TANDEM_ASSIGN(generation_defaults_, read_generation_folder(config_.generation_config));
  }
  worker::ModelWorkerOptions options;
  TANDEM_ASSIGN(options.model, model_options(config_));
  auto one_block = model::kv_layouts(checkpoint_->config(), options.model, config_.block_size, 1);
  if (!one_block) return one_block.error().context("--tensor-parallel-size");
  const std::size_t weight_bytes = model::packed_linear_bytes(
      *checkpoint_, options.model, local_experts(config_, checkpoint_->config().num_experts));
  TANDEM_ASSIGN(const Sizing sizing, size_instance(config_, checkpoint_->config(), *one_block, available_memory_bytes(),
                                                   static_cast<std::int64_t>(weight_bytes)));
  if (!sizing.note.empty()) log::warning("{}", sizing.note);
  max_model_len_ = sizing.max_model_len;
  TANDEM_ASSIGN(ThreadPlacement placement,
                place_threads(config_, kernels::usable_cpus(), numa_nodes("/sys/devices/system/node")));
  if (!placement.note.empty()) log::warning("{}", placement.note);
  options.model.max_positions = sizing.max_model_len;
  options.block_size = config_.block_size;
  options.num_blocks = sizing.num_blocks * config_.data_parallel.local;
  options.num_threads = placement.num_threads;
  options.cpus = std::move(placement.cpus);
  options.rank_nodes = std::move(placement.rank_nodes);
  options.max_num_batched_tokens = config_.max_num_batched_tokens;
  options.planned_decodes = config_.planned_decodes * config_.data_parallel.local;
  options.logprobs_mode = logprobs_mode(config_.logprobs_mode);
  log::info("{}: {}, {} layers, vocabulary {}", config_.model, checkpoint_->config().architecture,
            checkpoint_->config().num_layers, checkpoint_->config().vocab_size);
  TANDEM_TRY(join_processes(hooks, options.model));
  options.enter_group = [this] { return processes_->cluster().enter(); };
  TANDEM_ASSIGN(auto worker, worker::ModelWorker::create(*checkpoint_, options, progress_lines()));
  log::info(
      "model ready after {:.1f} s: {}{} on {}, DP {} x TP {} on {} threads, weights {:.0f} MiB, KV {:.0f} MiB of {} "
      "({} x {} blocks of {}), max_model_len {}",
      seconds(std::chrono::steady_clock::now() - start),
      checkpoint_->quantization().empty() ? "" : fmt::format("{} in ", checkpoint_->quantization()),
      model::compute_name(options.model.compute), kernels::isa_name(options.model.isa), config_.data_parallel.local,
      config_.tensor_parallel_size, worker->num_threads(), static_cast<double>(worker->model().weight_bytes()) / kMiB,
      static_cast<double>(kv::total_bytes(worker->cache().ranks())) / kMiB,
      kv::element_name(worker->cache().layout().element), config_.data_parallel.local, sizing.num_blocks,
      config_.block_size, max_model_len_);
  worker_ = std::move(worker);
  if (processes_ && !processes_->steps_together()) processes_->cluster().loaded();
  return {};
}

Result<void> Instance::load_stub(const Hooks& hooks) {
  if (config_.tensor_parallel_size != 1 || config_.kv_cache_type != config::KvCacheType::kAuto)
    return Status(Code::kUnsupported,
                  "--load-format stub has one rank and a KV type of its own; leave --tensor-parallel-size and "
                  "--kv-cache-dtype out",
                  Scope::kProcess);
  TANDEM_ASSIGN(text_, stub_text(config_));
  TANDEM_ASSIGN(auto options, stub_options(config_, text_.tokenizer->vocab_size()));
  max_model_len_ = config_.max_model_len.value_or(kStubContext);
  model::ModelOptions no_model;
  TANDEM_TRY(join_processes(hooks, no_model));
  TANDEM_ASSIGN(worker_, worker::StubWorker::create(options));
  if (processes_) processes_->cluster().loaded();
  log::warning("--load-format stub: tokens come from a script, not from a model");
  return {};
}

Result<void> Instance::start_transfer() {
  if (!config_.kv_transfer) return {};
  const config::KvTransferConfig& kv = *config_.kv_transfer;
  transfer::TransferOptions options;
  options.engine_id = kv.engine_id.empty() ? random_engine_id() : kv.engine_id;
  options.producer = kv.produces();
  options.consumer = kv.consumes();
  options.receiver = kv.receives();
  options.advertised_host = advertised_host(config_);
  options.bind_host = kv.bind_host.empty() ? options.advertised_host : kv.bind_host;
  // The first port of this process's ranks (pd_protocol.md 1.6); one is enough to serve them all.
  const std::int32_t first_rank = config_.data_parallel.start_rank * config_.tensor_parallel_size;
  options.port = kv.port == 0 ? kv.port : static_cast<std::uint16_t>(kv.port + first_rank);
  options.lease_term = config_.kv_lease_term;
  options.tls = peer_tls_;
  if (config_.kv_transport == config::KvTransport::kShm) options.transport = transfer::TransportChoice::kShm;
  if (config_.kv_transport == config::KvTransport::kTcp) options.transport = transfer::TransportChoice::kTcp;
  TANDEM_ASSIGN(transfer_, transfer::TransferEngine::start(options, worker_->cache(), metrics_));
  transfer_info_ = {.engine_id = options.engine_id,
                    .connector = kv.connector,
                    .role = std::string(config::kv_role_name(kv.role)),
                    .incarnation = transfer_->incarnation()};
  if (kv.receives()) {
    api::MetaserverOptions metaservers;
    const config::ClientTls& tls = config_.kv_metaserver_tls;
    TANDEM_ASSIGN(metaservers.tls, net::make_tls_client_context({tls.ca_certs, tls.certfile, tls.keyfile}));
    announcer_ = api::start_metaserver_client(metaservers);
  }
  const std::string where = kv.listens() ? fmt::format(", at {}:{}", options.advertised_host, transfer_->port()) : "";
  log::info("KV transfer: {} as {}, engine_id {}{}, {}", kv.connector, config::kv_role_name(kv.role), options.engine_id,
            where, peer_tls_ ? peer_tls_->name() : "plain");
  return {};
}

void Instance::start_engine() {
  engine::EngineOptions options;
  options.num_ranks = config_.data_parallel.local;
  options.first_rank = config_.data_parallel.start_rank;
  options.async_scheduling = config_.async_scheduling;
  options.max_model_len = max_model_len_;
  options.max_num_seqs = config_.max_num_seqs;
  options.max_num_batched_tokens = config_.max_num_batched_tokens;
  options.long_prefill_token_threshold = config_.long_prefill_token_threshold;
  options.enable_prefix_caching = config_.enable_prefix_caching;
  options.policy = config_.scheduling == config::Scheduling::kPriority ? engine::SchedulingPolicy::kPriority
                                                                       : engine::SchedulingPolicy::kFcfs;
  if (config_.kv_transfer && config_.kv_transfer->load_failure == config::LoadFailure::kRecompute)
    options.load_failure_policy = engine::LoadFailurePolicy::kRecompute;
  options.eos_token_ids = text_.eos_token_ids;
  if (config_.disable_log_stats)
    options.log_interval = std::chrono::milliseconds(0);
  else
    options.log_interval = config_.log_stats_interval;
  options.cache_labels = cache_labels(config_);
  engine_ = engine::Engine::start(options, *worker_, text_.tokenizer, transfer_.get(), metrics_, announcer_.get());
}

api::SamplingDefaults Instance::sampling_defaults() const {
  const config::GenerationOverrides& over = config_.generation_overrides;
  const auto first = [](const auto& a, const auto& b) { return a ? a : b; };
  api::SamplingDefaults defaults;
  defaults.temperature = first(over.temperature, generation_defaults_.temperature);
  defaults.top_p = first(over.top_p, generation_defaults_.top_p);
  defaults.min_p = first(over.min_p, generation_defaults_.min_p);
  defaults.repetition_penalty = first(over.repetition_penalty, generation_defaults_.repetition_penalty);
  defaults.top_k = first(over.top_k, generation_defaults_.top_k);
  defaults.max_new_tokens = first(over.max_new_tokens, generation_defaults_.max_new_tokens);
  defaults.max_new_tokens_ceiling = over.max_new_tokens;
  return defaults;
}

api::ServiceParts Instance::service_parts() {
  api::ServiceParts parts;
  parts.engine = engine_.get();
  parts.tokenizer = text_.tokenizer;
  parts.chat_template = text_.chat_template;
  parts.tool_template = text_.tool_template;
  parts.template_tokens = text_.tokens;
  parts.metrics = &metrics_;
  parts.defaults = sampling_defaults();
  parts.vocab_size = worker_->vocab_size();
  parts.tokenizer_config = text_.tokenizer_config;
  parts.transfer = transfer_info_;
  parts.transfer.tp_size = config_.tensor_parallel_size;
  if (processes_ && config_.data_parallel.headless)
    parts.bearer = processes_->token();
  else if (processes_)
    parts.instance_view = [processes = processes_] { return processes->view(); };
  return parts;
}

void Instance::stop() {
  if (engine_) engine_->stop();
  if (transfer_) transfer_->stop();
  if (processes_) processes_->cluster().stop();
}

}  // namespace tandem::app
