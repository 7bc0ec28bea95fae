// SPDX-License-Identifier: Apache-2.0
// From the messages of a chat request to the text of its prompt: content parts, tool calls and tools as templates want
// them, then the template. Spec: vllm_api.md 7.1, model_formats.md 4.1.
#pragma once

#include <boost/json/fwd.hpp>
#include <string>

#include "api/context.h"
#include "api/fields.h"
#include "api/parsers/message_parser.h"

namespace tandem::api {

struct ChatPrompt {
  std::string text;
  std::string role;          ///< of the answer
  std::string last_content;  ///< text of the last message if its role is `role`, for echo
  MessagePlan plan;          ///< how to read the answer
};

/// Reads messages, tools, tool_choice, parallel_tool_calls, include_reasoning, chat_template*, add_generation_prompt,
/// continue_final_message, documents.
/// Without `answered` nobody reads an answer, and tool_choice does not matter.
Outcome<ChatPrompt> render_chat_prompt(const Context& context, const Fields& body, bool answered = true);

/// Messages as the template wants them: content one string or a list of parts, arguments of tool calls as objects.
Outcome<boost::json::array> prepare_messages(const Fields& body, bool content_as_parts);
/// tools with all keys in the order that templates print: type, function{name, description, parameters}. Null if none.
Outcome<boost::json::value> prepare_tools(const Fields& body);

}  // namespace tandem::api
