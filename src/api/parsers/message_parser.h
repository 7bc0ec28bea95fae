// SPDX-License-Identifier: Apache-2.0
// The message that one choice's output text is: reasoning, content and tool calls, piece by piece for streams and as a
// whole. One object a choice.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/parsers/message_delta.h"
#include "api/parsers/reasoning_parser.h"
#include "api/parsers/tool_parser.h"
#include "config/serve_config.h"

namespace tandem::api {

enum class ToolMode : std::uint8_t {
  kNone,      ///< all text is content
  kAuto,      ///< calls in the format of --tool-call-parser
  kRequired,  ///< an array of calls, by grammar
  kNamed,     ///< the arguments of one call, by grammar
};

/// How the output of a request is to be read.
struct MessagePlan {
  bool reasoning = false;        ///< split thoughts off
  bool starts_thinking = false;  ///< what text without tags is
  bool show_reasoning = true;    ///< include_reasoning
  ToolMode tools = ToolMode::kNone;
  config::ToolFormat format = config::ToolFormat::kNone;     ///< for kAuto
  std::string tool_name;                                     ///< for kNamed
  std::shared_ptr<const boost::json::array> declared_tools;  ///< the request's; may be nullptr
  bool parallel_calls = true;                                ///< false: only the first call counts
};

struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments;  ///< JSON text
};

class MessageParser {
 public:
  /// `make_id` gives the id of a new call.
  MessageParser(const MessagePlan& plan, std::function<std::string()> make_id);

  /// The next piece of output text and what it adds to the message. `last`: there is no more.
  MessageDelta feed(std::string_view text, bool last);

  // What the message is so far: the deltas, joined.
  const std::string& reasoning() const { return reasoning_; }  ///< also where deltas do not show it
  const std::string& content() const { return content_; }
  const std::vector<ToolCall>& calls() const { return calls_; }
  /// All text that is not reasoning, calls included: the content of a whole answer with a call that is not whole.
  const std::string& text() const { return text_; }
  /// Some call was not whole.
  bool malformed() const { return tools_ != nullptr && tools_->malformed(); }

 private:
  bool show_reasoning_;
  bool parallel_calls_;
  std::function<std::string()> make_id_;
  std::optional<ReasoningParser> thoughts_;
  std::shared_ptr<const boost::json::array> declared_tools_;  // before tools_, which reads it
  std::unique_ptr<ToolParser> tools_;
  std::string reasoning_;
  std::string content_;
  std::string text_;
  std::vector<ToolCall> calls_;
};

}  // namespace tandem::api
