// SPDX-License-Identifier: Apache-2.0
#include "api/chat_prompt.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/json.hpp>

#include "base/json.h"

namespace tandem::api {
namespace {

namespace json = boost::json;

std::string_view trimmed_left(std::string_view text) {
  const std::size_t start = text.find_first_not_of(" \t\r\n\f\v");
  return start == std::string_view::npos ? std::string_view() : text.substr(start);
}

std::string_view trimmed(std::string_view text) {
  text = trimmed_left(text);
  const std::size_t end = text.find_last_not_of(" \t\r\n\f\v");
  return end == std::string_view::npos ? std::string_view() : text.substr(0, end + 1);
}

/// The text of one content part.
Outcome<std::string> text_of_part(const json::value& part) {
  if (part.is_string()) return std::string(part.as_string());
  if (!part.is_object())
    return validation_error("dict_type", "messages", "Input should be a content part (an object with a type)");
  const json::object& object = part.as_object();
  const json::value* type = object.if_contains("type");
  const std::string name = type != nullptr && type->is_string() ? std::string(type->as_string()) : "text";
  std::string_view key = name;
  if (name == "input_text") key = "text";
  if (name != "text" && name != "input_text" && name != "refusal" && name != "thinking")
    return bad_request(fmt::format("content part of type '{}' is not supported: this model reads text only", name),
                       "messages");
  const json::value* text = object.if_contains(key);
  if (text == nullptr || !text->is_string())
    return bad_request(fmt::format("content part of type '{}' needs a string '{}'", name, key), "messages");
  return std::string(text->as_string());
}

Outcome<json::value> prepare_content(const json::value* content, bool as_parts) {
  std::vector<std::string> texts;
  if (content == nullptr || content->is_null()) {
    if (as_parts) return json::value(json::array());
    return json::value("");
  }
  if (content->is_string()) {
    if (!as_parts) return *content;
    texts.emplace_back(content->as_string());
  } else if (content->is_array()) {
    for (const json::value& part : content->as_array()) {
      TANDEM_ASSIGN(std::string text, text_of_part(part));
      texts.push_back(std::move(text));
    }
  } else {
    return validation_error("string_type", "messages", "content should be a string, a list of parts or null");
  }
  if (as_parts) {
    json::array parts;
    for (const std::string& text : texts) parts.push_back(json::object{{"type", "text"}, {"text", text}});
    return json::value(std::move(parts));
  }
  return json::value(json::string(fmt::format("{}", fmt::join(texts, "\n"))));
}

/// Arguments of a tool call: JSON text becomes the object it says.
Outcome<void> parse_arguments(json::object& function) {
  json::value& arguments = function["arguments"];
  if (arguments.is_null() || (arguments.is_string() && arguments.as_string().empty())) {
    arguments = json::object();
    return {};
  }
  if (!arguments.is_string()) return {};
  auto parsed = parse_json(std::string_view(arguments.as_string()));
  if (!parsed)
    return bad_request(fmt::format("arguments of a tool call are not JSON: {}", parsed.error().message()), "messages");
  arguments = std::move(*parsed);
  return {};
}

Outcome<void> prepare_tool_calls(json::object& message) {
  const json::value* calls = message.if_contains("tool_calls");
  if (calls == nullptr) return {};
  if (calls->is_null() || (calls->is_array() && calls->as_array().empty())) {
    message.erase("tool_calls");
    return {};
  }
  if (!calls->is_array()) return validation_error("list_type", "messages", "tool_calls should be a list");
  for (json::value& call : message["tool_calls"].as_array()) {
    json::value* function = call.is_object() ? call.as_object().if_contains("function") : nullptr;
    if (function == nullptr || !function->is_object())
      return validation_error("missing", "messages", "a tool call needs a function");
    TANDEM_TRY(parse_arguments(function->as_object()));
  }
  return {};
}

/// Templates know the thoughts of earlier turns by either name.
void name_thoughts_twice(json::object& message) {
  for (const auto& [name, other] : {std::pair("reasoning", "reasoning_content"), {"reasoning_content", "reasoning"}}) {
    const json::value* thoughts = message.if_contains(name);
    const json::value* there = message.if_contains(other);
    if (thoughts == nullptr || !thoughts->is_string() || (there != nullptr && !there->is_null())) continue;
    json::value copy = *thoughts;
    message[other] = std::move(copy);
  }
}

/// A tool of the request by its name.
bool declares(const json::array& tools, std::string_view name) {
  return std::any_of(tools.begin(), tools.end(), [name](const json::value& tool) {
    return std::string_view(tool.at("function").at("name").get_string()) == name;
  });
}

/// {"type": "function", "function": {"name": ...}}
Outcome<std::string> named_tool(const json::object& choice, const json::array& tools) {
  const json::value* function = choice.if_contains("function");
  const json::value* name =
      function != nullptr && function->is_object() ? function->get_object().if_contains("name") : nullptr;
  if (name == nullptr || !name->is_string())
    return validation_error("missing", "tool_choice", "a named tool needs function.name");
  if (!declares(tools, name->get_string()))
    return value_error("The tool specified in `tool_choice` does not match any of the specified `tools` ");
  return std::string(name->get_string());
}

Outcome<void> read_tool_choice(const Context& context, const Fields& body, const json::value& tools,
                               MessagePlan& plan) {
  const json::value* choice = body.find("tool_choice");
  if (choice == nullptr && tools.is_null()) return {};
  if (choice != nullptr && !choice->is_string() && !choice->is_object())
    return validation_error("string_type", "tool_choice", "Input should be a valid string or a named tool");
  const bool named = choice != nullptr && choice->is_object();
  const std::string word = choice != nullptr && choice->is_string() ? std::string(choice->get_string()) : "auto";
  if (word != "none" && word != "auto" && word != "required")
    return value_error(fmt::format(
        "Invalid value for `tool_choice`: {}! Only named tools, \"none\", \"auto\" or \"required\" are supported.",
        word));
  // An empty list of tools to choose from is none, as long as no call must be made.
  if (word == "none" || (word == "auto" && !named && tools.is_null() && body.has("tools"))) return {};
  if (tools.is_null()) return value_error("When using `tool_choice`, `tools` must be set.");
  plan.declared_tools = std::make_shared<const json::array>(tools.get_array());
  if (named) {
    TANDEM_ASSIGN(plan.tool_name, named_tool(choice->get_object(), *plan.declared_tools));
    plan.tools = ToolMode::kNamed;
    return {};
  }
  if (word == "required") {
    plan.tools = ToolMode::kRequired;
    return {};
  }
  if (!context.config.enable_auto_tool_choice)
    return bad_request("\"auto\" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set",
                       "tool_choice");
  plan.tools = ToolMode::kAuto;
  plan.format = context.config.tool_format;
  return {};
}

/// Cuts what the template put behind the last message, so that generation goes on inside it.
Outcome<std::string> continue_last_message(std::string rendered, const std::string& content) {
  const std::string_view core = trimmed(content);
  const std::size_t at = rendered.rfind(core);
  if (core.empty() || at == std::string::npos)
    return bad_request(
        "continue_final_message is set but the final message does not appear in the rendered prompt: the template "
        "changes or drops it",
        "continue_final_message");
  const std::string_view with_tail = trimmed_left(content);
  const bool tail_kept = std::string_view(rendered).substr(at).starts_with(with_tail);
  rendered.resize(at + (tail_kept ? with_tail.size() : core.size()));
  return rendered;
}

constexpr std::string_view kUntrusted =
    "Chat template is passed with request, but --trust-request-chat-template is not set. Refused request with "
    "untrusted "
    "chat template.";

/// What the template gets beside messages and tools.
struct TemplateFields {
  bool add_generation_prompt = true;
  bool continue_final = false;
  json::object extra;
  std::string own_template;  ///< the request's, "" if it brings none
};

/// What a model that continues its own last message is doing: thinking, if the thoughts in it are open.
bool continues_thinking(std::string_view content) {
  const std::size_t begin = content.rfind(kThinkTag);
  const std::size_t end = content.rfind(kThinkEndTag);
  return begin != std::string_view::npos && (end == std::string_view::npos || end < begin);
}

/// Templates write an empty block of thoughts into the prompt when enable_thinking is false.
bool starts_thinking(const Context& context, const TemplateFields& fields, std::string_view prompt,
                     std::string_view last_content) {
  if (fields.continue_final) return continues_thinking(last_content);
  const json::value* enabled = fields.extra.if_contains("enable_thinking");
  const bool off = context.config.reasoning_format == config::ReasoningFormat::kQwen3 && enabled != nullptr &&
                   enabled->is_bool() && !enabled->get_bool();
  return prompt_starts_thinking(prompt, !off);
}

Outcome<std::optional<std::string>> read_effort(const Fields& body) {
  const json::value* effort = body.find("reasoning_effort");
  if (effort == nullptr) return std::optional<std::string>();
  for (const std::string_view word : {"none", "minimal", "low", "medium", "high", "xhigh", "max"})
    if (effort->is_string() && effort->get_string() == word) return std::optional(std::string(word));
  return validation_error("literal_error", "reasoning_effort",
                          "Input should be 'none', 'minimal', 'low', 'medium', 'high', 'xhigh' or 'max'");
}

Outcome<TemplateFields> read_template_fields(const Context& context, const Fields& body) {
  TemplateFields result;
  TANDEM_ASSIGN(result.continue_final, body.boolean("continue_final_message", false));
  TANDEM_ASSIGN(result.add_generation_prompt, body.boolean("add_generation_prompt", !result.continue_final));
  if (result.continue_final && result.add_generation_prompt)
    return value_error("Cannot set both `continue_final_message` and `add_generation_prompt` to True.");
  result.extra = *context.template_defaults;
  if (const json::value* extra = body.find("chat_template_kwargs"); extra != nullptr) {
    if (!extra->is_object())
      return validation_error("dict_type", "chat_template_kwargs", "Input should be a valid dictionary");
    for (const auto& member : extra->as_object()) result.extra[member.key()] = member.value();
  }
  TANDEM_ASSIGN(const auto effort, read_effort(body));
  if (effort && !result.extra.contains("reasoning_effort")) result.extra["reasoning_effort"] = *effort;
  TANDEM_ASSIGN(auto own, body.text("chat_template"));
  if (const json::value* inner = result.extra.if_contains("chat_template"); inner != nullptr && inner->is_string()) {
    own = std::string(inner->as_string());
    result.extra.erase("chat_template");
  }
  if (own && !context.config.trust_request_chat_template) return bad_request(std::string(kUntrusted), "chat_template");
  result.own_template = own.value_or("");
  return result;
}

Outcome<std::shared_ptr<const text::ChatTemplate>> choose_template(const Context& context, const TemplateFields& fields,
                                                                   bool has_tools) {
  if (!fields.own_template.empty()) {
    auto compiled = text::ChatTemplate::compile(fields.own_template, context.parts.template_tokens);
    if (!compiled) return bad_request(compiled.error().message(), "chat_template");
    return *compiled;
  }
  const ServiceParts& parts = context.parts;
  const auto& chosen = has_tools && parts.tool_template ? parts.tool_template : parts.chat_template;
  if (!chosen)
    return bad_request(
        "this model has no chat template, so it cannot chat; use /v1/completions, or start the server with "
        "--chat-template");
  return chosen;
}

Outcome<void> check_documents(const json::value* documents) {
  if (documents == nullptr) return {};
  const json::array* list = documents->if_array();
  if (list == nullptr) return validation_error("list_type", "documents", "Input should be a valid list");
  for (const json::value& each : *list)
    if (!each.is_object()) return validation_error("dict_type", "documents", "Input should be a valid dictionary");
  return {};
}

bool content_as_parts(const Context& context, const text::ChatTemplate& chat_template) {
  switch (context.config.content_format) {
    case config::ContentFormat::kString:
      return false;
    case config::ContentFormat::kParts:
      return true;
    case config::ContentFormat::kAuto:
      break;
  }
  return chat_template.wants_content_parts();
}

/// Role and text of the last message.
Outcome<std::pair<std::string, std::string>> last_message(const Fields& body) {
  TANDEM_ASSIGN(const json::array messages, prepare_messages(body, false));
  if (messages.empty()) return std::pair<std::string, std::string>();
  const json::object& last = messages.back().as_object();
  return std::pair(std::string(last.at("role").as_string()), std::string(last.at("content").as_string()));
}

}  // namespace

Outcome<json::array> prepare_messages(const Fields& body, bool as_parts) {
  const json::value* messages = body.find("messages");
  if (messages == nullptr) return validation_error("missing", "messages", "Field required");
  if (!messages->is_array()) return validation_error("list_type", "messages", "Input should be a valid list");
  if (messages->as_array().empty())
    return validation_error("too_short", "messages", "List should have at least 1 item after validation, not 0");
  json::array prepared;
  for (const json::value& value : messages->as_array()) {
    if (!value.is_object()) return validation_error("dict_type", "messages", "Input should be a valid dictionary");
    json::object message = value.as_object();
    const json::value* role = message.if_contains("role");
    if (role == nullptr || !role->is_string())
      return validation_error("missing", "messages", "a message needs a string 'role'");
    TANDEM_ASSIGN(json::value content, prepare_content(message.if_contains("content"), as_parts));
    message["content"] = std::move(content);
    TANDEM_TRY(prepare_tool_calls(message));
    name_thoughts_twice(message);
    prepared.push_back(std::move(message));
  }
  return prepared;
}

Outcome<json::value> prepare_tools(const Fields& body) {
  const json::value* tools = body.find("tools");
  if (tools == nullptr) return json::value();
  if (!tools->is_array()) return validation_error("list_type", "tools", "Input should be a valid list");
  json::array prepared;
  for (const json::value& tool : tools->as_array()) {
    const json::value* function = tool.is_object() ? tool.as_object().if_contains("function") : nullptr;
    if (function == nullptr || !function->is_object())
      return validation_error("missing", "tools", "a tool needs a 'function' object");
    const json::object& source = function->as_object();
    const json::value* name = source.if_contains("name");
    if (name == nullptr || !name->is_string())
      return validation_error("missing", "tools", "a function needs a string 'name'");
    json::object full{{"name", *name}, {"description", nullptr}, {"parameters", nullptr}};
    for (const auto& member : source) full[member.key()] = member.value();
    const json::value* type = tool.as_object().if_contains("type");
    if (type != nullptr && *type != "function")
      return validation_error("literal_error", "tools", "a tool's 'type' should be 'function'");
    prepared.push_back(json::object{{"type", "function"}, {"function", std::move(full)}});
  }
  if (prepared.empty()) return json::value();
  return json::value(std::move(prepared));
}

Outcome<ChatPrompt> render_chat_prompt(const Context& context, const Fields& body, bool answered) {
  TANDEM_ASSIGN(TemplateFields fields, read_template_fields(context, body));
  TANDEM_ASSIGN(json::value tools, prepare_tools(body));
  ChatPrompt prompt;
  if (answered) TANDEM_TRY(read_tool_choice(context, body, tools, prompt.plan));
  if (answered && prompt.plan.tools == ToolMode::kNone && context.config.exclude_tools_when_tool_choice_none)
    tools = nullptr;
  TANDEM_ASSIGN(const auto chat_template, choose_template(context, fields, !tools.is_null()));
  TANDEM_ASSIGN(const json::array messages, prepare_messages(body, content_as_parts(context, *chat_template)));
  const json::value* documents = body.find("documents");
  TANDEM_TRY(check_documents(documents));
  text::ChatTemplate::Input input;
  input.messages = &messages;
  input.tools = &tools;
  input.documents = documents;
  input.add_generation_prompt = fields.add_generation_prompt;
  input.extra = &fields.extra;
  auto rendered = chat_template->render(input);
  if (!rendered) return bad_request(rendered.error().message(), "messages");
  prompt.text = std::move(*rendered);
  TANDEM_ASSIGN(const auto last, last_message(body));
  prompt.role = fields.add_generation_prompt || last.first.empty() ? context.config.response_role : last.first;
  if (last.first == prompt.role) prompt.last_content = last.second;
  if (fields.continue_final) {
    TANDEM_ASSIGN(prompt.text, continue_last_message(std::move(prompt.text), last.second));
  }
  TANDEM_ASSIGN(prompt.plan.parallel_calls, body.boolean("parallel_tool_calls", true));
  prompt.plan.reasoning = context.config.reasoning_format != config::ReasoningFormat::kNone;
  prompt.plan.starts_thinking = starts_thinking(context, fields, prompt.text, last.second);
  TANDEM_ASSIGN(prompt.plan.show_reasoning, body.boolean("include_reasoning", true));
  return prompt;
}

}  // namespace tandem::api
