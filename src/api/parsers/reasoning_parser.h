// SPDX-License-Identifier: Apache-2.0
// Splits a model's output into what it thought and what it answers: <think>reasoning</think>content. The first tag may
// be missing, because templates put it into the prompt. Text comes in pieces of any size; nothing depends on where they
// end. Spec: vllm_api.md 12 (qwen3 as of 0.17, deepseek_r1).
//
// Other than vLLM's: text before <think> is reasoning in whole answers too, not dropped (white space is).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "api/parsers/message_delta.h"
#include "api/parsers/tag_finder.h"

namespace tandem::api {

constexpr std::string_view kThinkTag = "<think>";
constexpr std::string_view kThinkEndTag = "</think>";

class ReasoningParser {
 public:
  /// `starts_thinking`: what text without any tag is.
  explicit ReasoningParser(bool starts_thinking) : starts_thinking_(starts_thinking) {}

  void feed(std::string_view text, MessageDelta& news);
  /// The text ends here.
  void finish(MessageDelta& news);

 private:
  enum class Place : std::uint8_t { kStart, kThinking, kContent };

  void step(char next, MessageDelta& news);
  void leave_start(MessageDelta& news);

  bool starts_thinking_;
  Place place_ = Place::kStart;
  std::string held_;  ///< at the start: white space, and what may become <think>
  TagFinder end_tag_{kThinkEndTag};
};

/// Whether a model that continues `prompt` begins by thinking, for prompts that say so themselves: they end in
/// <think>, or in a block of thoughts that is closed (templates write one to turn thinking off). Else `otherwise`.
bool prompt_starts_thinking(std::string_view prompt, bool otherwise);

}  // namespace tandem::api
