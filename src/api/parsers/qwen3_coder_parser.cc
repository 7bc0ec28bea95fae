// SPDX-License-Identifier: Apache-2.0
// Calls written as tags: <tool_call>, <function=NAME>, <parameter=KEY>VALUE</parameter> ..., </function>, </tool_call>,
// with white space between them; <tool_call> and its end may be missing. The arguments become a JSON object. A value
// has the type that the tool's schema names and is a string where it names none or the value does not fit; strings are
// passed on as they come.
#include <algorithm>
#include <boost/json.hpp>
#include <optional>

#include "api/json_writer.h"
#include "api/parsers/json_cursor.h"
#include "api/parsers/tag_finder.h"
#include "api/parsers/tool_parser.h"

namespace tandem::api {
namespace {

namespace json = boost::json;

constexpr std::string_view kOpenTag = "<tool_call>";
constexpr std::string_view kCloseTag = "</tool_call>";
constexpr std::string_view kFunction = "<function=";
constexpr std::string_view kFunctionEnd = "</function>";
constexpr std::string_view kParameter = "<parameter=";
constexpr std::string_view kParameterEnd = "</parameter>";
constexpr std::string_view kParameterEndOnLine = "\n</parameter>";

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

std::string json_string(std::string_view text) {
  std::string quoted;
  append_json_string(quoted, text);
  return quoted;
}

bool is_json(std::string_view text) {
  JsonCursor cursor;
  // A number is over only when something follows it.
  return std::all_of(text.begin(), text.end(), [&](char c) { return cursor.push(c); }) && cursor.push(' ') &&
         cursor.complete();
}

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return result;
}

enum class ValueKind { kText, kJson, kInteger, kNumber, kBoolean };

ValueKind kind_of_name(std::string_view name) {
  if (name.starts_with("int") || name.starts_with("uint") || name == "long" || name == "short")
    return ValueKind::kInteger;
  if (name.starts_with("num") || name.starts_with("float") || name == "double") return ValueKind::kNumber;
  if (name == "boolean" || name == "bool") return ValueKind::kBoolean;
  if (name == "object" || name == "array" || name == "dict" || name == "list") return ValueKind::kJson;
  return ValueKind::kText;
}

/// What a property's schema says; text for properties that the schema does not have.
ValueKind kind_of_property(const json::value& schema) {
  const json::object* object = schema.if_object();
  if (object == nullptr) return ValueKind::kText;
  const json::value* type = object->if_contains("type");
  if (type != nullptr && type->is_string()) return kind_of_name(type->get_string());
  if (type != nullptr && type->is_array()) {
    for (const json::value& each : type->get_array())
      if (each.is_string() && each.get_string() != "null") return kind_of_name(each.get_string());
  }
  const bool choice = object->contains("anyOf") || object->contains("oneOf") || object->contains("$ref");
  return choice ? ValueKind::kJson : ValueKind::kText;
}

/// The JSON of a whole value.
std::string converted(ValueKind kind, std::string_view text) {
  std::string small = lower(text);
  if (small == "null") return small;
  switch (kind) {
    case ValueKind::kText:
      break;
    case ValueKind::kBoolean:
      if (small == "true" || small == "false") return small;
      break;
    case ValueKind::kInteger:
      if (text.find_first_not_of("-0123456789") == std::string_view::npos && is_json(text)) return std::string(text);
      break;
    case ValueKind::kNumber:
      if (text.find_first_not_of("-+.eE0123456789") == std::string_view::npos && is_json(text))
        return std::string(text);
      break;
    case ValueKind::kJson:
      if (is_json(text)) return std::string(text);
      break;
  }
  return json_string(text);
}

class Qwen3CoderParser final : public ToolParser {
 public:
  explicit Qwen3CoderParser(const json::array* tools) : tools_(tools) {}

 private:
  enum class Place { kText, kBetween, kAfterOpenTag, kFunctionName, kParameters, kKey, kValue, kAfterFunction };

  void step(char next, MessageDelta& news) override {
    switch (place_) {
      case Place::kText:
      case Place::kBetween:
        return look_for_call(next, news);
      case Place::kAfterOpenTag:
        if (expect_tag(next, {kFunction}, news) == kFunction) place_ = Place::kFunctionName;
        return;
      case Place::kFunctionName:
        if (read_name(next, news)) begin_call();
        return;
      case Place::kParameters: {
        const std::string_view tag = expect_tag(next, {kParameter, kFunctionEnd}, news);
        if (tag == kParameter) place_ = Place::kKey;
        if (tag == kFunctionEnd) end_call(news);
        return;
      }
      case Place::kKey:
        if (read_name(next, news)) begin_value(news);
        return;
      case Place::kValue:
        return read_value(next, news);
      case Place::kAfterFunction:
        return after_function(next, news);
    }
  }

  void look_for_call(char next, MessageDelta& news) {
    std::string plain;
    const std::string_view tag = opening_.push(next, plain);
    if (place_ == Place::kText) news.content += plain;
    if (tag.empty()) return;
    raw_ = tag;
    place_ = tag == kOpenTag ? Place::kAfterOpenTag : Place::kFunctionName;
  }

  /// White space and then one of the tags; the tag when it is complete, else "".
  std::string_view expect_tag(char next, std::initializer_list<std::string_view> tags, MessageDelta& news) {
    raw_ += next;
    if (word_.empty() && is_space(next)) return {};
    word_ += next;
    for (const std::string_view tag : tags) {
      if (!tag.starts_with(word_)) continue;
      if (tag.size() != word_.size()) return {};
      word_.clear();
      return tag;
    }
    fail(news);
    return {};
  }

  /// What stands before '>', into word_. Names have no line breaks.
  bool read_name(char next, MessageDelta& news) {
    raw_ += next;
    if (next == '>' && !word_.empty()) return true;
    if (next == '>' || next == '\n' || next == '<') {
      fail(news);
      return false;
    }
    word_ += next;
    return false;
  }

  void begin_call() {
    properties_ = find_properties(word_);
    name_ = std::exchange(word_, {});
    told_ = false;
    place_ = Place::kParameters;
  }

  /// `arguments` follow; the first ones tell of the call. What stands before them is out with them.
  void add_arguments(std::string_view arguments, MessageDelta& news) {
    if (!std::exchange(told_, true)) {
      news.begin_call(index_, name_);
      news.add_arguments(index_, "{");
    }
    news.add_arguments(index_, arguments);
    raw_.clear();
  }

  void begin_value(MessageDelta& news) {
    const json::value* schema = properties_ == nullptr ? nullptr : properties_->if_contains(word_);
    kind_ = schema == nullptr ? ValueKind::kText : kind_of_property(*schema);
    add_arguments((told_ ? ", " : "") + json_string(std::exchange(word_, {})) + ": ", news);
    value_.clear();
    value_open_ = value_begun_ = false;
    place_ = Place::kValue;
  }

  void read_value(char next, MessageDelta& news) {
    // The line break behind <parameter=...> is no part of the value, as the one before its end is not.
    if (!std::exchange(value_begun_, true) && next == '\n') return;
    std::string plain;
    const bool ended = !value_end_.push(next, plain).empty();
    value_ += plain;
    // A string may go out once it is certain not to be null.
    if (kind_ == ValueKind::kText && (value_open_ || value_.size() > 4)) news.add_arguments(index_, open_string());
    if (!ended) return;
    if (value_open_)
      news.add_arguments(index_, "\"");
    else
      news.add_arguments(index_, converted(kind_, value_));
    place_ = Place::kParameters;
  }

  /// What of a string is not out, as a part of one that may go on.
  std::string open_string() {
    std::string quoted = json_string(std::exchange(value_, {}));
    quoted.pop_back();
    return std::exchange(value_open_, true) ? quoted.substr(1) : quoted;
  }

  void end_call(MessageDelta& news) {
    add_arguments("}", news);
    ++index_;
    place_ = Place::kAfterFunction;
  }

  /// </tool_call>, or the next call where there is no such tag.
  void after_function(char next, MessageDelta& news) {
    const std::string_view tag = expect_tag(next, {kCloseTag, kOpenTag, kFunction}, news);
    if (tag.empty()) return;
    raw_ = tag;
    place_ = tag == kCloseTag ? Place::kBetween : tag == kOpenTag ? Place::kAfterOpenTag : Place::kFunctionName;
  }

  /// The text of a call whose name is out goes on as content from here.
  void fail(MessageDelta& news) { give_up(std::exchange(raw_, {}), news); }

  void end(MessageDelta& news) override {
    if (place_ == Place::kText) {
      news.content += opening_.take();
    } else if (place_ == Place::kValue) {
      if (!value_open_) news.add_arguments(index_, kind_ == ValueKind::kText ? open_string() : value_);
      set_malformed();
    } else if ((place_ == Place::kParameters || place_ == Place::kKey) && told_) {
      set_malformed();  // tags are nobody's text
    } else if (place_ != Place::kBetween && place_ != Place::kAfterFunction) {
      fail(news);
    }
  }

  const json::object* find_properties(std::string_view name) const {
    if (tools_ == nullptr) return nullptr;
    for (const json::value& tool : *tools_) {
      boost::system::error_code error;
      const json::value* found = tool.find_pointer("/function/name", error);
      if (found == nullptr || !found->is_string() || std::string_view(found->get_string()) != name) continue;
      const json::value* properties = tool.find_pointer("/function/parameters/properties", error);
      return properties == nullptr ? nullptr : properties->if_object();
    }
    return nullptr;
  }

  const json::array* tools_;
  Place place_ = Place::kText;
  TagFinder opening_{kOpenTag, kFunction};
  TagFinder value_end_{kParameterEndOnLine, kParameterEnd};
  std::string word_;  ///< the tag or name that is being read
  std::string raw_;   ///< text that is out in no form, for the case that the call fails
  const json::object* properties_ = nullptr;
  std::size_t index_ = 0;
  std::string name_;   ///< of the call
  bool told_ = false;  ///< its name and the beginning of its arguments are out
  ValueKind kind_ = ValueKind::kText;
  std::string value_;  ///< what of it is not out
  bool value_open_ = false;
  bool value_begun_ = false;
};

}  // namespace

std::unique_ptr<ToolParser> make_qwen3_coder_parser(const json::array* tools) {
  return std::make_unique<Qwen3CoderParser>(tools);
}

}  // namespace tandem::api
