// SPDX-License-Identifier: Apache-2.0
#include "model/generator.h"

#include <fmt/format.h>

#include <cmath>
#include <map>

#include "base/float16.h"
#include "model/tensor_index.h"

namespace tandem::model {
namespace {

class GeneratedRows : public RowSource {
 public:
  GeneratedRows(std::string_view salt, const TensorSpec& spec)
      : seed_(generator_seed(salt, spec.name)), role_(spec.role) {
    if (role_ == TensorRole::kLinear) scale_ = static_cast<float>(std::sqrt(3.0 / static_cast<double>(spec.cols)));
    if (role_ == TensorRole::kEmbedding) scale_ = 0.125F;
    if (role_ == TensorRole::kBias) scale_ = 0.5F;
    if (role_ == TensorRole::kNorm) scale_ = 0.25F;
  }

  void read_row(std::int64_t row, std::int64_t cols, float* out) const override {
    const float offset = role_ == TensorRole::kNorm ? 1.0F : 0.0F;
    const auto first = static_cast<std::uint64_t>(row * cols);
    for (std::int64_t i = 0; i < cols; ++i)
      out[i] = to_float(to_bf16(offset + scale_ * generator_unit(seed_, first + static_cast<std::uint64_t>(i))));
  }

 private:
  std::uint64_t seed_;
  TensorRole role_;
  float scale_ = 1.0F;
};

class SyntheticCheckpoint : public Checkpoint {
 public:
  SyntheticCheckpoint(const ModelConfig& config, std::string_view salt) : config_(config) {
    for (TensorSpec& spec : expected_tensors(config)) {
      TensorView view;
      view.type = TensorType::kBf16;
      view.rows = spec.rows;
      view.cols = spec.cols;
      view.source = std::make_shared<GeneratedRows>(salt, spec);
      tensors_.emplace(std::move(spec.name), std::move(view));
    }
    fingerprint_ = checkpoint_fingerprint(*this);
  }

  const ModelConfig& config() const override { return config_; }
  Result<TensorView> tensor(std::string_view name, std::int64_t rows, std::int64_t cols) const override {
    const auto found = tensors_.find(name);
    if (found == tensors_.end())
      return Status(Code::kNotFound,
                    fmt::format("tensor '{}' [{}, {}] is missing from the checkpoint", name, rows, cols));
    if (found->second.rows != rows || found->second.cols != cols)
      return Status(Code::kInvalidArgument, fmt::format("tensor '{}' has shape [{}, {}], expected [{}, {}]", name,
                                                        found->second.rows, found->second.cols, rows, cols));
    return found->second;
  }
  bool has_tensor(std::string_view name) const override { return tensors_.find(name) != tensors_.end(); }
  TokenizerSource tokenizer_source() const override { return {}; }
  Result<std::optional<std::string>> chat_template(bool) const override { return std::optional<std::string>(); }
  std::string special_token(std::string_view) const override { return {}; }
  GenerationDefaults generation_defaults() const override {
    GenerationDefaults defaults;
    defaults.eos_token_ids = config_.eos_token_ids;
    return defaults;
  }
  std::string fingerprint() const override { return fingerprint_; }

 private:
  ModelConfig config_;
  std::map<std::string, TensorView, std::less<>> tensors_;
  std::string fingerprint_;
};

}  // namespace

std::uint64_t generator_seed(std::string_view salt, std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const std::string_view part : {salt, name})
    for (const char c : part) hash = (hash ^ static_cast<std::uint8_t>(c)) * 0x100000001b3U;
  return hash;
}

float generator_unit(std::uint64_t seed, std::uint64_t j) {
  std::uint64_t z = seed + (j + 1) * 0x9E3779B97F4A7C15U;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  z ^= z >> 31;
  return static_cast<float>(z >> 40) * 0x1p-23F - 1.0F;
}

std::unique_ptr<Checkpoint> make_synthetic_checkpoint(const ModelConfig& config, std::string salt) {
  return std::make_unique<SyntheticCheckpoint>(config, salt);
}

}  // namespace tandem::model
