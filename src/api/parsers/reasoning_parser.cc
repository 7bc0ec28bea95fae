// SPDX-License-Identifier: Apache-2.0
#include "api/parsers/reasoning_parser.h"

#include <utility>

namespace tandem::api {
namespace {

constexpr std::string_view kSpaces = " \t\r\n";

}  // namespace

void ReasoningParser::feed(std::string_view text, MessageDelta& news) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (place_ == Place::kContent) {
      news.content += text.substr(i);
      return;
    }
    step(text[i], news);
  }
}

void ReasoningParser::step(char next, MessageDelta& news) {
  if (place_ == Place::kThinking) {
    if (!end_tag_.push(next, news.reasoning).empty()) place_ = Place::kContent;
    return;
  }
  held_ += next;
  const std::size_t first = held_.find_first_not_of(kSpaces);
  if (first == std::string::npos) return;
  const std::string_view tag = std::string_view(held_).substr(first);
  if (tag == kThinkTag) {
    held_.clear();
    place_ = Place::kThinking;
  } else if (!kThinkTag.starts_with(tag)) {
    leave_start(news);
  }
}

/// The text does not begin with <think>.
void ReasoningParser::leave_start(MessageDelta& news) {
  place_ = starts_thinking_ ? Place::kThinking : Place::kContent;
  feed(std::exchange(held_, {}), news);
}

void ReasoningParser::finish(MessageDelta& news) {
  if (place_ == Place::kStart) leave_start(news);
  if (place_ == Place::kThinking) news.reasoning += end_tag_.take();
}

bool prompt_starts_thinking(std::string_view prompt, bool otherwise) {
  const std::size_t last = prompt.find_last_not_of(kSpaces);
  const std::string_view text = prompt.substr(0, last == std::string_view::npos ? 0 : last + 1);
  if (text.ends_with(kThinkTag)) return true;
  if (text.ends_with(kThinkEndTag)) return false;
  return otherwise;
}

}  // namespace tandem::api
