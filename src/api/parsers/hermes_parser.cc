// SPDX-License-Identifier: Apache-2.0
// Text before the first tag is content; text between and after calls is dropped (vllm_api.md 11.2).
#include <boost/json.hpp>

#include "api/parsers/json_call_parser.h"
#include "api/parsers/tag_finder.h"

namespace tandem::api {
namespace {

constexpr std::string_view kOpenTag = "<tool_call>";
constexpr std::string_view kCloseTag = "</tool_call>";

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

class HermesParser final : public JsonCallParser {
 public:
  HermesParser() : JsonCallParser({"arguments"}, false) {}

 private:
  enum class Place { kText, kCall, kAfterCall, kBetween };

  void step(char next, MessageDelta& news) override {
    switch (place_) {
      case Place::kText:
      case Place::kBetween: {
        std::string plain;
        const bool opened = !open_tag_.push(next, plain).empty();
        if (place_ == Place::kText) news.content += plain;
        if (!opened) return;
        begin(std::string(kOpenTag));
        place_ = Place::kCall;
        return;
      }
      case Place::kCall:
        if (read(next, news)) place_ = Place::kAfterCall;
        return;
      case Place::kAfterCall:
        after_call(next, news);
        return;
    }
  }

  /// White space, then the closing tag.
  void after_call(char next, MessageDelta& news) {
    if (closing_.empty() && is_space(next)) return;
    closing_ += next;
    if (!kCloseTag.starts_with(closing_)) {
      fail(closing_, news);
    } else if (closing_.size() == kCloseTag.size()) {
      closing_.clear();
      place_ = Place::kBetween;
    }
  }

  void end(MessageDelta& news) override {
    if (place_ == Place::kText) news.content += open_tag_.take();
    if (place_ == Place::kCall) fail("", news);
  }

  Place place_ = Place::kText;
  TagFinder open_tag_{kOpenTag};
  std::string closing_;
};

}  // namespace

std::unique_ptr<ToolParser> make_hermes_parser() { return std::make_unique<HermesParser>(); }

}  // namespace tandem::api
