// SPDX-License-Identifier: Apache-2.0
#include "api/structural_tag.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <boost/json.hpp>
#include <map>
#include <vector>

#include "api/fields.h"

namespace tandem::api {
namespace {

namespace json = boost::json;

/// `text` as a regular expression between slashes.
std::string regex_of(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (std::string_view("\\.+*?()|[]{}^$/#&-~").find(c) != std::string_view::npos) escaped += '\\';
    if (c == '\n')
      escaped += "\\n";
    else
      escaped += c;
  }
  return escaped;
}

/// A client's regular expression between slashes: slashes and line ends of its own would end it.
std::string between_slashes(std::string_view pattern) {
  std::string text = "/";
  bool escaped = false;
  for (const char c : pattern) {
    if (c == '/' && !escaped) text += '\\';
    escaped = c == '\\' && !escaped;
    if (c == '\n')
      text += "\\n";
    else
      text += c;
  }
  return text + "/";
}

/// A string of Lark, which has them as JSON has; nothing for "".
std::string quoted(std::string_view text) {
  return text.empty() ? std::string() : std::string(json::serialize(json::string_view(text))) + " ";
}

/// What follows a part of the output. A part writes `text` itself, because free text ends where it is found.
struct Behind {
  bool something = false;  ///< false: the output ends here
  std::string text;        ///< "" with `something`: what nobody can look for
};

/// Formats as expressions of Lark; the rules they need are collected.
class Translator {
 public:
  Translator(const JsonStyle& style, const std::string& param) : style_(style), param_(param) {}

  Outcome<std::string> expression(const json::value& format, const Behind& behind);
  const std::string& rules() const { return rules_; }

 private:
  Refusal invalid(std::string_view what) const {
    return bad_request(fmt::format("Invalid structural tag specification: {}", what), param_);
  }
  Outcome<std::string> text(const json::object& object, const char* name) const {
    const json::value* value = object.if_contains(name);
    if (value == nullptr || !value->is_string()) return invalid(fmt::format("'{}' should be a string", name));
    return std::string(value->get_string());
  }
  Outcome<const json::array*> list(const json::object& object, const char* name) const {
    const json::value* value = object.if_contains(name);
    if (value == nullptr || !value->is_array() || value->get_array().empty())
      return invalid(fmt::format("'{}' should be a list with something in it", name));
    return &value->get_array();
  }
  std::string rule(const char* name, std::string_view body, bool lazy = false) {
    const std::string full = fmt::format("{}_{}", name, num_rules_++);
    rules_ += fmt::format("{}{}: {}\n", full, lazy ? "[lazy]" : "", body);
    return full;
  }
  /// Text up to and with `text`, which it does not have before its end.
  std::string up_to(std::string_view text) { return rule("up_to", fmt::format("/(.|\\n)*{}/", regex_of(text)), true); }

  Outcome<std::string> schema(const json::object& format) const;
  Outcome<std::string> free_text(const Behind& behind);
  Outcome<std::string> tag(const json::value& value, std::string_view begun, const Behind& behind);
  Outcome<std::string> sequence(const json::array& elements, const Behind& behind);
  Outcome<std::string> any_of(const json::array& elements, const Behind& behind);
  Outcome<std::string> triggered_tags(const json::object& format, const Behind& behind);
  Outcome<std::string> separated_tags(const json::object& format, const Behind& behind);

  const JsonStyle& style_;
  const std::string& param_;
  std::string rules_;
  int num_rules_ = 0;
};

Outcome<std::string> Translator::schema(const json::object& format) const {
  const json::value* value = format.if_contains("json_schema");
  const bool any = value == nullptr || value->is_null();
  if (!any && !value->is_object() && !value->is_bool())
    return invalid("'json_schema' should be a JSON schema: an object");
  return "%json " + std::string(json::serialize(in_style(any ? json::object() : *value, style_))) + " ";
}

Outcome<std::string> Translator::free_text(const Behind& behind) {
  if (!behind.something) return std::string("/(.|\\n)*/ ");
  if (behind.text.empty())
    return invalid(
        "any_text and triggered_tags should come last, or in a tag that has an end: what follows them here "
        "cannot be told from them");
  return up_to(behind.text) + " ";
}

/// {"begin", "content", "end"}; the first characters of "begin", `begun`, stand there already.
Outcome<std::string> Translator::tag(const json::value& value, std::string_view begun, const Behind& behind) {
  if (!value.is_object()) return invalid("a tag should be an object");
  const json::object& object = value.get_object();
  TANDEM_ASSIGN(const std::string begin, text(object, "begin"));
  TANDEM_ASSIGN(const std::string end, text(object, "end"));
  const json::value* content = object.if_contains("content");
  if (content == nullptr) return invalid("a tag should have a 'content'");
  const Behind inner = end.empty() ? behind : Behind{true, end};
  TANDEM_ASSIGN(const std::string middle, expression(*content, inner));
  const std::string outer = end.empty() ? std::string() : quoted(behind.text);
  return quoted(std::string_view(begin).substr(begun.size())) + middle + outer;
}

Outcome<std::string> Translator::sequence(const json::array& elements, const Behind& behind) {
  std::string all;
  for (std::size_t i = 0; i < elements.size(); ++i) {
    const bool last = i + 1 == elements.size();
    TANDEM_ASSIGN(const std::string part, expression(elements[i], last ? behind : Behind{true, ""}));
    all += part;
  }
  return all;
}

Outcome<std::string> Translator::any_of(const json::array& elements, const Behind& behind) {
  std::vector<std::string> names;
  for (const json::value& element : elements) {
    TANDEM_ASSIGN(const std::string each, expression(element, behind));
    names.push_back(rule("choice", each));
  }
  return fmt::format("({}) ", fmt::join(names, " | "));
}

/// Free text in which a trigger is the beginning of one of the tags.
Outcome<std::string> Translator::triggered_tags(const json::object& format, const Behind& behind) {
  TANDEM_ASSIGN(const json::array* triggers, list(format, "triggers"));
  TANDEM_ASSIGN(const json::array* tags, list(format, "tags"));
  const Fields fields(format);
  TANDEM_ASSIGN(const bool at_least_one, fields.boolean("at_least_one", false));
  TANDEM_ASSIGN(const bool only_one, fields.boolean("stop_after_first", false));
  std::map<std::string, std::vector<std::string>> by_trigger;
  const Behind within = only_one ? behind : Behind{true, ""};
  for (const json::value& each : *tags) {
    if (!each.is_object()) return invalid("a tag should be an object");
    TANDEM_ASSIGN(const std::string begin, text(each.get_object(), "begin"));
    std::string trigger;
    for (const json::value& other : *triggers)
      if (other.is_string() && begin.starts_with(std::string_view(other.get_string()))) trigger = other.get_string();
    if (trigger.empty()) return invalid(fmt::format("no trigger is the beginning of '{}'", begin));
    TANDEM_ASSIGN(const std::string rest, tag(each, trigger, within));
    by_trigger[trigger].push_back(rule("tag", rest.empty() ? "\"\"" : rest));
  }
  std::vector<std::string> names;
  for (const auto& [trigger, alternatives] : by_trigger)
    names.push_back(rule("triggered", fmt::format("{} ({})", up_to(trigger), fmt::join(alternatives, " | "))));
  const std::string any = fmt::format("({})", fmt::join(names, " | "));
  if (only_one && at_least_one) return any + " ";
  TANDEM_ASSIGN(const std::string rest, free_text(behind));
  if (only_one) return fmt::format("({} | {}) ", any, rest);
  return fmt::format("{}{} {}", any, at_least_one ? "+" : "*", rest);
}

Outcome<std::string> Translator::separated_tags(const json::object& format, const Behind& behind) {
  TANDEM_ASSIGN(const json::array* tags, list(format, "tags"));
  TANDEM_ASSIGN(const std::string separator, text(format, "separator"));
  const Fields fields(format);
  TANDEM_ASSIGN(const bool at_least_one, fields.boolean("at_least_one", false));
  TANDEM_ASSIGN(const bool only_one, fields.boolean("stop_after_first", false));
  std::vector<std::string> names;
  for (const json::value& each : *tags) {
    TANDEM_ASSIGN(const std::string one, tag(each, "", Behind{true, ""}));
    names.push_back(rule("tag", one));
  }
  const std::string any = rule("any_tag", fmt::format("{}", fmt::join(names, " | ")));
  const std::string all = only_one ? any : fmt::format("{0} ({1}{0})*", any, quoted(separator));
  return fmt::format("({}){} {}", all, at_least_one ? "" : "?", quoted(behind.text));
}

Outcome<std::string> Translator::expression(const json::value& format, const Behind& behind) {
  if (!format.is_object()) return invalid("a format should be an object");
  const json::object& object = format.get_object();
  TANDEM_ASSIGN(const std::string type, text(object, "type"));
  if (type == "any_text") return free_text(behind);
  if (type == "tag") return tag(format, "", behind);
  if (type == "triggered_tags") return triggered_tags(object, behind);
  if (type == "tags_with_separator") return separated_tags(object, behind);
  if (type == "sequence" || type == "or") {
    TANDEM_ASSIGN(const json::array* elements, list(object, "elements"));
    return type == "or" ? any_of(*elements, behind) : sequence(*elements, behind);
  }
  std::string closed;
  if (type == "const_string") {
    TANDEM_ASSIGN(closed, text(object, "value"));
    if (closed.empty()) return invalid("'value' of a const_string should not be empty");
    closed = quoted(closed);
  } else if (type == "json_schema") {
    TANDEM_ASSIGN(closed, schema(object));
  } else if (type == "regex") {
    TANDEM_ASSIGN(closed, text(object, "pattern"));
    closed = between_slashes(closed) + " ";
  } else {
    return invalid(fmt::format("a format of type '{}' is not supported in this version", type));
  }
  return closed + quoted(behind.text);
}

/// The older form is free text with tags of JSON.
Outcome<json::value> format_of_structures(const json::object& object, const std::string& param) {
  const json::value* structures = object.if_contains("structures");
  const json::value* triggers = object.if_contains("triggers");
  if (structures == nullptr || !structures->is_array() || triggers == nullptr || !triggers->is_array())
    return bad_request(
        "Invalid structural tag specification: expected a 'format', or lists of 'structures' and 'triggers'", param);
  json::array tags;
  for (const json::value& structure : structures->get_array()) {
    if (!structure.is_object())
      return bad_request("Invalid structural tag specification: a structure should be an object", param);
    json::object tag = structure.get_object();
    const json::value* schema = tag.if_contains("schema");
    tag["content"] =
        json::object{{"type", "json_schema"}, {"json_schema", schema == nullptr ? json::value() : *schema}};
    tags.push_back(std::move(tag));
  }
  return json::value(json::object{{"type", "triggered_tags"}, {"triggers", *triggers}, {"tags", std::move(tags)}});
}

}  // namespace

Outcome<std::string> structural_tag_grammar(const json::value& value, const JsonStyle& style,
                                            const std::string& param) {
  if (!value.is_object()) return bad_request("Invalid structural tag specification: expected an object", param);
  const json::object& object = value.get_object();
  json::value format;
  if (const json::value* own = object.if_contains("format"); own != nullptr && !own->is_null()) {
    format = *own;
  } else {
    TANDEM_ASSIGN(format, format_of_structures(object, param));
  }
  Translator translator(style, param);
  TANDEM_ASSIGN(const std::string start, translator.expression(format, Behind{}));
  return fmt::format("start: {}\n{}", start, translator.rules());
}

}  // namespace tandem::api
