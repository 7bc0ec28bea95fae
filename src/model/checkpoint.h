// SPDX-License-Identifier: Apache-2.0
// Tensors by their Hugging Face names, whatever file they come from (safetensors folder, GGUF, or the generator of
// model_formats.md 8.1). Files are mapped, not copied; a Checkpoint must outlive the views it gives.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/config.h"
#include "model/linear_module.h"
#include "model/tensor_view.h"

namespace tandem::model {

/// Sampling defaults of generation_config.json (spec: model_formats.md 3.5).
struct GenerationDefaults {
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<std::int64_t> top_k, max_new_tokens;
  std::vector<std::int32_t> eos_token_ids;
};

/// Where the tokenizer is: a tokenizer.json, or the vocabulary of a GGUF file. Plain data: `text` builds it (app joins
/// them).
struct TokenizerSource {
  std::string tokenizer_json_path;  ///< empty if the vocabulary below is to be used
  std::string gguf_model;           ///< tokenizer.ggml.model, "gpt2" for byte-level BPE
  std::string gguf_pre;             ///< tokenizer.ggml.pre
  std::vector<std::string> tokens;
  std::vector<std::int32_t> token_types;
  std::vector<std::string> merges;
  bool add_bos = false;
  std::int64_t bos_id = -1;
};

class Checkpoint {
 public:
  /// A Hugging Face folder, a .gguf file, or a folder that holds exactly one .gguf.
  static Result<std::unique_ptr<Checkpoint>> open(const std::string& path, const boost::json::object& hf_overrides);
  virtual ~Checkpoint() = default;

  virtual const ModelConfig& config() const = 0;
  /// An error names the tensor (missing) or its shape (found, expected).
  virtual Result<TensorView> tensor(std::string_view hf_name, std::int64_t rows, std::int64_t cols) const = 0;
  virtual bool has_tensor(std::string_view hf_name) const = 0;
  /// The linear module whose weights have this name. Formats that know of no quantised modules give the tensor.
  virtual Result<LinearModule> linear(std::string_view weight_name, std::int64_t rows, std::int64_t cols) const;
  /// How the checkpoint says its weights are quantised, by the names of --quantization ("ascend", "gptq"); "" if they
  /// are not. (The blocks of GGUF files are a storage type, not a method.)
  virtual std::string_view quantization() const { return {}; }
  virtual TokenizerSource tokenizer_source() const = 0;
  /// The chat template's source, or nullopt if the checkpoint has none. `with_tools` chooses "tool_use" of a named set.
  virtual Result<std::optional<std::string>> chat_template(bool with_tools) const = 0;
  /// Text of special tokens for templates: "bos", "eos", "pad", "unk"; empty if none.
  virtual std::string special_token(std::string_view role) const = 0;
  virtual GenerationDefaults generation_defaults() const = 0;
  /// Files that were read so far need not stay in this process's memory; what is read again comes back from the page
  /// cache.
  virtual void release_pages() const {}
  /// Identity of the weights for the KV handshake: a hash over names, shapes, types and sampled bytes.
  virtual std::string fingerprint() const = 0;
};

}  // namespace tandem::model
