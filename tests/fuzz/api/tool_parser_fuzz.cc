// SPDX-License-Identifier: Apache-2.0
// Any text through any parser, in two pieces: the same message as in one, nothing lost where a call was none, and no
// call without arguments.
#include <boost/json.hpp>
#include <cstdlib>
#include <string>

#include "api/parsers/message_parser.h"
#include "base/utf8.h"

namespace {

using tandem::api::MessageParser;
using tandem::api::MessagePlan;
using tandem::api::ToolMode;

MessagePlan plan_of(std::uint8_t choice) {
  MessagePlan plan;
  plan.reasoning = (choice & 8U) != 0;
  plan.starts_thinking = (choice & 16U) != 0;
  plan.tools = choice % 8 < 3 ? ToolMode::kAuto : choice % 8 == 3 ? ToolMode::kRequired : ToolMode::kNamed;
  constexpr tandem::config::ToolFormat kFormats[] = {tandem::config::ToolFormat::kHermes,
                                                     tandem::config::ToolFormat::kQwen3Coder,
                                                     tandem::config::ToolFormat::kLlama3Json};
  if (plan.tools == ToolMode::kAuto) plan.format = kFormats[choice % 8];
  static const auto kTools = std::make_shared<const boost::json::array>(
      boost::json::parse(R"([{"function":{"name":"f","parameters":{"properties":{"i":{"type":"integer"}}}}}])")
          .as_array());
  plan.declared_tools = kTools;
  return plan;
}

void check_calls(const MessageParser& parser) {
  for (const auto& call : parser.calls()) {
    boost::system::error_code error;
    boost::json::parse_options options;
    options.max_depth = 256;
    boost::json::parse(call.arguments, error, {}, options);
    if (error) std::abort();
  }
}

void feed(MessageParser& parser, std::string_view text, bool last) {
  for (const auto& call : parser.feed(text, last).calls)
    if (call.arguments.empty()) std::abort();
}

/// Without calls all of the text is in what is left of it.
void check_nothing_lost(const MessageParser& parser, std::string_view text) {
  if (parser.calls().empty() && parser.content() != text) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const MessagePlan plan = plan_of(data[0]);
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  const std::size_t cut = text.empty() ? 0 : data[1] % text.size();
  const auto id = [] { return std::string("id"); };
  MessageParser whole(plan, id);
  feed(whole, text, true);
  MessageParser parts(plan, id);
  feed(parts, text.substr(0, cut), false);
  feed(parts, text.substr(cut), true);
  if (!plan.reasoning) check_nothing_lost(whole, text);
  if (whole.content() != parts.content() || whole.reasoning() != parts.reasoning() ||
      whole.malformed() != parts.malformed() || whole.calls().size() != parts.calls().size())
    std::abort();
  for (std::size_t i = 0; i < whole.calls().size(); ++i)
    if (whole.calls()[i].name != parts.calls()[i].name || whole.calls()[i].arguments != parts.calls()[i].arguments)
      std::abort();
  // Arguments that are told as whole are JSON, if the text is UTF-8 at all.
  if (plan.tools == ToolMode::kAuto && !whole.malformed() && tandem::is_valid_utf8(text)) check_calls(whole);
  return 0;
}
