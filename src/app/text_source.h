// SPDX-License-Identifier: Apache-2.0
// Joins `model` and `text`: tokenizer and chat templates of a checkpoint, or of the flags that stand over it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "config/serve_config.h"
#include "model/checkpoint.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tandem::app {

struct TextParts {
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::shared_ptr<const text::ChatTemplate> chat_template;  ///< nullptr: the model has none
  std::shared_ptr<const text::ChatTemplate> tool_template;  ///< nullptr: the same as chat_template
  text::TemplateTokens tokens;
  std::vector<std::int32_t> eos_token_ids;  ///< the tokenizer's first
  std::string tokenizer_config;             ///< JSON, only with --enable-tokenizer-info-endpoint
};

Result<TextParts> load_text(const config::ServeConfig& config, const model::Checkpoint& checkpoint);

/// The tokenizer at a path: a tokenizer.json, a folder with one, a .gguf file, or a folder with one of those.
Result<std::shared_ptr<const text::Tokenizer>> open_tokenizer(const std::string& path);

/// Text without any model, for the stub worker: one token a byte, then <|endoftext|>, <|im_start|>, <|im_end|>; or the
/// tokenizer of --tokenizer. ChatML, if --chat-template says nothing else.
Result<TextParts> stub_text(const config::ServeConfig& config);

}  // namespace tandem::app
