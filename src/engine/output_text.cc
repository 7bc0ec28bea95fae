// SPDX-License-Identifier: Apache-2.0
#include "engine/output_text.h"

#include <algorithm>
#include <utility>

namespace tandem::engine {
namespace {

/// More than any character's number of tokens (a byte a token at worst, four bytes a character).
constexpr std::size_t kPromptTail = 8;

std::span<const std::int32_t> tail_of(std::span<const std::int32_t> tokens) {
  return tokens.last(std::min(tokens.size(), kPromptTail));
}

bool begins_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) != 0x80U; }

std::size_t num_characters(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), begins_character));
}

/// Where the last `count` characters of `text` begin.
std::size_t start_of_last(std::string_view text, std::size_t count) {
  std::size_t position = text.size();
  while (position > 0 && count > 0) {
    --position;
    if (begins_character(text[position])) --count;
  }
  return position;
}

}  // namespace

OutputText::OutputText(std::shared_ptr<const text::Tokenizer> tokenizer,
                       std::shared_ptr<const worker::SamplingParams> params, std::span<const std::int32_t> prompt)
    : params_(std::move(params)), decoder_(std::move(tokenizer), params_->skip_special_tokens, tail_of(prompt)) {
  for (const std::string& stop : params_->stop) {
    hold_back_ = std::max(hold_back_, std::max<std::size_t>(num_characters(stop), 1) - 1);
  }
}

OutputText::Piece OutputText::append(std::int32_t token, bool hidden) {
  const bool include_stop = params_->include_stop_str_in_output;
  const std::size_t fresh = window_.size();
  if (!hidden || include_stop) window_ += decoder_.append(token);
  ++num_tokens_;

  // A stop string must end in the fresh part; the first entry of the list that does wins, wherever it is.
  if (num_tokens_ > params_->min_tokens && window_.size() > fresh) {
    for (const std::string& stop : params_->stop) {
      if (stop.empty()) continue;
      const std::size_t from = fresh - std::min(fresh, stop.size() - 1);
      const std::size_t found = window_.find(stop, from);
      if (found == std::string::npos) continue;
      const std::size_t end = std::max(sent_, include_stop ? found + stop.size() : found);
      return {window_.substr(sent_, end - sent_), stop};
    }
  }

  const std::size_t held = start_of_last(window_, hold_back_);
  const std::size_t end = std::max(sent_, include_stop ? window_.size() : held);
  Piece piece{window_.substr(sent_, end - sent_), std::nullopt};
  window_.erase(0, held);
  sent_ = end - held;
  return piece;
}

std::string OutputText::flush() {
  std::string rest = window_.substr(sent_);
  sent_ = window_.size();
  return rest;
}

}  // namespace tandem::engine
