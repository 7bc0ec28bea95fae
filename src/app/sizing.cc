// SPDX-License-Identifier: Apache-2.0
#include "app/sizing.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <limits>

#include "model/expert_layer.h"

namespace tandem::app {
namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;
/// KV memory is taken whether requests come or not, and a prefiller and a decoder often share a machine and look at its
/// free memory at the same moment: without a word from the user it stays modest.
constexpr double kDefaultUtilization = 0.9;
constexpr std::int64_t kDefaultKvCap = 4 * kGiB;
constexpr std::int64_t kDefaultKvShare = 4;  // one part in four of what is free

double in_gib(std::int64_t bytes) { return static_cast<double>(bytes) / static_cast<double>(kGiB); }

Result<std::int64_t> context_length(const config::ServeConfig& config, const model::ModelConfig& model) {
  if (!config.max_model_len) return model.max_context;
  if (*config.max_model_len <= model.max_context || config.allow_long_max_model_len) return *config.max_model_len;
  return Status(Code::kInvalidArgument,
                fmt::format("User-specified max_model_len ({}) is greater than the derived max_model_len "
                            "(max_position_embeddings={}). This may lead to incorrect outputs. To allow it, set "
                            "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1, or give the model more positions with --rope-scaling",
                            *config.max_model_len, model.max_context));
}

/// Saturating product: sizes of wild configs must not wrap round.
std::int64_t times(std::int64_t a, std::int64_t b) {
  if (a != 0 && b > std::numeric_limits<std::int64_t>::max() / a) return std::numeric_limits<std::int64_t>::max();
  return a * b;
}

std::int64_t first_number(const char* path, const std::string& key) {
  std::ifstream in(path);
  std::string word;
  while (in >> word) {
    std::int64_t value = 0;
    if (word == key && in >> value) return value;
  }
  return -1;
}

std::int64_t whole_file_number(const char* path) {
  std::ifstream in(path);
  std::int64_t value = -1;
  return in >> value ? value : -1;
}

}  // namespace

std::int64_t estimated_weight_bytes(const model::ModelConfig& model, const config::ServeConfig& config) {
  const std::int64_t hidden = model.hidden_size;
  const std::int64_t attention =
      hidden * model.head_dim * (std::int64_t{2} * model.num_heads + std::int64_t{2} * model.num_kv_heads);
  const std::int64_t embedding = hidden * model.vocab_size * (model.tie_word_embeddings ? 1 : 2);
  const std::int64_t element = config.dtype == config::DType::kFloat32 ? 4 : 2;
  const std::int64_t linear = config.quantization == config::Quantization::kW8A8 ? 1 : element;
  const config::DataParallel& data = config.data_parallel;
  // Experts that are spread over processes: this one has its ranks' share.
  const std::int64_t experts = config.expert_parallel
                                   ? (std::int64_t{model.num_experts} * data.local + data.size - 1) / data.size
                                   : model.num_experts;
  std::int64_t feed_forward = 0;  // of all layers
  for (std::int32_t layer = 0; layer < model.num_layers; ++layer)
    feed_forward += 3 * hidden *
                    (model::is_expert_layer(model, layer) ? times(experts, model.moe_intermediate_size)
                                                          : std::int64_t{model.intermediate_size});
  return times(times(model.num_layers, attention) + feed_forward, linear) + embedding * element;
}

std::int64_t estimated_activation_bytes(const model::ModelConfig& model, const config::ServeConfig& config) {
  // Float32: the residual, its norm and the attention's output; q, k, v; gate, up and their product (these in pieces of
  // at most kMlpRows tokens); one row of logits a sequence.
  constexpr std::int64_t kMlpRows = 1024;
  const std::int64_t num_ranks = config.data_parallel.local;
  const std::int64_t tokens = num_ranks * config.max_num_batched_tokens;
  const std::int64_t hidden = 3 * std::int64_t{model.hidden_size};
  const std::int64_t heads =
      model.head_dim * (std::int64_t{2} * model.num_heads + std::int64_t{2} * model.num_kv_heads);
  std::int64_t mlp = std::min(tokens, kMlpRows) * 3 * model.intermediate_size;
  if (model.num_experts > 0) {
    const bool spread = config.expert_parallel && !config.data_parallel.one_process();
    mlp = std::max(mlp, model::ExpertLayer::activation_floats(model, spread, tokens));
  }
  const std::int64_t rows = num_ranks * std::min(config.max_num_seqs, config.max_num_batched_tokens);
  return times(tokens * (hidden + heads) + mlp + times(rows, model.vocab_size), 4);
}

std::int64_t available_memory_bytes() {
  std::int64_t available = std::max<std::int64_t>(0, first_number("/proc/meminfo", "MemAvailable:")) * 1024;
  const std::int64_t limit = whole_file_number("/sys/fs/cgroup/memory.max");
  const std::int64_t used = whole_file_number("/sys/fs/cgroup/memory.current");
  if (limit > 0 && used >= 0) {
    // File pages count as used there but can be dropped.
    const std::int64_t droppable =
        std::max<std::int64_t>(0, first_number("/sys/fs/cgroup/memory.stat", "inactive_file"));
    available = std::min(available, std::max<std::int64_t>(0, limit - used + droppable));
  }
  return available;
}

Result<Sizing> size_instance(const config::ServeConfig& config, const model::ModelConfig& model,
                             std::span<const kv::Layout> one_block, std::int64_t memory_bytes,
                             std::optional<std::int64_t> weight_bytes) {
  Sizing sizing;
  TANDEM_ASSIGN(sizing.max_model_len, context_length(config, model));
  const auto block_bytes = static_cast<std::int64_t>(kv::total_bytes(one_block));
  const auto blocks_of = [&](std::int64_t tokens) { return (tokens + config.block_size - 1) / config.block_size; };
  const std::int64_t one_request = times(blocks_of(sizing.max_model_len), block_bytes);
  const bool chosen = config.num_blocks || config.kv_cache_bytes;
  const double utilization = config.memory_utilization.value_or(kDefaultUtilization);
  const std::int64_t num_ranks = config.data_parallel.local;
  std::int64_t bytes = 0;  // of one data-parallel rank
  if (config.num_blocks) {
    bytes = times(*config.num_blocks, block_bytes);
  } else if (config.kv_cache_bytes) {
    bytes = *config.kv_cache_bytes / num_ranks;
  } else {
    const std::int64_t all_requests = times(config.max_num_seqs, one_request);
    const auto share = static_cast<std::int64_t>(utilization * static_cast<double>(memory_bytes));
    const std::int64_t weights = weight_bytes.value_or(estimated_weight_bytes(model, config));
    const std::int64_t room = (share - weights - estimated_activation_bytes(model, config)) / num_ranks;
    bytes = std::min(room, all_requests);
    if (!config.memory_utilization) {
      const std::int64_t modest = std::min(kDefaultKvCap, memory_bytes / kDefaultKvShare) / num_ranks;
      bytes = std::min(bytes, config.max_model_len ? std::max(modest, one_request) : modest);
    }
  }
  const std::int64_t blocks = std::min<std::int64_t>(bytes / std::max<std::int64_t>(1, block_bytes),
                                                     std::numeric_limits<std::int32_t>::max() / num_ranks);
  if (blocks < 1)
    return Status(
        Code::kResourceExhausted,
        fmt::format("no memory for KV: one block of {} tokens needs {} bytes, {} bytes are left{} of {:.2f} GiB; free "
                    "memory, raise --gpu-memory-utilization ({}) or set --kv-cache-memory-bytes",
                    config.block_size, block_bytes, std::max<std::int64_t>(0, bytes),
                    num_ranks == 1 ? "" : fmt::format(" for each of {} data-parallel ranks", num_ranks),
                    in_gib(memory_bytes), utilization));
  sizing.num_blocks = static_cast<std::int32_t>(blocks);
  const std::int64_t capacity = blocks * config.block_size;
  if (capacity >= sizing.max_model_len) return sizing;
  if (!config.max_model_len) {
    sizing.note = fmt::format("max_model_len is {} instead of the model's {}: that is what the KV memory holds",
                              capacity, sizing.max_model_len);
    sizing.max_model_len = capacity;
    return sizing;
  }
  const std::string what = fmt::format(
      "To serve at least one request with the models's max seq len ({}), {:.2f} GiB KV cache is "
      "needed, which is larger than the available KV cache memory ({:.2f} GiB)",
      sizing.max_model_len, in_gib(one_request), in_gib(bytes));
  if (!chosen)
    return Status(Code::kResourceExhausted,
                  what + ". Decrease --max-model-len, or give KV more memory with --kv-cache-memory-bytes");
  sizing.note = what + "; longer requests are refused";
  return sizing;
}

}  // namespace tandem::app
