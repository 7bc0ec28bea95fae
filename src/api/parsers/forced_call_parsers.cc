// SPDX-License-Identifier: Apache-2.0
// What a model writes under the grammars of tool_choice "required" and of a named tool.
#include <boost/json.hpp>

#include "api/parsers/json_call_parser.h"

namespace tandem::api {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

/// The brackets and commas of the outer array are nobody's text.
class RequiredParser final : public JsonCallParser {
 public:
  RequiredParser() : JsonCallParser({"parameters"}, true) {}

 private:
  enum class Expect { kArray, kCall, kInCall, kCommaOrEnd, kNothing };

  void step(char next, MessageDelta& news) override {
    if (expect_ == Expect::kInCall) {
      if (read(next, news)) expect_ = Expect::kCommaOrEnd;
      return;
    }
    between_ += next;
    if (is_space(next)) return;
    if (expect_ == Expect::kArray && next == '[') {
      expect_ = Expect::kCall;
    } else if (expect_ == Expect::kCall && next == '{') {
      begin(between_.substr(0, between_.size() - 1));
      between_.clear();
      expect_ = Expect::kInCall;
      if (read(next, news)) expect_ = Expect::kCommaOrEnd;
    } else if (expect_ == Expect::kCommaOrEnd && (next == ',' || next == ']')) {
      expect_ = next == ',' ? Expect::kCall : Expect::kNothing;
      between_.clear();
    } else {
      give_up(between_, news);
    }
  }

  void end(MessageDelta& news) override {
    if (expect_ == Expect::kInCall) return fail("", news);
    if (expect_ == Expect::kArray || expect_ == Expect::kCall) give_up(between_, news);
    if (expect_ == Expect::kCommaOrEnd) set_malformed();  // cut off behind a whole call
  }

  Expect expect_ = Expect::kArray;
  std::string between_;
};

class NamedParser final : public ToolParser {
 public:
  explicit NamedParser(std::string name) : name_(std::move(name)) {}

 private:
  void step(char next, MessageDelta& news) override {
    if (!std::exchange(told_, true)) news.begin_call(0, name_);
    news.add_arguments(0, std::string_view(&next, 1));
  }
  void end(MessageDelta& /*news*/) override {}

  std::string name_;
  bool told_ = false;
};

}  // namespace

std::unique_ptr<ToolParser> make_required_parser() { return std::make_unique<RequiredParser>(); }
std::unique_ptr<ToolParser> make_named_parser(std::string name) {
  return std::make_unique<NamedParser>(std::move(name));
}

}  // namespace tandem::api
