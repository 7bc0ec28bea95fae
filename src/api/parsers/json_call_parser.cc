// SPDX-License-Identifier: Apache-2.0
#include "api/parsers/json_call_parser.h"

#include <utility>

namespace tandem::api {

void JsonCallParser::begin(std::string opening) {
  reader_ = fresh_;
  told_ = false;
  raw_ = std::move(opening);
}

bool JsonCallParser::read(char next, MessageDelta& news) {
  const CallReader::State state = reader_->push(next);
  const bool complete = state == CallReader::State::kComplete;
  const bool lacks = complete && !reader_->has_arguments() && !without_arguments_;
  if (state == CallReader::State::kMalformed || lacks) {
    fail(std::string_view(&next, 1), news);
    return false;
  }
  if (!told_) raw_ += next;
  // Not before there are arguments: what was told cannot be taken back.
  if (!told_ && reader_->has_name() && (reader_->has_begun_arguments() || complete)) {
    news.begin_call(next_index_, reader_->name());
    told_ = true;
    raw_.clear();
  }
  if (told_) news.add_arguments(next_index_, reader_->take_arguments());
  if (!complete) return false;
  if (!reader_->has_arguments()) news.add_arguments(next_index_, "{}");
  ++next_index_;
  reader_.reset();
  return true;
}

void JsonCallParser::fail(std::string_view next, MessageDelta& news) {
  reader_.reset();
  give_up(std::exchange(raw_, {}) + std::string(next), news);
}

}  // namespace tandem::api
