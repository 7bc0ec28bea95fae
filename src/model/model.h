// SPDX-License-Identifier: Apache-2.0
// A loaded transformer: Llama, Qwen2, Qwen3 and Qwen3-MoE. Spec: model_formats.md 1.3.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "comm/group.h"
#include "kernels/kernels.h"
#include "kv/cache_memory.h"
#include "model/checkpoint.h"
#include "model/config.h"

namespace tandem::model {

enum class ComputeType {
  kFloat32,
  kBf16,
  kW8A8,  ///< q/k/v/o/gate/up/down in int8, made at load; embedding, lm_head and norms stay as they are (BF16)
};
std::string_view compute_name(ComputeType type);  ///< "float32", "bfloat16", "w8a8"

/// Where the experts of a mixture-of-experts model are. Expert e belongs to one of num_ranks ranks (the remainder rule
/// of model_formats.md), and ranks belong to processes.
struct ExpertPlacement {
  std::int32_t num_ranks = 1;
  /// Process p of `group` has the ranks [first_rank[p], first_rank[p + 1]); size() + 1 numbers. Empty: one process has
  /// all.
  std::vector<std::int32_t> first_rank;
  /// The processes; nullptr if there is one. Must outlive the model. Only this process's experts are loaded, and every
  /// forward pass is a step of all processes.
  comm::Group* group = nullptr;
};

struct ModuleRows {
  std::string module;  ///< "model.layers.0.mlp.up_proj"
  std::int64_t rows = 0;
};

/// For measuring a model at work (model/quantize). Must outlive the model.
struct LinearObserver {
  const kernels::Ops* ops = nullptr;  ///< used in place of those of the instruction set
  /// Hears of each layer when it is packed, and of which modules' rows it is made, in order.
  std::function<void(const kernels::PackedLinear& layer, const std::vector<ModuleRows>& modules)> loaded;
};

struct ModelOptions {
  ComputeType compute = ComputeType::kBf16;
  kernels::Isa isa = kernels::Isa::kPortable;
  /// Positions for which RoPE tables are made: the instance's max_model_len.
  std::int64_t max_positions = 0;
  /// What W8A8 does not quantise (embedding, lm_head, KV) in float32, as the golden W8A8 values want it; BF16
  /// otherwise.
  bool float32_rest = false;
  /// Ranks among which heads and KV are split. Changes no bit of the logits.
  std::int32_t tensor_parallel_size = 1;
  ExpertPlacement experts;
  const LinearObserver* observer = nullptr;
  std::optional<kv::ElementType> kv_element;  ///< nullopt: float32 if the rest is, else BF16
};

/// The KV of a model with these options, rank by rank (kv::split_heads), without fingerprint. An error names the number
/// that cannot be split: attention heads or intermediate size. (A vocabulary can always be split.)
Result<std::vector<kv::Layout>> kv_layouts(const ModelConfig& config, const ModelOptions& options,
                                           std::int32_t block_size, std::int32_t num_blocks);

enum class LogitsOf { kNone, kLast, kAll };

/// The tokens of one sequence in a forward pass. KV of positions before first_position is in the cache.
struct SequenceInput {
  std::span<const std::int32_t> tokens;
  std::int64_t first_position = 0;
  std::span<const kv::BlockId> block_table;
  LogitsOf logits = LogitsOf::kLast;
};

class Model {
 public:
  /// Reads and packs all weights with the team's threads. `progress` (may be empty) gets the share done, 0..1. Options
  /// that do not fit the model are refused before that.
  static Result<std::unique_ptr<Model>> load(const Checkpoint& checkpoint, const ModelOptions& options,
                                             kernels::ThreadTeam& team,
                                             const std::function<void(double)>& progress = {});
  virtual ~Model() = default;

  virtual const ModelConfig& config() const = 0;
  virtual std::size_t weight_bytes() const = 0;
  /// Geometry of this model's KV on each rank, fingerprint filled in. The fingerprint does not depend on the KV's type
  /// or on the number of ranks: instances that differ in them exchange KV.
  virtual std::vector<kv::Layout> kv_layouts(std::int32_t block_size, std::int32_t num_blocks) const = 0;
  /// Runs one pass: writes the tokens' KV and, for the rows asked for in order of the sequences, logits
  /// [rows, vocab_size] (float32). `logits` must have room for them. `on_layer` (may be empty) hears of each layer once
  /// its KV is written. One caller at a time. With an expert group `sequences` may be empty: then the pass only serves
  /// the other processes' tokens. An error is the group's (Scope::kPeer): the pass is lost, and nothing else.
  virtual Result<void> forward(std::span<const SequenceInput> sequences, kv::CacheMemory& cache,
                               std::span<float> logits,
                               const std::function<void(std::int32_t layer)>& on_layer = {}) = 0;
};

}  // namespace tandem::model
