// SPDX-License-Identifier: Apache-2.0
// What the template engine makes of Jinja, against outcomes recorded from Jinja2 itself
// (tests/golden/text/generate_jinja_cases.py): expressions, statements, whitespace, and what is an error.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <map>
#include <set>
#include <string>

#include "text/chat_template.h"
#include "unit/text/test_data.h"

namespace tandem::text {
namespace {

namespace json = boost::json;

/// Where we knowingly differ from Jinja2; none of it was found in a published chat template.
const std::map<std::string, std::string> kKnownDifferences = {
    {"{{ +n }}", "no unary plus"},
    {"{{ d.get is callable }}", "methods are not values"},
    {"{{ l.pop() }}", "lists cannot be changed"},
    {"{{ 017 }}", "leading zeros are taken"},
    {"{% for c in nothing %}x{% endfor %}", "None iterates as empty"},
    {"{% macro f(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, z=3) }}", "no varargs"},
};

Result<std::string> render(const std::string& source, const json::object& context) {
  TemplateTokens tokens;
  tokens.bos = std::string(context.at("bos_token").as_string());
  tokens.eos = std::string(context.at("eos_token").as_string());
  const Result<std::shared_ptr<const ChatTemplate>> compiled = ChatTemplate::compile(source, tokens);
  if (!compiled) return compiled.error();
  json::object extra = context;
  for (const char* own : {"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"}) {
    extra.erase(own);
  }
  ChatTemplate::Input input;
  input.messages = &context.at("messages").as_array();
  input.tools = &context.at("tools");
  input.documents = &context.at("documents");
  input.add_generation_prompt = context.at("add_generation_prompt").as_bool();
  input.extra = &extra;
  return (*compiled)->render(input);
}

TEST(Jinja, AgreesWithRecordedOutcomes) {
  const json::value recorded = read_test_json("tests/golden/text/jinja_cases.json");
  const json::object& context = recorded.at("context").as_object();
  int compared = 0;
  std::set<std::string> differing;
  for (const json::value& entry : recorded.at("cases").as_array()) {
    const std::string source(entry.at("template").as_string());
    const Result<std::string> text = render(source, context);
    const json::value* expected = entry.as_object().if_contains("expected");
    const std::string outcome = text ? *text : "error: " + text.error().message();
    const bool agrees = expected == nullptr ? !text : text && *text == expected->as_string();
    ++compared;
    if (agrees) continue;
    differing.insert(source);
    if (!kKnownDifferences.contains(source)) {
      ADD_FAILURE() << entry.at("name").as_string() << ": " << source
                    << "\n  Jinja2: " << (expected == nullptr ? entry.at("error") : *expected)
                    << "\n  here:   " << outcome;
    }
  }
  EXPECT_GT(compared, 400);
  for (const auto& [source, reason] : kKnownDifferences) {
    EXPECT_TRUE(differing.contains(source))
        << "no longer differs, remove it from the list: " << source << " (" << reason << ")";
  }
}

}  // namespace
}  // namespace tandem::text
