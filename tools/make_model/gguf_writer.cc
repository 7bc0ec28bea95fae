// SPDX-License-Identifier: Apache-2.0
#include "make_model/gguf_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <vector>

#include "make_model/encode.h"
#include "make_model/file_writer.h"
#include "make_model/model_tensors.h"
#include "model/gguf.h"
#include "model/rope.h"
#include "model/tensor_names.h"

namespace tandem::tools {
namespace {

using model::TensorType;

constexpr std::size_t kAlignment = 32;
constexpr std::uint32_t kUint32 = 4;
constexpr std::uint32_t kInt32 = 5;
constexpr std::uint32_t kFloat32 = 6;
constexpr std::uint32_t kBool = 7;
constexpr std::uint32_t kString = 8;
constexpr std::uint32_t kArray = 9;

// Metadata in memory: their number stands before them in the file.
class Metadata {
 public:
  void add(std::string_view key, std::uint32_t value) {
    begin(key, kUint32);
    number(value);
  }
  void add(std::string_view key, float value) {
    begin(key, kFloat32);
    number(value);
  }
  void add(std::string_view key, bool value) {
    begin(key, kBool);
    number<std::uint8_t>(value ? 1 : 0);
  }
  void add(std::string_view key, std::string_view value) {
    begin(key, kString);
    string(value);
  }
  void add(std::string_view key, const std::vector<std::string>& values) {
    begin(key, kArray);
    number(kString);
    number<std::uint64_t>(values.size());
    for (const std::string& value : values) string(value);
  }
  void add(std::string_view key, const std::vector<std::int32_t>& values) {
    begin(key, kArray);
    number(kInt32);
    number<std::uint64_t>(values.size());
    for (const std::int32_t value : values) number(value);
  }

  std::uint64_t count() const { return count_; }
  const std::string& data() const { return data_; }

 private:
  void begin(std::string_view key, std::uint32_t type) {
    string(key);
    number(type);
    ++count_;
  }
  void string(std::string_view value) {
    number<std::uint64_t>(value.size());
    data_.append(value);
  }
  template <class T>
  void number(T value) {
    data_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }

  std::string data_;
  std::uint64_t count_ = 0;
};

struct Tensor {
  std::string name;
  model::TensorView view;
  TensorType type = TensorType::kF32;
  std::int64_t experts = 0;     ///< not 0: [experts, rows / experts, cols]
  std::int32_t interleave = 0;  ///< head dimension if rows go in the order of llama.cpp's rotary embedding
  std::size_t bytes() const { return static_cast<std::size_t>(view.rows) * row_bytes(type, view.cols); }
};

std::string_view architecture(model::Family family) {
  switch (family) {
    case model::Family::kLlama:
      return "llama";
    case model::Family::kQwen2:
      return "qwen2";
    case model::Family::kQwen3:
      return "qwen3";
    case model::Family::kQwen3Moe:
      return "qwen3moe";
  }
  return "";
}

std::string gguf_name(const std::string& name) {
  if (name == model::kEmbeddingName) return "token_embd.weight";
  if (name == model::kFinalNormName) return "output_norm.weight";
  if (name == model::kHeadName) return "output.weight";
  struct Part {
    std::string_view hf;
    std::string_view gguf;
  };
  static constexpr Part kParts[] = {{"input_layernorm", "attn_norm"},
                                    {"post_attention_layernorm", "ffn_norm"},
                                    {"self_attn.q_proj", "attn_q"},
                                    {"self_attn.k_proj", "attn_k"},
                                    {"self_attn.v_proj", "attn_v"},
                                    {"self_attn.o_proj", "attn_output"},
                                    {"self_attn.q_norm", "attn_q_norm"},
                                    {"self_attn.k_norm", "attn_k_norm"},
                                    {"mlp.gate_proj", "ffn_gate"},
                                    {"mlp.up_proj", "ffn_up"},
                                    {"mlp.down_proj", "ffn_down"},
                                    {"mlp.gate", "ffn_gate_inp"},
                                    {"mlp.experts.gate_proj", "ffn_gate_exps"},
                                    {"mlp.experts.up_proj", "ffn_up_exps"},
                                    {"mlp.experts.down_proj", "ffn_down_exps"}};
  constexpr std::string_view prefix = "model.layers.";
  const std::size_t dot = name.find('.', prefix.size());
  const std::size_t last = name.rfind('.');
  const std::string part = name.substr(dot + 1, last - dot - 1);
  for (const Part& row : kParts)
    if (row.hf == part)
      return fmt::format("blk.{}.{}{}", name.substr(prefix.size(), dot - prefix.size()), row.gguf, name.substr(last));
  return name;
}

// Stored row -> Hugging Face's row: stored 2i + s of a head is s*d/2 + i.
std::int64_t hf_row(std::int64_t stored, std::int64_t head_dim) {
  const std::int64_t within = stored % head_dim;
  return stored - within + (within % 2) * (head_dim / 2) + within / 2;
}

// A vector (bias) of q or k: the values, not the rows, are interleaved.
class InterleavedVector : public model::RowSource {
 public:
  InterleavedVector(model::TensorView view, std::int64_t head_dim) : view_(std::move(view)), head_dim_(head_dim) {}
  void read_row(std::int64_t, std::int64_t cols, float* out) const override {
    std::vector<float> values(static_cast<std::size_t>(cols));
    view_.read_row(0, values.data());
    for (std::int64_t i = 0; i < cols; ++i) out[i] = values[static_cast<std::size_t>(hf_row(i, head_dim_))];
  }

 private:
  model::TensorView view_;
  std::int64_t head_dim_;
};

// rope_freqs.weight: what each pair's base frequency is divided by.
class RopeFactors : public model::RowSource {
 public:
  explicit RopeFactors(const model::ModelConfig& config) {
    model::RopeConfig base;
    base.theta = config.rope.theta;
    const auto plain = model::rope_frequencies(base, config.head_dim);
    const auto scaled = model::rope_frequencies(config.rope, config.head_dim);
    for (std::size_t i = 0; i < plain.size(); ++i) factors_.push_back(static_cast<float>(plain[i] / scaled[i]));
  }
  void read_row(std::int64_t, std::int64_t cols, float* out) const override {
    std::copy_n(factors_.begin(), cols, out);
  }

 private:
  std::vector<float> factors_;
};

void add_rope(Metadata& metadata, const model::ModelConfig& config, const std::string& prefix) {
  metadata.add(prefix + "rope.freq_base", static_cast<float>(config.rope.theta));
  metadata.add(prefix + "rope.dimension_count", static_cast<std::uint32_t>(config.head_dim));
  if (config.rope.type != model::RopeType::kLinear && config.rope.type != model::RopeType::kYarn) return;
  const bool yarn = config.rope.type == model::RopeType::kYarn;
  metadata.add(prefix + "rope.scaling.type", std::string_view(yarn ? "yarn" : "linear"));
  metadata.add(prefix + "rope.scaling.factor", static_cast<float>(config.rope.factor));
  if (yarn)
    metadata.add(prefix + "rope.scaling.original_context_length",
                 static_cast<std::uint32_t>(config.rope.original_max_position));
}

void add_tokenizer(Metadata& metadata, const Vocabulary& vocabulary) {
  metadata.add("tokenizer.ggml.model", std::string_view("gpt2"));
  metadata.add("tokenizer.ggml.pre", std::string_view(vocabulary.pre));
  metadata.add("tokenizer.ggml.tokens", vocabulary.tokens);
  metadata.add("tokenizer.ggml.token_type", vocabulary.types);
  metadata.add("tokenizer.ggml.merges", vocabulary.merges);
  metadata.add("tokenizer.ggml.add_bos_token", false);
  const auto id = [&](std::string_view key, std::int32_t value) {
    if (value >= 0) metadata.add(key, static_cast<std::uint32_t>(value));
  };
  id("tokenizer.ggml.bos_token_id", vocabulary.end_of_text);
  id("tokenizer.ggml.eos_token_id", vocabulary.im_end >= 0 ? vocabulary.im_end : vocabulary.end_of_text);
  id("tokenizer.ggml.padding_token_id", vocabulary.end_of_text);
  metadata.add("tokenizer.chat_template", std::string_view(vocabulary.chat_template));
}

Metadata make_metadata(const model::ModelConfig& config, const GgufOptions& options) {
  Metadata metadata;
  const std::string_view name = architecture(config.family);
  const std::string prefix = std::string(name) + ".";
  metadata.add("general.architecture", name);
  metadata.add("general.name", std::string_view("tandem-made"));
  metadata.add("general.alignment", static_cast<std::uint32_t>(kAlignment));
  metadata.add("general.quantization_version", std::uint32_t{2});
  const auto size = [&](std::string_view key, std::int64_t value) {
    metadata.add(prefix + std::string(key), static_cast<std::uint32_t>(value));
  };
  size("context_length", config.max_position_embeddings);
  size("embedding_length", config.hidden_size);
  size("feed_forward_length", config.intermediate_size);
  size("block_count", config.num_layers);
  size("vocab_size", config.vocab_size);
  size("attention.head_count", config.num_heads);
  size("attention.head_count_kv", config.num_kv_heads);
  size("attention.key_length", config.head_dim);
  size("attention.value_length", config.head_dim);
  if (config.num_experts > 0) {
    size("expert_count", config.num_experts);
    size("expert_used_count", config.experts_per_token);
    size("expert_feed_forward_length", config.moe_intermediate_size);
  }
  metadata.add(prefix + "attention.layer_norm_rms_epsilon", config.rms_norm_eps);
  add_rope(metadata, config, prefix);
  add_tokenizer(metadata, options.vocabulary);
  return metadata;
}

// What llama.cpp takes for granted of a qwen3moe file has no place in its metadata.
Result<void> check_expressible(const model::ModelConfig& config) {
  if (config.family != model::Family::kQwen3Moe) return {};
  bool everywhere = true;
  for (std::int32_t layer = 0; layer < config.num_layers; ++layer) everywhere &= model::is_expert_layer(config, layer);
  if (everywhere && config.norm_topk_prob) return {};
  return Status(Code::kUnsupported,
                "a GGUF file of architecture qwen3moe has experts in every layer and norm_topk_prob true; this model "
                "has not: write a Hugging Face folder");
}

Result<std::vector<Tensor>> make_tensors(const model::Checkpoint& checkpoint, TensorType type) {
  const model::ModelConfig& config = checkpoint.config();
  std::vector<Tensor> tensors;
  if (config.rope.type == model::RopeType::kLlama3) {
    Tensor factors;
    factors.name = "rope_freqs.weight";
    factors.view.rows = 1;
    factors.view.cols = config.head_dim / 2;
    factors.view.source = std::make_shared<RopeFactors>(config);
    tensors.push_back(std::move(factors));
  }
  TANDEM_ASSIGN(const std::vector<NamedTensor> stored, model_tensors(checkpoint, ExpertForm::kFused));
  for (const NamedTensor& named : stored) {
    Tensor tensor;
    tensor.name = gguf_name(named.name);
    tensor.view = named.view;
    tensor.experts = named.experts;
    const bool matrix = named.view.rows > 1;
    const bool router = named.name.ends_with(model::kRouterName);  // stays float32, as in llama.cpp's files
    if (matrix && !router)
      tensor.type = named.view.cols % model::tensor_block_values(type) == 0 ? type : TensorType::kF16;
    const bool rotated =
        named.name.find("q_proj") != std::string::npos || named.name.find("k_proj") != std::string::npos;
    if (config.family == model::Family::kLlama && rotated) {
      if (matrix) {
        tensor.interleave = config.head_dim;
      } else {
        tensor.view.source = std::make_shared<InterleavedVector>(tensor.view, config.head_dim);
      }
    }
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

void write_infos(FileWriter& out, const std::vector<Tensor>& tensors) {
  std::uint64_t offset = 0;
  for (const Tensor& tensor : tensors) {
    out.number<std::uint64_t>(tensor.name.size());
    out.text(tensor.name);
    const bool matrix = tensor.view.rows > 1;
    const std::int64_t experts = std::max<std::int64_t>(tensor.experts, 1);
    out.number<std::uint32_t>(tensor.experts > 0 ? 3 : matrix ? 2 : 1);
    out.number<std::uint64_t>(static_cast<std::uint64_t>(tensor.view.cols));
    if (matrix) out.number<std::uint64_t>(static_cast<std::uint64_t>(tensor.view.rows / experts));
    if (tensor.experts > 0) out.number<std::uint64_t>(static_cast<std::uint64_t>(experts));
    out.number<std::uint32_t>(model::gguf_type_id(tensor.type));
    out.number<std::uint64_t>(offset);
    offset += (tensor.bytes() + kAlignment - 1) / kAlignment * kAlignment;
  }
}

}  // namespace

Result<void> write_gguf(const model::Checkpoint& checkpoint, const std::string& path, const GgufOptions& options) {
  const model::ModelConfig& config = checkpoint.config();
  if (options.vocabulary.tokens.size() != static_cast<std::size_t>(config.vocab_size))
    return Status(Code::kInvalidArgument,
                  fmt::format("the tokenizer has {} tokens, the model {}; give one a token an id",
                              options.vocabulary.tokens.size(), config.vocab_size));
  TANDEM_TRY(check_expressible(config));
  TANDEM_ASSIGN(const std::vector<Tensor> tensors, make_tensors(checkpoint, options.type));
  const Metadata metadata = make_metadata(config, options);
  FileWriter out(path);
  out.text("GGUF");
  out.number<std::uint32_t>(3);
  out.number<std::uint64_t>(tensors.size());
  out.number<std::uint64_t>(metadata.count());
  out.text(metadata.data());
  write_infos(out, tensors);
  out.align(kAlignment);
  for (const Tensor& tensor : tensors) {
    out.rows(tensor.view, tensor.type,
             [&](std::int64_t row) { return tensor.interleave > 0 ? hf_row(row, tensor.interleave) : row; });
    out.align(kAlignment);
  }
  return out.close();
}

}  // namespace tandem::tools
