// SPDX-License-Identifier: Apache-2.0
// Detokenising one stream: bytes are held until they are whole characters.
#include <utility>

#include "base/utf8.h"
#include "text/tokenizer.h"

namespace tandem::text {

StreamDecoder::StreamDecoder(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special_tokens,
                             std::span<const std::int32_t> prompt_tail)
    : tokenizer_(std::move(tokenizer)), skip_special_tokens_(skip_special_tokens) {
  // The prompt's own text is not output; only a character that it began is.
  for (const std::int32_t id : prompt_tail) append(id);
}

std::string StreamDecoder::append(std::int32_t id) {
  if (skip_special_tokens_ && tokenizer_->is_special(id)) return {};
  pending_ += tokenizer_->token_bytes(id);
  const std::size_t complete = complete_utf8_prefix(pending_);
  std::string text = replace_ill_formed_utf8(std::string_view(pending_).substr(0, complete));
  pending_.erase(0, complete);
  return text;
}

}  // namespace tandem::text
