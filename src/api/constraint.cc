// SPDX-License-Identifier: Apache-2.0
#include "api/constraint.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <vector>

#include "api/json_style.h"
#include "api/structural_tag.h"
#include "base/json.h"

namespace tandem::api {
namespace {

namespace json = boost::json;
using text::GrammarKind;

constexpr std::size_t kMaxGrammarBytes = 1U << 20;
constexpr JsonLimits kSchemaLimits{.max_depth = 64, .max_bytes = kMaxGrammarBytes};

JsonStyle server_style(bool compact) {
  JsonStyle style;
  style.disable_any_whitespace = compact;
  return style;
}

Outcome<Constraint> schema_constraint(json::value schema, const JsonStyle& style, std::string param) {
  if (!schema.is_object() && !schema.is_bool())
    return bad_request(fmt::format("{} should be a JSON schema: an object", param), param);
  return Constraint{GrammarKind::kJsonSchema, json::serialize(in_style(std::move(schema), style)), std::move(param)};
}

/// A schema as an object, or as its JSON text.
Outcome<json::value> schema_of(const json::value& value, const std::string& param) {
  if (!value.is_string()) return value;
  auto parsed = parse_json(value.get_string(), kSchemaLimits);
  if (!parsed) return bad_request(fmt::format("{}: {}", param, parsed.error().message()), param);
  return std::move(*parsed);
}

Outcome<Constraint> choice_constraint(const json::value& value, std::string param) {
  if (!value.is_array()) return validation_error("list_type", param, "Input should be a valid list");
  if (value.get_array().empty()) return bad_request("Choice '[]' cannot be an empty list", param);
  for (const json::value& each : value.get_array())
    if (!each.is_string()) return validation_error("string_type", param, "Input should be a valid string");
  return Constraint{GrammarKind::kChoice, json::serialize(value), std::move(param)};
}

Outcome<Constraint> text_constraint(GrammarKind kind, const json::value& value, std::string param) {
  if (!value.is_string()) return validation_error("string_type", param, "Input should be a valid string");
  return Constraint{kind, std::string(value.get_string()), std::move(param)};
}

Outcome<Constraint> structural_tag_constraint(const json::value& value, const JsonStyle& style, std::string param) {
  TANDEM_ASSIGN(std::string grammar, structural_tag_grammar(value, style, param));
  return Constraint{GrammarKind::kLark, std::move(grammar), std::move(param)};
}

Outcome<std::optional<Constraint>> read_response_format(const json::value& value, bool compact) {
  const std::string param = "response_format";
  if (!value.is_object()) return validation_error("dict_type", param, "Input should be a valid dictionary");
  const json::object& format = value.get_object();
  const json::value* type = format.if_contains("type");
  const std::string name = type != nullptr && type->is_string() ? std::string(type->get_string()) : "";
  if (name == "text") return std::optional<Constraint>();
  const JsonStyle style = server_style(compact);
  if (name == "json_object") {
    TANDEM_ASSIGN(auto constraint, schema_constraint(json::object{{"type", "object"}}, style, param));
    return std::optional(std::move(constraint));
  }
  if (name == "structural_tag") {
    TANDEM_ASSIGN(auto constraint, structural_tag_constraint(value, style, param));
    return std::optional(std::move(constraint));
  }
  if (name != "json_schema")
    return bad_request(
        fmt::format("response_format.type should be text, json_object, json_schema or structural_tag, got '{}'", name),
        param);
  const json::value* inner = format.if_contains("json_schema");
  if (inner == nullptr || !inner->is_object())
    return value_error("When response_format type is 'json_schema', the 'json_schema' field must be provided.");
  const json::value* schema = inner->get_object().if_contains("schema");
  if (schema == nullptr || schema->is_null())
    return bad_request("response_format.json_schema.schema is missing", param);
  TANDEM_ASSIGN(auto constraint, schema_constraint(*schema, style, param));
  return std::optional(std::move(constraint));
}

/// One kind of constraint, by its name in structured_outputs.
Outcome<Constraint> constraint_of(std::string_view kind, const json::value& value, const JsonStyle& style,
                                  std::string param) {
  if (kind == "regex") return text_constraint(GrammarKind::kRegex, value, std::move(param));
  if (kind == "grammar") return text_constraint(GrammarKind::kGrammar, value, std::move(param));
  if (kind == "choice") return choice_constraint(value, std::move(param));
  if (kind == "json_object") return schema_constraint(json::object{{"type", "object"}}, style, std::move(param));
  TANDEM_ASSIGN(json::value parsed, schema_of(value, param));
  if (kind == "structural_tag") return structural_tag_constraint(parsed, style, std::move(param));
  return schema_constraint(std::move(parsed), style, std::move(param));
}

struct Source {
  std::string_view member;
  std::string_view kind;
};
constexpr Source kGuided[] = {{"guided_json", "json"},
                              {"guided_regex", "regex"},
                              {"guided_choice", "choice"},
                              {"guided_grammar", "grammar"},
                              {"structural_tag", "structural_tag"}};
constexpr std::string_view kKinds[] = {"json", "regex", "choice", "grammar", "structural_tag"};

Refusal too_many() {
  return value_error("You can only use one kind of constraints for structured outputs ('json', 'regex' or 'choice').");
}

Outcome<std::optional<Constraint>> read_structured_outputs(const json::value& value, bool compact) {
  if (!value.is_object())
    return validation_error("dict_type", "structured_outputs", "Input should be a valid dictionary");
  const Fields fields(value.get_object());
  JsonStyle style;
  TANDEM_ASSIGN(style.whitespace_pattern, fields.text("whitespace_pattern"));
  TANDEM_ASSIGN(style.disable_any_whitespace, fields.boolean("disable_any_whitespace", compact));
  TANDEM_ASSIGN(style.disable_additional_properties, fields.boolean("disable_additional_properties", false));
  TANDEM_ASSIGN(const bool json_object, fields.boolean("json_object", false));
  std::optional<Constraint> found;
  if (json_object) {
    TANDEM_ASSIGN(found, constraint_of("json_object", json::value(), style, "structured_outputs"));
  }
  for (const std::string_view kind : kKinds) {
    const json::value* member = fields.find(kind);
    if (member == nullptr) continue;
    if (found) return too_many();
    TANDEM_ASSIGN(found, constraint_of(kind, *member, style, "structured_outputs"));
  }
  return found;
}

/// Definitions that a tool's schema refers to, as they are found from the root of the schema of all.
Outcome<void> hoist_definitions(json::value& schema, json::object& root) {
  for (const char* name : {"$defs", "definitions"}) {
    json::object* object = schema.if_object();
    const json::value* definitions = object == nullptr ? nullptr : object->if_contains(name);
    if (definitions == nullptr || !definitions->is_object()) continue;
    if (!root.contains(name)) root[name] = json::object();
    json::object& all = root[name].as_object();
    for (const auto& member : definitions->get_object()) {
      if (const json::value* other = all.if_contains(member.key()); other != nullptr && *other != member.value())
        return bad_request(
            fmt::format("tools: two of them have different definitions of '{}'", std::string_view(member.key())),
            "tools");
      all[member.key()] = member.value();
    }
    object->stable_erase(name);
  }
  return {};
}

json::value parameters_of(const json::value& tool) {
  const json::value* parameters = tool.at("function").as_object().if_contains("parameters");
  if (parameters == nullptr || parameters->is_null()) return json::object{{"type", "object"}};
  return *parameters;
}

}  // namespace

Outcome<std::optional<Constraint>> read_constraint(const Fields& body, bool compact) {
  std::optional<Constraint> found;
  if (const json::value* format = body.find("response_format"); format != nullptr) {
    TANDEM_ASSIGN(found, read_response_format(*format, compact));
  }
  if (const json::value* outputs = body.find("structured_outputs"); outputs != nullptr) {
    TANDEM_ASSIGN(auto another, read_structured_outputs(*outputs, compact));
    if (found && another) return too_many();
    if (another) found = std::move(another);
  }
  JsonStyle style = server_style(compact);
  TANDEM_ASSIGN(style.whitespace_pattern, body.text("guided_whitespace_pattern"));
  for (const Source& source : kGuided) {
    const json::value* value = body.find(source.member);
    if (value == nullptr) continue;
    if (found) return too_many();
    TANDEM_ASSIGN(found, constraint_of(source.kind, *value, style, std::string(source.member)));
  }
  return found;
}

Outcome<Constraint> named_tool_constraint(const json::array& tools, std::string_view name, bool compact) {
  for (const json::value& tool : tools)
    if (tool.at("function").at("name").as_string() == json::string_view(name))
      return schema_constraint(parameters_of(tool), server_style(compact), "tools");
  return bad_request(fmt::format("tools: there is none named '{}'", name), "tools");
}

Outcome<Constraint> required_tools_constraint(const json::array& tools, bool parallel, bool compact) {
  json::object root{{"type", "array"}, {"minItems", 1}};
  if (!parallel) root["maxItems"] = 1;
  json::array calls;
  for (const json::value& tool : tools) {
    json::value parameters = parameters_of(tool);
    TANDEM_TRY(hoist_definitions(parameters, root));
    json::array name{tool.at("function").at("name")};
    calls.push_back(json::object{{"type", "object"},
                                 {"properties", json::object{{"name", json::object{{"enum", std::move(name)}}},
                                                             {"parameters", std::move(parameters)}}},
                                 {"required", json::array{"name", "parameters"}},
                                 {"additionalProperties", false}});
  }
  root["items"] = calls.size() == 1 ? calls[0] : json::value(json::object{{"anyOf", std::move(calls)}});
  return schema_constraint(json::value(std::move(root)), server_style(compact), "tools");
}

Outcome<std::shared_ptr<const text::Grammar>> compile(const text::GrammarCompiler& compiler,
                                                      const Constraint& constraint) {
  if (constraint.source.size() > kMaxGrammarBytes)
    return bad_request(fmt::format("{} has {} bytes; at most {} are allowed", constraint.param,
                                   constraint.source.size(), kMaxGrammarBytes),
                       constraint.param);
  auto grammar = compiler.compile(constraint.kind, constraint.source);
  if (grammar) return std::move(*grammar);
  if (grammar.error().code() != Code::kInvalidArgument) return grammar.error();
  const std::string_view what =
      constraint.kind == GrammarKind::kJsonSchema ? "Invalid JSON schema" : "Invalid grammar specification";
  return bad_request(fmt::format("{} ({}): {}", what, constraint.param, grammar.error().message()), constraint.param);
}

}  // namespace tandem::api
