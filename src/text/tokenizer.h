// SPDX-License-Identifier: Apache-2.0
// Tokenizer over Hugging Face `tokenizers` (the Rust crate in text/crate). All const functions are thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tandem::text {

/// The parts of a GGUF file's tokenizer metadata (tokenizer.ggml.*) that matter.
struct GgufVocabulary {
  std::string model;  ///< "gpt2" (byte-level BPE); others are refused by name
  std::string pre;    ///< "smollm", "qwen2", "llama-bpe", "default", ...
  std::vector<std::string> tokens;
  std::vector<std::int32_t> token_types;  ///< 1 normal, 3 control, 4 user defined, 6 byte; may be empty
  std::vector<std::string> merges;
  bool add_bos = false;
  std::int64_t bos_id = -1;
};

class Tokenizer {
 public:
  /// Reads a tokenizer.json.
  static Result<std::shared_ptr<const Tokenizer>> from_file(const std::string& path);
  static Result<std::shared_ptr<const Tokenizer>> from_json(std::string_view tokenizer_json);
  static Result<std::shared_ptr<const Tokenizer>> from_gguf(const GgufVocabulary& vocabulary);
  virtual ~Tokenizer() = default;

  /// UTF-8 text to ids. Added tokens in the text become their ids. Invalid UTF-8 is an error.
  virtual Result<std::vector<std::int32_t>> encode(std::string_view text, bool add_special_tokens) const = 0;
  /// Whole decode; ill-formed UTF-8 becomes U+FFFD; ids past the vocabulary (padding rows) give nothing.
  virtual std::string decode(std::span<const std::int32_t> ids, bool skip_special_tokens) const = 0;
  /// The raw bytes of one token ("" for ids past the vocabulary).
  virtual std::string token_bytes(std::int32_t id) const = 0;
  /// The raw vocabulary piece ("Ġhello").
  virtual std::string id_to_piece(std::int32_t id) const = 0;
  /// -1 if there is no such token.
  virtual std::int32_t piece_to_id(std::string_view piece) const = 0;
  virtual bool is_special(std::int32_t id) const = 0;
  /// Number of ids the tokenizer knows (can be smaller than the model's vocabulary).
  virtual std::int32_t vocab_size() const = 0;
};

/// Text of one output stream, token by token. Holds incomplete UTF-8 back; what is still incomplete at the end is
/// dropped. Invalid bytes in the middle come out as U+FFFD (spec: model_formats.md 3.4).
class StreamDecoder {
 public:
  /// `prompt_tail`: the last few prompt ids, so that a character split between prompt and output is completed.
  StreamDecoder(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special_tokens,
                std::span<const std::int32_t> prompt_tail);
  /// The text that became complete with this token; often empty.
  std::string append(std::int32_t id);

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  bool skip_special_tokens_;
  std::string pending_;  ///< bytes of an incomplete character
};

}  // namespace tandem::text
