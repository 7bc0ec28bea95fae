// SPDX-License-Identifier: Apache-2.0
// The text is calls or it is content: its first characters decide. A model that answers with other JSON makes no call.
#include <boost/json.hpp>

#include "api/parsers/json_call_parser.h"

namespace tandem::api {
namespace {

constexpr std::string_view kTag = "<|python_tag|>";

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

class Llama3JsonParser final : public JsonCallParser {
 public:
  Llama3JsonParser() : JsonCallParser({"parameters", "arguments"}, false) {}

 private:
  enum class Place { kStart, kCall, kAfterCall, kAfterSemicolon };

  void step(char next, MessageDelta& news) override {
    if (place_ == Place::kCall) {
      if (read(next, news)) place_ = Place::kAfterCall;
      return;
    }
    opening_ += next;
    if (is_space(next)) return;
    if (next == '{' && place_ != Place::kAfterCall) {
      begin(opening_.substr(0, opening_.size() - 1));
      opening_.clear();
      place_ = Place::kCall;
      if (read(next, news)) place_ = Place::kAfterCall;
    } else if (next == ';' && place_ == Place::kAfterCall) {
      place_ = Place::kAfterSemicolon;
    } else if (place_ != Place::kStart) {
      give_up(opening_, news);
    } else if (const std::size_t first = opening_.find_first_not_of(" \t\r\n");
               !kTag.starts_with(std::string_view(opening_).substr(first))) {
      take_as_content(opening_, news);
    }
  }

  void end(MessageDelta& news) override {
    if (place_ == Place::kStart) news.content += opening_;
    if (place_ == Place::kCall) fail("", news);
  }

  Place place_ = Place::kStart;
  std::string opening_;  ///< before a call
};

}  // namespace

std::unique_ptr<ToolParser> make_llama3_json_parser() { return std::make_unique<Llama3JsonParser>(); }

}  // namespace tandem::api
