// SPDX-License-Identifier: Apache-2.0
#include "model/tensor_index.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "base/log.h"
#include "model/tensor_names.h"

namespace tandem::model {
namespace {

constexpr std::size_t kSampleBytes = 512;

// [4096] and, for tensors that some tools store with a leading 1, [1, 4096].
bool fits(const std::vector<std::int64_t>& shape, std::int64_t rows, std::int64_t cols) {
  if (shape.size() == 2) return shape[0] == rows && shape[1] == cols;
  return shape.size() == 1 && rows == 1 && shape[0] == cols;
}

// "model.layers.17.foo" -> "model.layers.*.foo"
std::string pattern_of(std::string_view name) {
  std::string pattern;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const bool digit = name[i] >= '0' && name[i] <= '9';
    const bool starts_part = i == 0 || name[i - 1] == '.';
    if (digit && starts_part) {
      while (i + 1 < name.size() && name[i + 1] >= '0' && name[i + 1] <= '9') ++i;
      pattern += '*';
    } else {
      pattern += name[i];
    }
  }
  return pattern;
}

// First, middle and last bytes: enough to tell two fine-tunes apart without reading gigabytes.
std::vector<std::byte> sampled_bytes(const TensorView& view) {
  std::vector<std::byte> sample;
  if (view.source != nullptr) {
    std::vector<float> row(static_cast<std::size_t>(view.cols));
    for (const std::int64_t index : {std::int64_t{0}, view.rows / 2, view.rows - 1}) {
      view.read_row(index, row.data());
      const auto* bytes = reinterpret_cast<const std::byte*>(row.data());
      sample.insert(sample.end(), bytes, bytes + std::min(kSampleBytes, row.size() * sizeof(float)));
    }
    return sample;
  }
  const std::size_t count = std::min(kSampleBytes, view.bytes);
  for (const std::size_t start : {std::size_t{0}, (view.bytes - count) / 2, view.bytes - count})
    sample.insert(sample.end(), view.data + start, view.data + start + count);
  return sample;
}

// What of a W8A8 module its rows as floats do not show.
void add_int8(const Int8Rows& int8, const std::function<void(const std::string&)>& add_text) {
  const kernels::StaticInput input = int8.input.value_or(kernels::StaticInput{});
  std::uint32_t starts = 0;
  for (const std::int32_t start : int8.start) starts = starts * 31 + static_cast<std::uint32_t>(start);
  add_text(fmt::format("static{} {:.9g} {:.9g} {} {}", int8.input.has_value(), input.scale, input.offset,
                       input.zero_point, starts));
}

}  // namespace

Result<void> TensorIndex::add(StoredTensor tensor, const std::string& file) {
  std::string name = tensor.name;
  if (const auto found = tensors_.find(name); found != tensors_.end())
    return Status(Code::kInvalidArgument,
                  fmt::format("tensor '{}' is stored twice: in {} and in {}", name, found->second.file, file));
  tensors_.emplace(std::move(name), Entry{std::move(tensor), file});
  return {};
}

const StoredTensor* TensorIndex::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second.tensor;
}

Result<TensorView> TensorIndex::view(std::string_view name, std::int64_t rows, std::int64_t cols) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end())
    return Status(
        Code::kNotFound,
        fmt::format("tensor '{}' [{}, {}] is missing from the checkpoint; is it complete, and does its config "
                    "belong to it?",
                    name, rows, cols));
  const StoredTensor& tensor = found->second.tensor;
  if (!fits(tensor.shape, rows, cols))
    return Status(Code::kInvalidArgument,
                  fmt::format("{}: tensor '{}' has shape [{}], expected {} by the config", found->second.file,
                              tensor.stored_name, fmt::join(tensor.shape, ", "),
                              rows == 1 ? fmt::format("[{}]", cols) : fmt::format("[{}, {}]", rows, cols)));
  if (!tensor.type)
    return Status(
        Code::kUnsupported,
        fmt::format("{}: tensor '{}' has type {}, which cannot be read; supported: F32, F16, BF16, and in GGUF "
                    "Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K",
                    found->second.file, tensor.stored_name, tensor.type_name));
  TensorView view;
  view.type = *tensor.type;
  view.rows = rows;
  view.cols = cols;
  view.data = tensor.data;
  view.bytes = tensor.bytes;
  view.interleaved_head_dim = tensor.interleaved_head_dim;
  return view;
}

Result<void> TensorIndex::check(const ModelConfig& config) const {
  const auto find_view = [&](const TensorSpec& spec) -> Result<void> {
    TANDEM_TRY(view(spec.name, spec.rows, spec.cols));
    return {};
  };
  TANDEM_TRY(check(config, find_view, [](std::string_view) { return false; }));
  if (config.tie_word_embeddings && contains(kHeadName)) compare_tied_head(config);
  return {};
}

Result<void> TensorIndex::check(const ModelConfig& config,
                                const std::function<Result<void>(const TensorSpec& spec)>& find,
                                const std::function<bool(std::string_view name)>& used) const {
  // Qwen3-MoE has none; a model that does has them in every token's sum.
  for (const auto& [name, entry] : tensors_)
    if (name.find(".mlp.shared_expert") != std::string::npos)
      return Status(
          Code::kUnsupported,
          fmt::format("{}: tensor '{}' is a shared expert's; {} has none, and models with one are not supported",
                      entry.file, entry.tensor.stored_name, config.architecture));
  for (const TensorSpec& spec : expected_tensors(config)) TANDEM_TRY(find(spec));
  warn_unknown(config, used);
  return {};
}

void TensorIndex::warn_unknown(const ModelConfig& config,
                               const std::function<bool(std::string_view name)>& used) const {
  std::set<std::string, std::less<>> known;
  for (const TensorSpec& spec : expected_tensors(config)) known.insert(spec.name);
  known.emplace(kHeadName);
  std::set<std::string> patterns;
  for (const auto& [name, entry] : tensors_)
    if (!known.contains(name) && !name.ends_with("rotary_emb.inv_freq") && !used(name))
      patterns.insert(pattern_of(name));
  for (const std::string& pattern : patterns)
    log::warning("tensors '{}' of the checkpoint are not used by {}", pattern, config.architecture);
}

void TensorIndex::compare_tied_head(const ModelConfig& config) const {
  const auto head = view(kHeadName, config.vocab_size, config.hidden_size);
  const auto embedding = view(kEmbeddingName, config.vocab_size, config.hidden_size);
  if (!head || !embedding || head->type != embedding->type || sampled_bytes(*head) != sampled_bytes(*embedding))
    log::warning(
        "the config ties lm_head to the embedding, yet the checkpoint stores another lm_head.weight; it is "
        "ignored, as vLLM and transformers do");
}

std::string checkpoint_fingerprint(const Checkpoint& checkpoint) {
  const ModelConfig& config = checkpoint.config();
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  const auto add_text = [&](const std::string& text) { XXH3_128bits_update(&state, text.data(), text.size() + 1); };
  add_text(fmt::format("{} V{} H{} I{} L{} h{} k{} d{} eps{:.9g} tied{} b{}{}{} n{}", config.architecture,
                       config.vocab_size, config.hidden_size, config.intermediate_size, config.num_layers,
                       config.num_heads, config.num_kv_heads, config.head_dim, config.rms_norm_eps,
                       config.tie_word_embeddings, config.qkv_bias, config.o_bias, config.mlp_bias, config.qk_norm));
  if (config.num_experts > 0)
    add_text(fmt::format("E{} k{} M{} norm{} step{} dense{}", config.num_experts, config.experts_per_token,
                         config.moe_intermediate_size, config.norm_topk_prob, config.decoder_sparse_step,
                         fmt::join(config.mlp_only_layers, ",")));
  for (const TensorSpec& spec : expected_tensors(config)) {
    const auto module = checkpoint.linear(spec.name, spec.rows, spec.cols);
    if (!module) continue;  // open() has checked them all
    add_text(fmt::format("{} {} {} {}{}", spec.name, spec.rows, spec.cols, tensor_type_name(module->weight.type),
                         module->type));
    const std::vector<std::byte> sample = sampled_bytes(module->weight);
    XXH3_128bits_update(&state, sample.data(), sample.size());
    if (module->int8) add_int8(*module->int8, add_text);
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(&state);
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace tandem::model
