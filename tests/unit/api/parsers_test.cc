// SPDX-License-Identifier: Apache-2.0
// Tool and reasoning parsers: what they find in recorded outputs, that it does not depend on how the text is cut into
// pieces, that no character is lost when a call turns out to be none, and that all of it holds wherever a text is cut
// off.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <fstream>
#include <tuple>

#include "api/parsers/json_cursor.h"
#include "api/parsers/message_parser.h"

namespace tandem::api {

static void PrintTo(const ToolCall& call, std::ostream* out) { *out << call.name << call.arguments; }
static bool operator==(const ToolCall& a, const ToolCall& b) {
  return std::tie(a.name, a.arguments) == std::tie(b.name, b.arguments);
}

namespace {

namespace json = boost::json;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct Recorded {
  config::ToolFormat format = config::ToolFormat::kNone;
  std::string text;
  std::string content;  ///< of a whole answer
  json::array calls;
};

std::vector<Recorded> recorded_outputs() {
  std::ifstream file("tests/unit/api/parsers/tool_outputs.jsonl");
  std::vector<Recorded> list;
  for (std::string line; std::getline(file, line);) {
    const json::object object = json::parse(line).as_object();
    const std::string_view name = object.at("format").as_string();
    Recorded& output = list.emplace_back();
    output.format = name == "hermes"        ? config::ToolFormat::kHermes
                    : name == "llama3_json" ? config::ToolFormat::kLlama3Json
                                            : config::ToolFormat::kQwen3Coder;
    output.text = object.at("text").as_string();
    output.content = object.at("content").as_string();
    output.calls = object.at("calls").as_array();
  }
  return list;
}

/// The tool that make_outputs.py has in mind.
std::shared_ptr<const json::array> declared_tools() {
  return std::make_shared<const json::array>(json::parse(R"([{"type":"function","function":{"name":"f","parameters":
    {"type":"object","properties":{"s":{"type":"string"},"i":{"type":"integer"},"x":{"type":"number"},
     "b":{"type":"boolean"},"o":{"type":"object"},"l":{"type":"array"},"u":{"type":["null","integer"]},
     "any":{"anyOf":[]}}}}}])")
                                                 .as_array());
}

MessagePlan tool_plan(config::ToolFormat format) {
  MessagePlan plan;
  plan.tools = ToolMode::kAuto;
  plan.format = format;
  plan.declared_tools = declared_tools();
  return plan;
}

/// A message, and its deltas put together as a client does it.
struct Parsed {
  std::string reasoning, content;
  std::vector<ToolCall> calls;
  bool malformed = false;

  bool operator==(const Parsed& other) const {
    return std::tie(reasoning, content, malformed, calls) ==
           std::tie(other.reasoning, other.content, other.malformed, other.calls);
  }
};
void PrintTo(const Parsed& parsed, std::ostream* out) {
  *out << "reasoning [" << parsed.reasoning << "] content [" << parsed.content << "] malformed " << parsed.malformed;
  for (const ToolCall& call : parsed.calls) *out << " call " << call.name << call.arguments;
}

Parsed parse(const MessagePlan& plan, const std::vector<std::string_view>& pieces) {
  int next_id = 0;
  MessageParser parser(plan, [&next_id] { return "id" + std::to_string(next_id++); });
  Parsed joined;
  for (std::size_t i = 0; i <= pieces.size(); ++i) {
    const bool last = i == pieces.size();
    const MessageDelta delta = parser.feed(last ? "" : pieces[i], last);
    joined.reasoning += delta.reasoning;
    joined.content += delta.content;
    for (const MessageDelta::Call& call : delta.calls) {
      EXPECT_FALSE(call.arguments.empty()) << call.name;
      if (call.first) {
        EXPECT_EQ(call.index, joined.calls.size());
        joined.calls.push_back({"", call.name, ""});
      }
      joined.calls.at(call.index).arguments += call.arguments;
    }
  }
  joined.malformed = parser.malformed();
  EXPECT_EQ(joined.content, parser.content());
  EXPECT_EQ(joined.calls, parser.calls());
  return joined;
}

Parsed parse_bytes(const MessagePlan& plan, std::string_view text) {
  std::vector<std::string_view> bytes;
  for (std::size_t i = 0; i < text.size(); ++i) bytes.push_back(text.substr(i, 1));
  return parse(plan, bytes);
}

/// All ways to cut the text in two, then byte by byte.
void expect_same_for_every_split(const MessagePlan& plan, const std::string& text) {
  const std::string_view view = text;
  const Parsed whole = parse(plan, {view});
  for (std::size_t cut = 1; cut < view.size(); ++cut)
    ASSERT_EQ(parse(plan, {view.substr(0, cut), view.substr(cut)}), whole) << "cut at " << cut << " of " << text;
  ASSERT_EQ(parse_bytes(plan, view), whole) << text;
}

/// An output that ends anywhere: a stream says what a whole answer is, no call is taken back, and without calls all of
/// the text is content.
void expect_same_wherever_it_is_cut_off(const MessagePlan& plan, const std::string& text) {
  std::size_t num_calls = 0;
  for (std::size_t end = 0; end <= text.size(); ++end) {
    const std::string_view output = std::string_view(text).substr(0, end);
    const Parsed whole = parse(plan, {output});
    ASSERT_EQ(parse_bytes(plan, output), whole) << output;
    ASSERT_GE(whole.calls.size(), num_calls) << output;
    num_calls = whole.calls.size();
    if (num_calls == 0) {
      ASSERT_EQ(whole.content, output);
    }
  }
}

TEST(ToolParsers, FindWhatAWholeParseFinds) {
  const std::vector<Recorded> outputs = recorded_outputs();
  ASSERT_GE(outputs.size(), 200U);
  for (const Recorded& output : outputs) {
    const Parsed parsed = parse(tool_plan(output.format), {output.text});
    if (output.calls.empty()) {
      EXPECT_TRUE(parsed.malformed || parsed.calls.empty()) << output.text;
      if (parsed.calls.empty()) {
        EXPECT_EQ(parsed.content, output.content) << output.text;
      }
      continue;
    }
    EXPECT_FALSE(parsed.malformed) << output.text;
    EXPECT_EQ(parsed.content, output.content) << output.text;
    ASSERT_EQ(parsed.calls.size(), output.calls.size()) << output.text;
    for (std::size_t i = 0; i < parsed.calls.size(); ++i) {
      EXPECT_EQ(parsed.calls[i].name, output.calls[i].at("name").as_string());
      boost::system::error_code error;
      EXPECT_EQ(json::parse(parsed.calls[i].arguments, error), output.calls[i].at("arguments"))
          << output.text << " gave " << parsed.calls[i].arguments;
    }
  }
}

TEST(ToolParsers, EverySplitOfEveryOutputGivesTheSame) {
  for (const Recorded& output : recorded_outputs()) expect_same_for_every_split(tool_plan(output.format), output.text);
}

TEST(ToolParsers, EveryOutputCanBeCutOffAnywhere) {
  for (const Recorded& output : recorded_outputs())
    expect_same_wherever_it_is_cut_off(tool_plan(output.format), output.text);
}

TEST(ToolParsers, ACallIsToldWhenItsArgumentsBegin) {
  const std::string_view none = "<tool_call>{\"name\": \"f\"}</tool_call>";
  EXPECT_EQ(parse_bytes(tool_plan(config::ToolFormat::kHermes), none).content, none);
  // A second one that breaks off is content behind the first.
  const Parsed second = parse_bytes(tool_plan(config::ToolFormat::kLlama3Json),
                                    R"({"name": "f", "parameters": {}};{"name": "f", "parameters":)");
  EXPECT_EQ(second.calls, std::vector<ToolCall>({{"", "f", "{}"}}));
  EXPECT_EQ(second.content, R"(;{"name": "f", "parameters":)");
  EXPECT_TRUE(second.malformed);
  const std::string_view text = "<tool_call><function=f>some text";
  EXPECT_EQ(parse_bytes(tool_plan(config::ToolFormat::kQwen3Coder), text).content, text);
}

TEST(ToolParsers, ACallThatIsCutOffHasItsArgumentsSoFar) {
  const MessagePlan plan = tool_plan(config::ToolFormat::kQwen3Coder);
  for (const auto& [rest, arguments] : std::initializer_list<std::pair<const char*, const char*>>{
           {"<parameter=s>a \"b\" c</para", R"({"s": "a \"b\" c)"},
           {"<parameter=s>nul", R"({"s": "nul)"},
           {"<parameter=s>", R"({"s": ")"},
           {"<parameter=i>12", R"({"i": 12)"},
           {"<parameter=o>{\"a\": [1", R"({"o": {"a": [1)"},
           {"<parameter=i>1</parameter>\n<par", R"({"i": 1)"}}) {
    const Parsed parsed = parse(plan, {std::string("<tool_call><function=f>") + rest});
    EXPECT_EQ(parsed.calls, std::vector<ToolCall>({{"", "f", arguments}})) << rest;
    EXPECT_EQ(parsed.content, "") << rest;
    EXPECT_TRUE(parsed.malformed);
  }
}

TEST(ToolParsers, ArgumentsAreTheModelsOwnTextAndComeAsTheyAreWritten) {
  MessageParser parser(tool_plan(config::ToolFormat::kHermes), [] { return "id"; });
  EXPECT_TRUE(parser.feed("<tool_call>{\"name\": \"f", false).empty());
  const MessageDelta named = parser.feed("\", \"arguments\": { \"a\":", false);
  ASSERT_EQ(named.calls.size(), 1U);
  EXPECT_TRUE(named.calls[0].first);
  EXPECT_EQ(named.calls[0].name, "f");
  EXPECT_EQ(named.calls[0].arguments, "{ \"a\":");
  const MessageDelta more = parser.feed(" 1.50}", false);
  ASSERT_EQ(more.calls.size(), 1U);
  EXPECT_FALSE(more.calls[0].first);
  EXPECT_EQ(more.calls[0].arguments, " 1.50}");
  EXPECT_TRUE(parser.feed("}\n</tool_call>", true).empty());
  EXPECT_EQ(parser.calls()[0].arguments, "{ \"a\": 1.50}");
  EXPECT_FALSE(parser.malformed());
}

TEST(ToolParsers, LongStringsOfQwen3CoderAreNotHeldBack) {
  MessageParser parser(tool_plan(config::ToolFormat::kQwen3Coder), [] { return "id"; });
  parser.feed("<tool_call>\n<function=f>\n<parameter=s>\n", false);
  const MessageDelta delta = parser.feed("line one\nline", false);
  ASSERT_EQ(delta.calls.size(), 1U);
  EXPECT_EQ(delta.calls[0].arguments, "\"line one\\nline");
}

TEST(ToolParsers, WhatACallTurnsOutNotToBeStaysText) {
  const MessagePlan plan = tool_plan(config::ToolFormat::kHermes);
  // Nothing was told of the call: all of it is content, and all that follows.
  const std::string_view text = "A<tool_call>{\"name\": 1}</tool_call>B<tool_call>{\"name\":\"f\",\"arguments\":{}}";
  const Parsed early = parse(plan, {text});
  EXPECT_EQ(early.content, text);
  EXPECT_THAT(early.calls, IsEmpty());
  // The call was out: what is left goes on as content.
  const Parsed late = parse(plan, {"A<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": oops}}</tool_call>"});
  EXPECT_TRUE(late.malformed);
  EXPECT_EQ(late.content, "Aoops}}</tool_call>");
  EXPECT_EQ(late.calls, std::vector<ToolCall>({{"", "f", "{\"a\": "}}));
}

TEST(ToolParsers, OnlyTheFirstCallCountsWithoutParallelCalls) {
  MessagePlan plan = tool_plan(config::ToolFormat::kHermes);
  plan.parallel_calls = false;
  const std::string call = "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>";
  EXPECT_EQ(parse(plan, {call + call}).calls.size(), 1U);
}

TEST(ToolParsers, RequiredCallsAreAnArray) {
  MessagePlan plan;
  plan.tools = ToolMode::kRequired;
  const std::string text = R"( [ {"name": "f", "parameters": {"a": [1]}} ,
    {"name": "g"}, {"name":"h","parameters":{}}] )";
  EXPECT_EQ(parse(plan, {text}).calls,
            std::vector<ToolCall>({{"", "f", "{\"a\": [1]}"}, {"", "g", "{}"}, {"", "h", "{}"}}));
  EXPECT_EQ(parse(plan, {text}).content, "");
  expect_same_for_every_split(plan, text);
  for (const char* cut : {"", "[", "[{\"name\": \"f\"", "[{\"name\": \"f\", \"parameters\": {}}", "[]", "{}"}) {
    EXPECT_TRUE(parse(plan, {cut}).malformed) << cut;
    expect_same_for_every_split(plan, cut);
  }
  expect_same_wherever_it_is_cut_off(plan, text);
  const Parsed second = parse(plan, {R"([{"name": "f", "parameters": {}}, {"name": "g", "param)"});
  EXPECT_EQ(second.calls, std::vector<ToolCall>({{"", "f", "{}"}}));
  EXPECT_EQ(second.content, R"( {"name": "g", "param)") << "brackets and commas of the array are nobody's text";
}

TEST(ToolParsers, ANamedToolTakesAllTextAsArguments) {
  MessagePlan plan;
  plan.tools = ToolMode::kNamed;
  plan.tool_name = "f";
  EXPECT_EQ(parse(plan, {"{\"a\":", " 1}"}).calls, std::vector<ToolCall>({{"", "f", "{\"a\": 1}"}}));
  expect_same_for_every_split(plan, "{\"a\": \"é\"}");
  expect_same_wherever_it_is_cut_off(plan, "{\"a\": \"é\"}");
}

struct Thought {
  bool starts_thinking;
  std::string text, reasoning, content;
};

TEST(ReasoningParser, SplitsThoughtsFromTheAnswer) {
  const std::vector<Thought> cases = {
      {true, "<think>a</think>b", "a", "b"},
      {true, "a</think>b", "a", "b"},
      {true, "a", "a", ""},
      {true, "<think>a", "a", ""},
      {true, "<think>a</think>", "a", ""},
      {true, "\n<think>\nthought\n</think>\n\nanswer", "\nthought\n", "\n\nanswer"},
      {true, "a<tool_call>x", "a<tool_call>x", ""},
      {true, "a </thin b", "a </thin b", ""},
      {true, "a</think>b</think>c", "a", "b</think>c"},
      {true, "<thinking>a</think>b", "<thinking>a", "b"},
      {true, "  ", "  ", ""},
      {true, "", "", ""},
      {true, "日本<</think>語", "日本<", "語"},
      {false, "a", "", "a"},
      {false, "<think>a</think>b", "a", "b"},
      {false, "<thi", "", "<thi"},
      {false, "a<think>b</think>c", "", "a<think>b</think>c"},
      {false, "\n\nanswer", "", "\n\nanswer"},
  };
  for (const Thought& each : cases) {
    MessagePlan plan;
    plan.reasoning = true;
    plan.starts_thinking = each.starts_thinking;
    const Parsed parsed = parse(plan, {each.text});
    EXPECT_EQ(parsed.reasoning, each.reasoning) << each.text;
    EXPECT_EQ(parsed.content, each.content) << each.text;
    expect_same_for_every_split(plan, each.text);
  }
}

TEST(ReasoningParser, PromptsTellHowTheAnswerBegins) {
  EXPECT_TRUE(prompt_starts_thinking("<|im_start|>assistant\n<think>\n", false));
  EXPECT_FALSE(prompt_starts_thinking("<|im_start|>assistant\n<think>\n\n</think>\n\n", true));
  EXPECT_TRUE(prompt_starts_thinking("an older answer </think> there\n<|im_start|>assistant\n", true));
  EXPECT_FALSE(prompt_starts_thinking("", false));
}

TEST(MessageParser, CallsAreLookedForInTheAnswerOnly) {
  MessagePlan plan = tool_plan(config::ToolFormat::kHermes);
  plan.reasoning = true;
  plan.starts_thinking = true;
  const std::string call = "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>";
  const std::string text = "maybe " + call + "</think>\n" + call;
  const Parsed parsed = parse(plan, {text});
  EXPECT_EQ(parsed.reasoning, "maybe " + call);
  EXPECT_EQ(parsed.content, "\n");
  EXPECT_EQ(parsed.calls, std::vector<ToolCall>({{"", "f", "{}"}}));
  expect_same_for_every_split(plan, text);
  plan.show_reasoning = false;
  EXPECT_EQ(parse(plan, {text}).reasoning, "");
}

TEST(MessageParser, HalfACharacterInArgumentsIsNoCall) {
  // Found by fuzzing: a client that sends such a call back would be refused, as many JSON parsers refuse it.
  const MessagePlan plan = tool_plan(config::ToolFormat::kLlama3Json);
  const std::string text = R"({"name": "f", "parameters": {"text": "\u65e5\u672c \ud83cXudf0d\n\ttab"}})";
  const Parsed parsed = parse(plan, {text});
  EXPECT_TRUE(parsed.malformed);
  expect_same_for_every_split(plan, text);
}

TEST(JsonCursor, TakesJsonAndNothingElse) {
  const auto accepts = [](std::string_view text) {
    JsonCursor cursor;
    for (const char c : text)
      if (!cursor.push(c)) return false;
    return cursor.push(' ') && cursor.complete();
  };
  for (const char* good : {"{}", "[]", " [ 1 , -2.5e+3, 0, 0.1E1 ] ", R"({"a":{"b":[{}]},"c":"\"\\\u00e9\/"})", "true",
                           "null", "-0", "\"\"", "\"日本\"", "[[[[1]]]]", R"("\uD83c\udf0d\n")", "1e-00000308"})
    EXPECT_TRUE(accepts(good)) << good;
  for (const char* bad : {"",
                          "{",
                          "}",
                          "[1,]",
                          "{\"a\":1,}",
                          "{a:1}",
                          "01",
                          "1.",
                          "+1",
                          ".5",
                          "1e",
                          "-",
                          "tru",
                          "nul",
                          "{\"a\" 1}",
                          "[1 2]",
                          "\"\\x\"",
                          "\"\\u12g4\"",
                          "\"a\nb\"",
                          "{]",
                          "[}",
                          "NaN",
                          "{\"a\":1}x",
                          "{1:2}",
                          "'a'",
                          R"("\ud83cX")",
                          R"("\ud83c")",
                          R"("\ud83c\n")",
                          R"("\ud83c\u0041")",
                          R"("\udf0d")",
                          R"("\ud83c\ud83c")",
                          "1E+777777777"})
    EXPECT_FALSE(accepts(bad)) << bad;
  EXPECT_FALSE(accepts(std::string(100'000, '[')));
}

}  // namespace
}  // namespace tandem::api
