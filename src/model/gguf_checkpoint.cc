// SPDX-License-Identifier: Apache-2.0
#include "model/gguf_checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <set>

#include "base/log.h"
#include "model/fused_experts.h"
#include "model/gguf.h"
#include "model/hf_metadata.h"
#include "model/mapped_file.h"
#include "model/tensor_index.h"
#include "model/tensor_names.h"

namespace tandem::model {
namespace json = boost::json;
namespace {

struct ArchitectureRow {
  std::string_view gguf;
  std::string_view hf;
};
constexpr ArchitectureRow kArchitectures[] = {{"llama", "LlamaForCausalLM"},
                                              {"qwen2", "Qwen2ForCausalLM"},
                                              {"qwen3", "Qwen3ForCausalLM"},
                                              {"qwen3moe", "Qwen3MoeForCausalLM"}};

constexpr std::string_view kExpertArchitecture = "qwen3moe";

// blk.N.<first> <-> model.layers.N.<second>
struct NameRow {
  std::string_view gguf;
  std::string_view hf;
};
constexpr NameRow kLayerNames[] = {
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {"ffn_gate_inp", "mlp.gate"},
    {"ffn_gate_exps", "mlp.experts.gate_proj"},
    {"ffn_up_exps", "mlp.experts.up_proj"},
    {"ffn_down_exps", "mlp.experts.down_proj"},
};
constexpr std::string_view kRopeFactors = "rope_freqs.weight";

// Chat models end a turn with these; GGUF files name only one or two of them as eos and eot.
constexpr std::string_view kEndTokens[] = {"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>",
                                           "<|end_of_text|>"};
constexpr std::int32_t kControlToken = 3;

std::string hf_name(const std::string& name) {
  if (name == "token_embd.weight") return std::string(kEmbeddingName);
  if (name == "output_norm.weight") return std::string(kFinalNormName);
  if (name == "output.weight") return std::string(kHeadName);
  if (!name.starts_with("blk.")) return name;
  const std::size_t dot = name.find('.', 4);
  const std::size_t last = name.rfind('.');
  if (dot == std::string::npos || last <= dot) return name;
  const std::string_view part = std::string_view(name).substr(dot + 1, last - dot - 1);
  for (const NameRow& row : kLayerNames)
    if (row.gguf == part)
      return fmt::format("model.layers.{}.{}{}", name.substr(4, dot - 4), row.hf, name.substr(last));
  return name;
}

class Metadata {
 public:
  explicit Metadata(const GgufFile& file) : file_(file) {}

  template <class T>
  const T* find(std::string_view key) const {
    const auto found = file_.metadata.find(key);
    return found == file_.metadata.end() ? nullptr : std::get_if<T>(&found->second);
  }
  bool has(std::string_view key) const { return file_.metadata.find(key) != file_.metadata.end(); }
  std::string text(std::string_view key) const {
    const auto* value = find<std::string>(key);
    return value == nullptr ? std::string() : *value;
  }
  std::int64_t integer(std::string_view key, std::int64_t fallback) const {
    const auto* value = find<std::int64_t>(key);
    return value == nullptr ? fallback : *value;
  }
  std::optional<double> number(std::string_view key) const {
    if (const auto* value = find<double>(key)) return *value;
    if (const auto* value = find<std::int64_t>(key)) return static_cast<double>(*value);
    return std::nullopt;
  }

 private:
  const GgufFile& file_;
};

// The config.json that this file would have had, so that one parser checks both.
class ConfigBuilder {
 public:
  ConfigBuilder(const GgufFile& file, const Metadata& metadata, std::string prefix)
      : file_(file), metadata_(metadata), prefix_(std::move(prefix)) {}

  Result<json::object> build(std::string_view architecture) {
    config_["architectures"] = json::array{json::value(architecture)};
    TANDEM_TRY(copy_integer("embedding_length", "hidden_size", true));
    TANDEM_TRY(copy_integer("feed_forward_length", "intermediate_size", true));
    TANDEM_TRY(copy_integer("block_count", "num_hidden_layers", true));
    TANDEM_TRY(copy_integer("attention.head_count", "num_attention_heads", true));
    TANDEM_TRY(copy_integer("attention.head_count_kv", "num_key_value_heads", false));
    TANDEM_TRY(copy_integer("attention.key_length", "head_dim", false));
    TANDEM_TRY(copy_integer("context_length", "max_position_embeddings", true));
    // llama.cpp derives the head dimension for every family when the file does not give it.
    if (!config_.contains("head_dim")) {
      const std::int64_t heads = std::max<std::int64_t>(config_["num_attention_heads"].as_int64(), 1);
      config_["head_dim"] = config_["hidden_size"].as_int64() / heads;
    }
    TANDEM_TRY(check_unsupported());
    if (prefix_ == kExpertArchitecture) TANDEM_TRY(add_experts());
    if (const auto eps = metadata_.number(key("attention.layer_norm_rms_epsilon"))) config_["rms_norm_eps"] = *eps;
    config_["rope_theta"] = metadata_.number(key("rope.freq_base")).value_or(10000.0);
    const GgufTensor* embedding = tensor("token_embd.weight");
    if (embedding == nullptr || embedding->shape.size() != 2)
      return Status(Code::kInvalidArgument, "tensor 'token_embd.weight' is missing or has not two dimensions");
    config_["vocab_size"] = embedding->shape[0];
    config_["tie_word_embeddings"] = tensor("output.weight") == nullptr;
    config_["attention_bias"] = tensor("blk.0.attn_q.bias") != nullptr;
    config_["mlp_bias"] = tensor("blk.0.ffn_gate.bias") != nullptr;
    config_["torch_dtype"] = "float16";
    TANDEM_TRY(add_rope());
    return std::move(config_);
  }

 private:
  std::string key(std::string_view rest) const { return fmt::format("{}.{}", prefix_, rest); }
  const GgufTensor* tensor(std::string_view name) const {
    for (const GgufTensor& candidate : file_.tensors)
      if (candidate.name == name) return &candidate;
    return nullptr;
  }

  Result<void> copy_integer(std::string_view from, std::string_view to, bool required) {
    const std::string name = key(from);
    if (const auto* value = metadata_.find<std::int64_t>(name)) {
      config_[to] = *value;
      return {};
    }
    if (metadata_.has(name))
      return Status(Code::kUnsupported,
                    fmt::format("metadata key '{}' is not one integer (layers of different shapes are "
                                "not supported)",
                                name));
    if (required) return Status(Code::kInvalidArgument, fmt::format("metadata key '{}' is missing", name));
    return {};
  }

  Result<void> check_unsupported() const {
    if (prefix_ != kExpertArchitecture && metadata_.integer(key("expert_count"), 0) > 0)
      return Status(Code::kUnsupported, fmt::format("'{}' is {}: of mixture-of-experts models only qwen3moe is read",
                                                    key("expert_count"), metadata_.integer(key("expert_count"), 0)));
    const std::int64_t head_dim = config_.at("head_dim").as_int64();
    for (const char* name : {"rope.dimension_count", "attention.value_length"})
      if (const auto* value = metadata_.find<std::int64_t>(key(name)); value != nullptr && *value != head_dim)
        return Status(Code::kUnsupported,
                      fmt::format("'{}' is {}, expected the head dimension {}", key(name), *value, head_dim));
    return {};
  }

  // llama.cpp knows no dense layers in such a model, and always normalises.
  Result<void> add_experts() {
    TANDEM_TRY(copy_integer("expert_count", "num_experts", true));
    TANDEM_TRY(copy_integer("expert_used_count", "num_experts_per_tok", true));
    TANDEM_TRY(copy_integer("expert_feed_forward_length", "moe_intermediate_size", true));
    config_["norm_topk_prob"] = true;
    return {};
  }

  Result<void> add_rope() {
    const std::string type = metadata_.text(key("rope.scaling.type"));
    if (type.empty() || type == "none") return {};
    json::object rope{{"rope_type", type}};
    if (const auto factor = metadata_.number(key("rope.scaling.factor"))) rope["factor"] = *factor;
    if (const auto* original = metadata_.find<std::int64_t>(key("rope.scaling.original_context_length")))
      rope["original_max_position_embeddings"] = *original;
    if (const auto attention = metadata_.number(key("rope.scaling.attn_factor"))) rope["attn_factor"] = *attention;
    config_["rope_scaling"] = std::move(rope);
    return {};
  }

  const GgufFile& file_;
  const Metadata& metadata_;
  std::string prefix_;
  json::object config_;
};

class GgufCheckpoint : public Checkpoint {
 public:
  explicit GgufCheckpoint(MappedFile file) : file_(std::move(file)) {}

  Result<void> load(const json::object& overrides) {
    TANDEM_ASSIGN(gguf_, parse_gguf(file_.bytes(), file_.path()));
    if (auto loaded = load_parsed(overrides); !loaded) return loaded.error().context(file_.path());
    fingerprint_ = checkpoint_fingerprint(*this);
    return {};
  }

  const ModelConfig& config() const override { return config_; }
  Result<TensorView> tensor(std::string_view name, std::int64_t rows, std::int64_t cols) const override {
    return index_.view(name, rows, cols);
  }
  bool has_tensor(std::string_view name) const override { return index_.contains(name); }
  TokenizerSource tokenizer_source() const override { return tokenizer_; }
  Result<std::optional<std::string>> chat_template(bool with_tools) const override {
    return choose_template(templates_, with_tools);
  }
  std::string special_token(std::string_view role) const override {
    std::string_view key = "unknown";
    if (role == "bos" || role == "eos") key = role;
    if (role == "pad") key = "padding";
    const std::int64_t id = metadata_.integer(fmt::format("tokenizer.ggml.{}_token_id", key), -1);
    const bool known = id >= 0 && id < static_cast<std::int64_t>(tokenizer_.tokens.size());
    return known ? tokenizer_.tokens[static_cast<std::size_t>(id)] : std::string();
  }
  GenerationDefaults generation_defaults() const override {
    GenerationDefaults defaults;
    defaults.eos_token_ids = config_.eos_token_ids;
    return defaults;
  }
  std::string fingerprint() const override { return fingerprint_; }
  void release_pages() const override { file_.release_pages(); }

 private:
  Result<void> load_parsed(const json::object& overrides) {
    const std::string architecture = metadata_.text("general.architecture");
    const auto* row = std::find_if(std::begin(kArchitectures), std::end(kArchitectures),
                                   [&](const ArchitectureRow& candidate) { return candidate.gguf == architecture; });
    if (row == std::end(kArchitectures))
      return Status(Code::kUnsupported,
                    fmt::format("general.architecture '{}' is not supported; supported: llama, qwen2, qwen3, qwen3moe",
                                architecture.substr(0, 100)));
    if (metadata_.integer("split.count", 1) > 1)
      return Status(Code::kUnsupported,
                    "the file is one part of a split GGUF; merge the parts first "
                    "(llama-gguf-split --merge)");
    TANDEM_ASSIGN(const json::object config, ConfigBuilder(gguf_, metadata_, architecture).build(row->hf));
    TANDEM_ASSIGN(config_, parse_config(config, overrides));
    config_.interleaved_qk = config_.family == Family::kLlama;
    // Some Llama derivatives have biases on q, k and v but not on o.
    if (config_.o_bias) config_.o_bias = has_stored("blk.0.attn_output.bias");
    if (config_.rope.type == RopeType::kLinear) config_.max_context = config_.max_position_embeddings;
    const bool rope_overridden = overrides.contains("rope_scaling") || overrides.contains("rope_parameters");
    TANDEM_TRY(add_tensors());
    if (!rope_overridden) TANDEM_TRY(read_rope_factors());
    TANDEM_TRY(index_.check(config_));
    read_tokenizer();
    read_templates();
    return {};
  }

  bool has_stored(std::string_view name) const {
    return std::any_of(gguf_.tensors.begin(), gguf_.tensors.end(), [&](const GgufTensor& t) { return t.name == name; });
  }

  Result<void> add_tensors() {
    for (const GgufTensor& stored : gguf_.tensors) {
      if (stored.name == kRopeFactors) continue;
      StoredTensor tensor;
      tensor.name = hf_name(stored.name);
      tensor.stored_name = stored.name;
      tensor.type_name = gguf_type_name(stored.type_id);
      tensor.type = stored.type;
      tensor.shape = stored.shape;
      tensor.data = stored.data;
      tensor.bytes = stored.bytes;
      const bool query_or_key = tensor.name.find("self_attn.q_proj.") != std::string::npos ||
                                tensor.name.find("self_attn.k_proj.") != std::string::npos;
      if (config_.interleaved_qk && query_or_key) tensor.interleaved_head_dim = config_.head_dim;
      TANDEM_ASSIGN(std::vector<StoredTensor> split, split_experts(std::move(tensor), config_));
      for (StoredTensor& one : split) TANDEM_TRY(index_.add(std::move(one), file_.path()));
    }
    return {};
  }

  // Llama 3 files carry their RoPE scaling as one divisor a pair instead of as settings.
  Result<void> read_rope_factors() {
    for (const GgufTensor& stored : gguf_.tensors) {
      if (stored.name != kRopeFactors) continue;
      const std::int64_t pairs = config_.head_dim / 2;
      if (stored.type != TensorType::kF32 || stored.shape.size() != 1 || stored.shape[0] != pairs)
        return Status(Code::kInvalidArgument,
                      fmt::format("tensor '{}' is {} [{}], expected F32 [{}]", stored.name,
                                  gguf_type_name(stored.type_id), fmt::join(stored.shape, ", "), pairs));
      TensorView view;
      view.rows = 1;
      view.cols = pairs;
      view.data = stored.data;
      view.bytes = stored.bytes;
      config_.rope.frequency_factors.resize(static_cast<std::size_t>(pairs));
      view.read_row(0, config_.rope.frequency_factors.data());
      for (const float factor : config_.rope.frequency_factors)
        if (!(factor > 0.0F) || !std::isfinite(factor))
          return Status(Code::kInvalidArgument,
                        fmt::format("tensor '{}' holds {}, expected positive numbers", stored.name, factor));
    }
    return {};
  }

  void read_tokenizer() {
    tokenizer_.gguf_model = metadata_.text("tokenizer.ggml.model");
    tokenizer_.gguf_pre = metadata_.text("tokenizer.ggml.pre");
    if (const auto* tokens = metadata_.find<std::vector<std::string>>("tokenizer.ggml.tokens"))
      tokenizer_.tokens = *tokens;
    if (const auto* merges = metadata_.find<std::vector<std::string>>("tokenizer.ggml.merges"))
      tokenizer_.merges = *merges;
    if (const auto* types = metadata_.find<std::vector<std::int64_t>>("tokenizer.ggml.token_type"))
      for (const std::int64_t type : *types) tokenizer_.token_types.push_back(static_cast<std::int32_t>(type));
    const bool* add_bos = metadata_.find<bool>("tokenizer.ggml.add_bos_token");
    tokenizer_.add_bos = add_bos != nullptr && *add_bos;
    tokenizer_.bos_id = metadata_.integer("tokenizer.ggml.bos_token_id", -1);
    if (tokenizer_.bos_id >= 0 && tokenizer_.bos_id < config_.vocab_size)
      config_.bos_token_id = static_cast<std::int32_t>(tokenizer_.bos_id);
    read_end_tokens();
    // The file's own copy is not needed any more; a vocabulary is tens of megabytes.
    for (const char* key :
         {"tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.ggml.token_type", "tokenizer.ggml.scores"})
      gguf_.metadata.erase(key);
  }

  void read_end_tokens() {
    const auto add = [&](std::int64_t id) {
      if (id < 0 || id >= config_.vocab_size) return;
      const auto token = static_cast<std::int32_t>(id);
      std::vector<std::int32_t>& ids = config_.eos_token_ids;
      if (std::find(ids.begin(), ids.end(), token) == ids.end()) ids.push_back(token);
    };
    for (const char* key : {"eos", "eot", "eom"})
      add(metadata_.integer(fmt::format("tokenizer.ggml.{}_token_id", key), -1));
    const std::size_t typed = std::min(tokenizer_.tokens.size(), tokenizer_.token_types.size());
    for (std::size_t i = 0; i < typed; ++i)
      if (tokenizer_.token_types[i] == kControlToken &&
          std::find(std::begin(kEndTokens), std::end(kEndTokens), tokenizer_.tokens[i]) != std::end(kEndTokens))
        add(static_cast<std::int64_t>(i));
  }

  void read_templates() {
    if (const std::string text = metadata_.text("tokenizer.chat_template"); !text.empty())
      templates_.push_back({"default", text});
    constexpr std::string_view prefix = "tokenizer.chat_template.";
    for (const auto& [key, value] : gguf_.metadata)
      if (const auto* text = std::get_if<std::string>(&value); text != nullptr && key.starts_with(prefix))
        templates_.push_back({key.substr(prefix.size()), *text});
  }

  MappedFile file_;
  GgufFile gguf_;
  Metadata metadata_{gguf_};
  ModelConfig config_;
  TensorIndex index_;
  TokenizerSource tokenizer_;
  std::vector<NamedTemplate> templates_;
  std::string fingerprint_;
};

}  // namespace

Result<std::unique_ptr<Checkpoint>> open_gguf(const std::string& path, const json::object& hf_overrides) {
  TANDEM_ASSIGN(MappedFile file, MappedFile::open(path));
  auto checkpoint = std::make_unique<GgufCheckpoint>(std::move(file));
  TANDEM_TRY(checkpoint->load(hf_overrides));
  return std::unique_ptr<Checkpoint>(std::move(checkpoint));
}

}  // namespace tandem::model
