// SPDX-License-Identifier: Apache-2.0
// Tokenizers for made models: a byte-level one for any vocabulary size, or a real tokenizer.json's vocabulary for GGUF.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace tandem::tools {

struct Vocabulary {
  std::string pre = "default";      ///< tokenizer.ggml.pre
  std::vector<std::string> tokens;  ///< one an id, in the byte-level alphabet
  std::vector<std::int32_t> types;  ///< 1 normal, 3 control, 5 unused
  std::vector<std::string> merges;  ///< "Ġ t"
  std::int32_t end_of_text = -1;    ///< <|endoftext|>
  std::int32_t im_start = -1;
  std::int32_t im_end = -1;
  std::string chat_template;
};

/// 256 byte tokens (or only the 243 that UTF-8 uses, if the vocabulary is too small), filler, and the three ChatML
/// tokens as the last ids. An error if `vocab_size` is below 246.
Result<Vocabulary> byte_vocabulary(std::int32_t vocab_size);

/// tokenizer.json and tokenizer_config.json of `folder`, padded with unused tokens to `vocab_size`.
Result<Vocabulary> folder_vocabulary(const std::string& folder, std::int32_t vocab_size);

/// Writes tokenizer.json, tokenizer_config.json (with a ChatML template) and generation_config.json.
Result<void> write_tokenizer_files(const Vocabulary& vocabulary, const std::string& folder);

/// Copies whichever of the tokenizer's files `from` has; tokenizer.json must be there.
Result<void> copy_tokenizer_files(const std::string& from, const std::string& to);

}  // namespace tandem::tools
