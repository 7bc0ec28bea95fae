// SPDX-License-Identifier: Apache-2.0
#include "api/parsers/message_parser.h"

#include <boost/json.hpp>
#include <utility>

namespace tandem::api {
namespace {

std::unique_ptr<ToolParser> parser_of(const MessagePlan& plan) {
  switch (plan.tools) {
    case ToolMode::kNone:
      break;
    case ToolMode::kAuto:
      return make_tool_parser(plan.format, plan.declared_tools.get());
    case ToolMode::kRequired:
      return make_required_parser();
    case ToolMode::kNamed:
      return make_named_parser(plan.tool_name);
  }
  return nullptr;
}

}  // namespace

MessageParser::MessageParser(const MessagePlan& plan, std::function<std::string()> make_id)
    : show_reasoning_(plan.show_reasoning),
      parallel_calls_(plan.parallel_calls),
      make_id_(std::move(make_id)),
      declared_tools_(plan.declared_tools),
      tools_(parser_of(plan)) {
  if (plan.reasoning) thoughts_.emplace(plan.starts_thinking);
}

MessageDelta MessageParser::feed(std::string_view text, bool last) {
  MessageDelta delta;
  if (thoughts_) {
    thoughts_->feed(text, delta);
    if (last) thoughts_->finish(delta);
    reasoning_ += delta.reasoning;
    if (!show_reasoning_) delta.reasoning.clear();
  } else {
    delta.content = text;
  }
  text_ += delta.content;
  if (tools_) {
    const std::string unparsed = std::exchange(delta.content, {});
    tools_->feed(unparsed, delta);
    if (last) tools_->finish(delta);
    if (!parallel_calls_) std::erase_if(delta.calls, [](const MessageDelta::Call& call) { return call.index > 0; });
  }
  content_ += delta.content;
  for (const MessageDelta::Call& call : delta.calls) {
    if (call.first) calls_.push_back({make_id_(), call.name, {}});
    calls_[call.index].arguments += call.arguments;
  }
  return delta;
}

}  // namespace tandem::api
