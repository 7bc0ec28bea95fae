// SPDX-License-Identifier: Apache-2.0
// The forward pass of Llama, Qwen2, Qwen3 and Qwen3-MoE (spec: model_formats.md 1.3). The residual stream is float32;
// every rounding to BF16 or int8 happens inside a linear layer, on its input, so that splitting or joining calls
// changes nothing.
//
// Tensor parallelism: where is the all-reduce? There is none. Ranks share one thread team and one memory, so every
// linear layer, o_proj and down_proj too, is split by its outputs (the team's threads take contiguous rows of the
// packed weights, the threads of a rank next to each other), and the barrier at the end of a kernel is the all-gather.
// No sum over K is cut, so the number of ranks changes no bit. docs/architecture.md, "Tensor parallelism".
#include <fmt/format.h>
#include <fmt/ranges.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "base/float16.h"
#include "model/expert_layer.h"
#include "model/expert_placement.h"
#include "model/model.h"
#include "model/rope.h"
#include "model/scratch.h"
#include "model/weights.h"

namespace tandem::model {
namespace {

/// Rows that go through an MLP at once: bounds its scratch, and is far above what a GEMM needs to be busy.
constexpr std::int64_t kMlpRows = 1024;
constexpr std::int64_t kMaxRopeBytes = std::int64_t{8} << 30;
/// Below this much work, waking the other threads costs more than it saves.
constexpr std::int64_t kInlineElements = 32 * 1024;

bool has_bf16_rest(const ModelOptions& options) {
  return options.compute != ComputeType::kFloat32 && !options.float32_rest;
}

kernels::KvType kv_type(kv::ElementType element) {
  switch (element) {
    case kv::ElementType::kBf16:
      return kernels::KvType::kBf16;
    case kv::ElementType::kF32:
      return kernels::KvType::kF32;
    case kv::ElementType::kInt8:
      return kernels::KvType::kInt8;
  }
  TANDEM_ASSERT(false, "unknown KV element type");
  return kernels::KvType::kF32;
}

// What processes must have in common to work on each other's tokens: the model, where its experts are, and the order
// of sums.
std::uint64_t group_identity(const ModelOptions& options, std::string_view fingerprint) {
  const std::string text = fmt::format("{} {} {} {}", fingerprint, kernels::isa_name(options.isa),
                                       options.experts.num_ranks, fmt::join(options.experts.first_rank, ","));
  return XXH3_64bits(text.data(), text.size());
}

class Transformer : public Model {
 public:
  Transformer(const ModelConfig& config, const ModelOptions& options, const kernels::Ops& ops,
              kernels::ThreadTeam& team, ModelWeights weights, RopeTables rope, std::string fingerprint)
      : config_(config),
        options_(options),
        ops_(ops),
        team_(team),
        weights_(std::move(weights)),
        rope_(std::move(rope)),
        fingerprint_(std::move(fingerprint)),
        q_size_(static_cast<std::int64_t>(config.num_heads) * config.head_dim),
        kv_size_(static_cast<std::int64_t>(config.num_kv_heads) * config.head_dim),
        bf16_rest_(has_bf16_rest(options)),
        experts_(config_, options_.experts, ops, team, group_identity(options_, fingerprint_)) {}

  const ModelConfig& config() const override { return config_; }
  std::size_t weight_bytes() const override { return weights_.bytes; }

  std::vector<kv::Layout> kv_layouts(std::int32_t block_size, std::int32_t num_blocks) const override {
    // load() has refused what cannot be split.
    std::vector<kv::Layout> ranks = *model::kv_layouts(config_, options_, block_size, num_blocks);
    for (kv::Layout& layout : ranks) layout.fingerprint = fingerprint_;
    return ranks;
  }

  Result<void> forward(std::span<const SequenceInput> sequences, kv::CacheMemory& cache, std::span<float> logits,
                       const std::function<void(std::int32_t layer)>& on_layer) override {
    on_layer_ = &on_layer;
    TANDEM_ASSERT(cache.ranks().size() == static_cast<std::size_t>(options_.tensor_parallel_size),
                  "the KV cache has another number of ranks");
    plan(sequences, cache.layout());
    if (num_rows_ == 0) return serve_others();
    TANDEM_ASSERT(logits.size() >= wanted_rows_.size() * static_cast<std::size_t>(config_.vocab_size),
                  "the logits buffer is too small for the rows asked for");
    float* x = x_.get(num_rows_, config_.hidden_size);
    embed(sequences, x);
    for (std::int32_t layer = 0; layer + 1 < config_.num_layers; ++layer) {
      const float* attended = attention(layer, x, sequences_, cache);
      TANDEM_TRY(finish_layer(layer, x, attended, num_rows_));
    }
    return finish(x, cache, logits.data());
  }

 private:
  // Fills sequences_, wanted_sequences_, wanted_rows_ and positions_.
  void plan(std::span<const SequenceInput> inputs, const kv::Layout& layout) {
    TANDEM_ASSERT(layout.fingerprint == fingerprint_, "the KV cache was made for another model");
    sequences_.clear();
    wanted_sequences_.clear();
    wanted_rows_.clear();
    positions_.clear();
    num_rows_ = 0;
    for (const SequenceInput& input : inputs) {
      const auto count = static_cast<std::int64_t>(input.tokens.size());
      const std::int64_t end = input.first_position + count;
      TANDEM_ASSERT(count > 0 && input.first_position >= 0, "a sequence in a forward pass needs tokens");
      TANDEM_ASSERT(end <= max_positions(), "a position is past the longest context");
      TANDEM_ASSERT(static_cast<std::int64_t>(input.block_table.size()) * layout.block_size >= end,
                    "the block table does not cover the tokens");
      sequences_.push_back({num_rows_, count, input.first_position, input.block_table});
      const std::int64_t wanted = input.logits == LogitsOf::kAll ? count : input.logits == LogitsOf::kLast ? 1 : 0;
      if (wanted > 0)
        wanted_sequences_.push_back({num_rows_ + count - wanted, wanted, end - wanted, input.block_table});
      for (std::int64_t i = count - wanted; i < count; ++i) wanted_rows_.push_back(num_rows_ + i);
      for (std::int64_t i = 0; i < count; ++i)
        positions_.push_back(static_cast<std::int32_t>(input.first_position + i));
      num_rows_ += count;
    }
  }

  std::int64_t max_positions() const {
    return static_cast<std::int64_t>(rope_.cos.size()) / std::max(config_.head_dim / 2, 1);
  }

  void embed(std::span<const SequenceInput> inputs, float* x) {
    tokens_.clear();
    for (const SequenceInput& input : inputs)
      for (const std::int32_t token : input.tokens) {
        TANDEM_ASSERT(token >= 0 && token < config_.vocab_size, "a token id is outside the vocabulary");
        tokens_.push_back(token);
      }
    const std::int64_t hidden = config_.hidden_size;
    const auto rows = [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        float* out = x + row * hidden;
        weights_.embedding.read_row(tokens_[static_cast<std::size_t>(row)], out);
        if (bf16_rest_)
          for (std::int64_t i = 0; i < hidden; ++i) out[i] = to_float(to_bf16(out[i]));
      }
    };
    if (num_rows_ * hidden < kInlineElements) return rows(0, num_rows_);
    team_.run([&](int thread) { rows(num_rows_ * thread / team_.size(), num_rows_ * (thread + 1) / team_.size()); });
  }

  // The ranks' caches of one layer.
  std::span<const kernels::PagedKv> paged(std::int32_t layer, kv::CacheMemory& cache) {
    ranks_.clear();
    const std::int32_t heads = config_.num_heads / options_.tensor_parallel_size;
    for (const kv::Layout& layout : cache.ranks()) {
      kernels::PagedKv& view = ranks_.emplace_back();
      view.data = cache.data() + layout.offset(layer, 0, 0, 0, 0);
      view.block_stride = layout.block_bytes();
      view.kv_stride = layout.kv_bytes();
      view.head_stride = layout.head_bytes();
      view.block_size = layout.block_size;
      view.first_kv_head = layout.first_kv_head;
      view.num_kv_heads = layout.num_kv_heads;
      view.first_head = static_cast<std::int32_t>(ranks_.size() - 1) * heads;
      view.num_heads = heads;
      view.head_dim = layout.head_dim;
      view.type = kv_type(layout.element);
    }
    return ranks_;
  }

  // Projects all rows, writes their KV, and attends for the rows of `queries` (into the same rows of the result).
  const float* attention(std::int32_t layer, const float* x, std::span<const kernels::AttentionSequence> queries,
                         kv::CacheMemory& cache) {
    const LayerWeights& weights = weights_.layers[static_cast<std::size_t>(layer)];
    const std::int64_t hidden = config_.hidden_size;
    const std::int64_t width = q_size_ + 2 * kv_size_;
    float* normed = normed_.get(num_rows_, hidden);
    float* qkv = qkv_.get(num_rows_, width);
    norm(x, hidden, weights.input_norm, num_rows_, hidden, normed, hidden);
    ops_.linear(team_, *weights.qkv, normed, hidden, num_rows_, qkv, width, kernels::Epilogue::kStore);
    float* k = qkv + q_size_;
    if (config_.qk_norm) {
      head_norm(qkv, width, config_.num_heads, weights.q_norm);
      head_norm(k, width, config_.num_kv_heads, weights.k_norm);
    }
    // q and k stand side by side: one call turns both.
    ops_.rope(team_, qkv, width, num_rows_, config_.num_heads + config_.num_kv_heads, config_.head_dim,
              positions_.data(), rope_.cos.data(), rope_.sin.data());
    const std::span<const kernels::PagedKv> ranks = paged(layer, cache);
    ops_.store_kv(team_, sequences_, k, width, k + kv_size_, width, ranks);
    if (*on_layer_) (*on_layer_)(layer);
    float* attended = attended_.get(num_rows_, q_size_);
    if (queries.empty()) return attended;
    const float scale = 1.0F / std::sqrt(static_cast<float>(config_.head_dim));
    ops_.attention(team_, queries, qkv, width, config_.num_heads / config_.num_kv_heads, scale, ranks, attended,
                   q_size_);
    return attended;
  }

  void norm(const float* x, std::int64_t ldx, const Norm& weights, std::int64_t rows, std::int64_t cols, float* y,
            std::int64_t ldy) {
    ops_.rms_norm(team_, x, ldx, weights.weight.data(), weights.bias.empty() ? nullptr : weights.bias.data(),
                  config_.rms_norm_eps, rows, cols, y, ldy);
  }

  // RMS norm of each head. Heads are contiguous within a row, rows are apart: take whichever way needs fewer calls.
  void head_norm(float* x, std::int64_t stride, std::int64_t heads, const Norm& weights) {
    const std::int64_t dim = config_.head_dim;
    if (num_rows_ <= heads) {
      for (std::int64_t row = 0; row < num_rows_; ++row)
        norm(x + row * stride, dim, weights, heads, dim, x + row * stride, dim);
    } else {
      for (std::int64_t head = 0; head < heads; ++head)
        norm(x + head * dim, stride, weights, num_rows_, dim, x + head * dim, stride);
    }
  }

  // A pass without rows: only the other processes' tokens, in every layer that has experts.
  Result<void> serve_others() {
    if (!experts_.has_group()) return {};
    for (std::int32_t layer = 0; layer < config_.num_layers; ++layer)
      if (is_expert_layer(config_, layer))
        TANDEM_TRY(experts_.run(layer, weights_.layers[static_cast<std::size_t>(layer)], nullptr, 0, nullptr));
    return {};
  }

  // Output projection and MLP of `rows` rows of x (none if another process's tokens are all there is).
  Result<void> finish_layer(std::int32_t layer, float* x, const float* attended, std::int64_t rows) {
    const LayerWeights& weights = weights_.layers[static_cast<std::size_t>(layer)];
    const std::int64_t hidden = config_.hidden_size;
    ops_.linear(team_, *weights.o, attended, q_size_, rows, x, hidden, kernels::Epilogue::kAdd);
    if (weights.router == nullptr) {
      dense_mlp(weights, x, rows);
      return {};
    }
    float* normed = normed_.get(rows, hidden);
    norm(x, hidden, weights.post_attention_norm, rows, hidden, normed, hidden);
    return experts_.run(layer, weights, normed, rows, x);
  }

  void dense_mlp(const LayerWeights& weights, float* x, std::int64_t rows) {
    const std::int64_t hidden = config_.hidden_size;
    const std::int64_t inner = config_.intermediate_size;
    for (std::int64_t first = 0; first < rows; first += kMlpRows) {
      const std::int64_t count = std::min(kMlpRows, rows - first);
      float* part = x + first * hidden;
      float* normed = normed_.get(count, hidden);
      float* gate_up = gate_up_.get(count, 2 * inner);
      float* activated = activated_.get(count, inner);
      norm(part, hidden, weights.post_attention_norm, count, hidden, normed, hidden);
      ops_.linear(team_, *weights.gate_up, normed, hidden, count, gate_up, 2 * inner, kernels::Epilogue::kStore);
      ops_.silu_mul(team_, gate_up, count, inner, activated);
      ops_.linear(team_, *weights.down, activated, inner, count, part, hidden, kernels::Epilogue::kAdd);
    }
  }

  // Last layer and head. Past the last KV write, only the rows whose logits are wanted matter to anyone.
  Result<void> finish(float* x, kv::CacheMemory& cache, float* logits) {
    const std::int32_t last = config_.num_layers - 1;
    attention(last, x, wanted_sequences_, cache);
    // With a group every process goes through every layer with experts, also one that wants nothing of the last.
    if (wanted_rows_.empty() && !experts_.has_group()) return {};
    const std::int64_t hidden = config_.hidden_size;
    const auto rows = static_cast<std::int64_t>(wanted_rows_.size());
    float* attended = attended_.get(num_rows_, q_size_);
    compact(x, hidden);
    compact(attended, q_size_);
    TANDEM_TRY(finish_layer(last, x, attended, rows));
    float* normed = normed_.get(rows, hidden);
    norm(x, hidden, weights_.final_norm, rows, hidden, normed, hidden);
    ops_.linear(team_, *weights_.head, normed, hidden, rows, logits, config_.vocab_size, kernels::Epilogue::kStore);
    return {};
  }

  // Moves the wanted rows to the front; they ascend, so a row is never overwritten before it is read.
  void compact(float* data, std::int64_t cols) const {
    for (std::size_t i = 0; i < wanted_rows_.size(); ++i)
      if (wanted_rows_[i] != static_cast<std::int64_t>(i))
        std::memcpy(data + static_cast<std::int64_t>(i) * cols, data + wanted_rows_[i] * cols,
                    static_cast<std::size_t>(cols) * sizeof(float));
  }

  const ModelConfig config_;
  const ModelOptions options_;
  const kernels::Ops& ops_;
  kernels::ThreadTeam& team_;
  const ModelWeights weights_;
  const RopeTables rope_;
  const std::string fingerprint_;
  const std::int64_t q_size_;
  const std::int64_t kv_size_;
  const bool bf16_rest_;
  ExpertLayer experts_;

  // The pass in work.
  const std::function<void(std::int32_t layer)>* on_layer_ = nullptr;
  std::int64_t num_rows_ = 0;
  std::vector<kernels::AttentionSequence> sequences_;
  std::vector<kernels::AttentionSequence> wanted_sequences_;  ///< the same, cut to the rows whose logits are wanted
  std::vector<std::int64_t> wanted_rows_;
  std::vector<kernels::PagedKv> ranks_;
  std::vector<std::int32_t> positions_;
  std::vector<std::int32_t> tokens_;
  Scratch x_;          ///< [rows, H], the residual stream
  Scratch normed_;     ///< [rows, H]
  Scratch qkv_;        ///< [rows, q | k | v]
  Scratch attended_;   ///< [rows, nh * head_dim]
  Scratch gate_up_;    ///< [kMlpRows, 2 I]
  Scratch activated_;  ///< [kMlpRows, I]
};

std::string model_fingerprint(const Checkpoint& checkpoint, const ModelOptions& options) {
  const std::string text = fmt::format("{} {} {} {}", checkpoint.fingerprint(), compute_name(options.compute),
                                       options.float32_rest ? "float32" : "bfloat16",
                                       rope_identity(checkpoint.config().rope, checkpoint.config().head_dim));
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return fmt::format("{}/{}/{:016x}{:016x}", checkpoint.config().architecture, compute_name(options.compute),
                     hash.high64, hash.low64);
}

}  // namespace

std::string_view compute_name(ComputeType type) {
  switch (type) {
    case ComputeType::kFloat32:
      return "float32";
    case ComputeType::kBf16:
      return "bfloat16";
    case ComputeType::kW8A8:
      return "w8a8";
  }
  return "unknown";
}

Result<std::vector<kv::Layout>> kv_layouts(const ModelConfig& config, const ModelOptions& options,
                                           std::int32_t block_size, std::int32_t num_blocks) {
  kv::Layout whole;
  whole.num_layers = config.num_layers;
  whole.num_blocks = num_blocks;
  whole.block_size = block_size;
  whole.total_kv_heads = config.num_kv_heads;
  whole.num_kv_heads = config.num_kv_heads;
  whole.head_dim = config.head_dim;
  whole.element = options.kv_element.value_or(has_bf16_rest(options) ? kv::ElementType::kBf16 : kv::ElementType::kF32);
  const std::int32_t tp_size = options.tensor_parallel_size;
  TANDEM_ASSIGN(auto ranks, kv::split_heads(whole, config.num_heads, tp_size));
  const auto check_divides = [&](std::string_view what, std::int32_t size, std::string_view advice) -> Result<void> {
    if (size % tp_size == 0) return {};
    return Status(
        Code::kInvalidArgument,
        fmt::format("tensor parallel size {} does not divide the model's {} {}{}", tp_size, what, size, advice),
        Scope::kProcess);
  };
  bool any_dense = false;
  for (std::int32_t layer = 0; layer < config.num_layers; ++layer) any_dense |= !is_expert_layer(config, layer);
  if (any_dense) TANDEM_TRY(check_divides("intermediate size", config.intermediate_size, ""));
  // With expert parallelism an expert is whole on its rank; otherwise each rank has a share of every expert.
  if (config.num_experts > 0 && options.experts.num_ranks == 1)
    TANDEM_TRY(check_divides("expert intermediate size", config.moe_intermediate_size,
                             "; with --enable-expert-parallel it need not"));
  return ranks;
}

Result<std::unique_ptr<Model>> Model::load(const Checkpoint& checkpoint, const ModelOptions& options,
                                           kernels::ThreadTeam& team, const std::function<void(double)>& progress) {
  const ModelConfig& config = checkpoint.config();
  TANDEM_TRY(model::kv_layouts(config, options, 1, 1));
  TANDEM_TRY(check_placement(options.experts));
  TANDEM_ASSIGN(const kernels::Ops* ops, kernels::ops_for(options.isa));
  if (options.observer != nullptr) ops = options.observer->ops;
  const std::int64_t positions = options.max_positions > 0 ? options.max_positions : config.max_context;
  if (positions < 1 || positions > kMaxRopeBytes / (4 * config.head_dim))
    return Status(Code::kInvalidArgument,
                  fmt::format("a context of {} tokens needs RoPE tables above {} GiB; lower --max-model-len", positions,
                              kMaxRopeBytes >> 30));
  TANDEM_ASSIGN(ModelWeights weights, load_weights(checkpoint, options, *ops, team, progress));
  RopeTables rope = make_rope_tables(config.rope, config.head_dim, positions, team);
  return std::unique_ptr<Model>(std::make_unique<Transformer>(config, options, *ops, team, std::move(weights),
                                                              std::move(rope), model_fingerprint(checkpoint, options)));
}

}  // namespace tandem::model
