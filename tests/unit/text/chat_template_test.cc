// SPDX-License-Identifier: Apache-2.0
// Qwen3's own chat template against recorded renderings (model_formats.md 4.1), and the limits of hostile templates.
#include "text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <boost/json.hpp>
#include <ctime>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "support/sanitizers.h"
#include "unit/text/test_data.h"

namespace tandem::text {
namespace {

namespace json = boost::json;
using ::testing::AnyOf;
using ::testing::Eq;
using ::testing::HasSubstr;

std::shared_ptr<const ChatTemplate> compiled(std::string_view source, const TemplateTokens& tokens = {}) {
  Result<std::shared_ptr<const ChatTemplate>> result = ChatTemplate::compile(source, tokens);
  if (!result) throw std::runtime_error(result.error().to_string());
  return *result;
}

struct Variables {
  const char* messages = "[]";
  const char* tools = nullptr;
  bool add_generation_prompt = true;
  const char* extra = nullptr;
};

Result<std::string> render(const ChatTemplate& chat, const Variables& variables) {
  const json::value messages = json::parse(variables.messages);
  const json::value tools = variables.tools == nullptr ? json::value() : json::parse(variables.tools);
  const json::value extra = variables.extra == nullptr ? json::value() : json::parse(variables.extra);
  ChatTemplate::Input input;
  input.messages = &messages.as_array();
  input.tools = &tools;
  input.add_generation_prompt = variables.add_generation_prompt;
  input.extra = extra.is_null() ? nullptr : &extra.as_object();
  return chat.render(input);
}

std::string rendered(const ChatTemplate& chat, const Variables& variables) {
  const Result<std::string> text = render(chat, variables);
  return text ? *text : "error: " + text.error().to_string();
}

std::string rendered(std::string_view source, const char* extra = nullptr) {
  Variables variables;
  variables.extra = extra;
  return rendered(*compiled(source), variables);
}

class Qwen3Template : public ::testing::Test {
 protected:
  std::string of(const char* messages, bool add_generation_prompt = true, const char* tools = nullptr,
                 const char* extra = nullptr) {
    Variables variables;
    variables.messages = messages;
    variables.tools = tools;
    variables.add_generation_prompt = add_generation_prompt;
    variables.extra = extra;
    return rendered(*template_, variables);
  }

  std::shared_ptr<const ChatTemplate> template_ = compiled(
      std::string(read_test_json(".cache/tokenizers/qwen3/tokenizer_config.json").at("chat_template").as_string()));
};

TEST_F(Qwen3Template, UserAndGenerationPrompt) {
  const char* hi = R"([{"role": "user", "content": "Hi"}])";
  EXPECT_EQ(of(hi), "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  const std::string off = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
  EXPECT_EQ(of(hi, true, nullptr, R"({"enable_thinking": false})"), off);
  // Only the boolean false does it.
  for (const char* extra : {R"({"enable_thinking": true})", R"({"enable_thinking": "false"})",
                            R"({"enable_thinking": 0})", R"({"enable_thinking": null})", "{}"}) {
    EXPECT_EQ(of(hi, true, nullptr, extra), "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n") << extra;
  }
}

TEST_F(Qwen3Template, OlderTurnsLoseTheirThinking) {
  EXPECT_EQ(of(R"([{"role": "system", "content": "S"}, {"role": "user", "content": "Q1"},
                   {"role": "assistant", "content": "<think>\nr1\n</think>\n\nA1"},
                   {"role": "user", "content": "Q2"}])"),
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nQ1<|im_end|>\n<|im_start|>assistant\nA1<|im_end|>\n"
            "<|im_start|>user\nQ2<|im_end|>\n<|im_start|>assistant\n");
}

TEST_F(Qwen3Template, AFinalAnswerGetsAnEmptyThinkBlock) {
  EXPECT_EQ(of(R"([{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}])", false),
            "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nA<|im_end|>\n");
}

TEST_F(Qwen3Template, ToolLoopKeepsItsThinking) {
  const char* tools = R"([{"type": "function", "function": {"name": "get_weather", "description": null,
      "parameters": {"type": "object", "properties": {"items": {"type": "number", "minimum": 1.0}}}}}])";
  const std::string head =
      "<|im_start|>system\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
      "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
      R"({"type": "function", "function": {"name": "get_weather", "description": null, "parameters": )"
      R"({"type": "object", "properties": {"items": {"type": "number", "minimum": 1.0}}}}})"
      "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
      "<tool_call></tool_call> XML tags:\n<tool_call>\n"
      R"({"name": <function-name>, "arguments": <args-json-object>})"
      "\n</tool_call><|im_end|>\n";
  EXPECT_EQ(of(R"([{"role": "user", "content": "W?"},
                   {"role": "assistant", "content": "", "reasoning_content": "need tool", "tool_calls":
                     [{"type": "function", "function": {"name": "get_weather", "arguments": {"city": "北京"}}}]},
                   {"role": "tool", "content": "sunny"}, {"role": "tool", "content": "25C"}])",
               true, tools),
            head +
                "<|im_start|>user\nW?<|im_end|>\n<|im_start|>assistant\n<think>\nneed tool\n</think>\n\n<tool_call>\n"
                R"({"name": "get_weather", "arguments": {"city": "北京"}})"
                "\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\nsunny\n</tool_response>\n"
                "<tool_response>\n25C\n</tool_response><|im_end|>\n<|im_start|>assistant\n");
}

TEST_F(Qwen3Template, TwoCallsWithText) {
  EXPECT_THAT(of(R"([{"role": "user", "content": "Q"},
                     {"role": "assistant", "content": "text", "tool_calls": [
                       {"function": {"name": "f", "arguments": "{\"x\": 1}"}},
                       {"function": {"name": "g", "arguments": {}}}]},
                     {"role": "user", "content": "later"}])"),
              HasSubstr("assistant\ntext\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>\n"
                        "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call><|im_end|>"));
}

TEST_F(Qwen3Template, WhatItCannotHandleIsAnError) {
  for (const char* messages : {R"([{"role": "user", "content": [{"type": "text", "text": "Hi"}]}])",
                               R"([{"role": "user", "content": "Q"}, {"role": "assistant", "content": null}])"}) {
    Variables variables;
    variables.messages = messages;
    const Result<std::string> text = render(*template_, variables);
    ASSERT_FALSE(text) << *text;
    EXPECT_EQ(text.error().code(), Code::kInvalidArgument);
    EXPECT_THAT(text.error().message(), HasSubstr("line "));
  }
  EXPECT_FALSE(template_->wants_content_parts());
}

TEST_F(Qwen3Template, ThreadsRenderAtOnce) {
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (std::size_t thread = 0; thread < wrong.size(); ++thread) {
    threads.emplace_back([&, thread] {
      const std::string messages = R"([{"role": "user", "content": "Hi )" + std::to_string(thread) + R"("}])";
      for (int round = 0; round < 50; ++round) {
        const std::string expected =
            "<|im_start|>user\nHi " + std::to_string(thread) + "<|im_end|>\n<|im_start|>assistant\n";
        if (of(messages.c_str()) != expected) ++wrong[thread];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

TEST(ChatTemplate, TokensAndWhatOverridesThem) {
  TemplateTokens tokens;
  tokens.bos = "<s>";
  tokens.eos = "</s>";
  const char* source =
      "{{ bos_token }}|{{ eos_token }}|{{ pad_token is defined }}|{{ date_string }}|{{ tools is none }}|"
      "{{ documents is none }}|{{ add_generation_prompt }}";
  const auto chat = compiled(source, tokens);
  EXPECT_EQ(rendered(*chat, {}), "<s>|</s>|False||True|True|True");
  Variables variables;
  variables.extra = R"({"bos_token": "B", "date_string": "1 Jan", "add_generation_prompt": false})";
  EXPECT_EQ(rendered(*chat, variables), "B|</s>|False|1 Jan|True|True|False");
}

TEST(ChatTemplate, KwargsCannotReplaceTheRequest) {
  for (const char* extra : {R"({"messages": []})", R"({"tools": []})", R"({"documents": []})"}) {
    Variables variables;
    variables.extra = extra;
    const Result<std::string> text = render(*compiled("x"), variables);
    ASSERT_FALSE(text);
    EXPECT_EQ(text.error().code(), Code::kInvalidArgument);
    EXPECT_THAT(text.error().message(), HasSubstr("chat_template_kwargs"));
  }
}

TEST(ChatTemplate, NumbersKeepTheirKind) {
  const char* extra = R"({"v": [1, 1.0, -0.0, 1e20, 0.1, 18446744073709551615, -9223372036854775808, 1E5, 1.5e-7]})";
  EXPECT_EQ(rendered("{{ v|tojson }}", extra),
            "[1, 1.0, -0.0, 1e+20, 0.1, 18446744073709551615, -9223372036854775808, 100000.0, 1.5e-07]");
}

TEST(ChatTemplate, KeysKeepTheirOrder) {
  const char* extra = R"({"v": {"z": 1, "a": {"y": 1, "b": 2}, "m": 3, "0": 4}})";
  EXPECT_EQ(rendered("{{ v|tojson }}", extra), R"({"z": 1, "a": {"y": 1, "b": 2}, "m": 3, "0": 4})");
}

TEST(ChatTemplate, StrftimeNowIsLocalTime) {
  const auto now = [] {
    const std::time_t seconds = std::time(nullptr);
    std::tm broken{};
    localtime_r(&seconds, &broken);
    char text[64];
    return std::string(text, std::strftime(text, sizeof text, "%d %b %Y|%A %H:%M", &broken));
  };
  const std::string before = now();
  const std::string text = rendered("{{ strftime_now('%d %b %Y|%A %H:%M') }}");
  EXPECT_THAT(text, AnyOf(Eq(before), Eq(now())));
  EXPECT_EQ(rendered("{{ strftime_now('') }}"), "");
}

TEST(ChatTemplate, ErrorsSayWhatTheTemplateSays) {
  const Result<std::string> raised = render(
      *compiled("{%- macro check() %}{{ raise_exception('Roles must alternate') }}{% endmacro %}\n{{ check() }}"), {});
  ASSERT_FALSE(raised);
  EXPECT_EQ(raised.error().code(), Code::kInvalidArgument);
  EXPECT_EQ(raised.error().message(), "chat template: Roles must alternate");

  const Result<std::shared_ptr<const ChatTemplate>> syntax = ChatTemplate::compile("a\nb\n{% if %}", {});
  ASSERT_FALSE(syntax);
  EXPECT_EQ(syntax.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(syntax.error().message(), HasSubstr("line 3"));

  const Result<std::shared_ptr<const ChatTemplate>> encoding = ChatTemplate::compile("a\xff", {});
  ASSERT_FALSE(encoding);
  EXPECT_EQ(encoding.error().code(), Code::kInvalidArgument);
}

TEST(ChatTemplate, WantsContentParts) {
  for (const char* source :
       {"{% for m in messages %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}",
        "{% for m in messages %}{% if m['content'] is string %}x{% else %}{% for c in m['content'] %}y{% endfor %}"
        "{% endif %}{% endfor %}",
        "{% macro render(content) %}{% for item in content %}{{ item }}{% endfor %}{% endmacro %}",
        "{% for m in messages %}{% set content = m.content %}{% for p in content %}{% endfor %}{% endfor %}",
        "{% for c in messages[0].content | selectattr('type', 'equalto', 'text') %}{% endfor %}",
        "{% for c in messages[0].content[1:] %}{% endfor %}",
        "{% generation %}{% for c in messages[0].content %}{% endfor %}{% endgeneration %}"}) {
    EXPECT_TRUE(compiled(source)->wants_content_parts()) << source;
  }
  for (const char* source :
       {"{% for m in messages %}{{ m.content }}{% endfor %}", "{{ messages[0].content }}",
        "{# {% for c in content %} #}", "{% raw %}{% for c in content %}{% endfor %}{% endraw %}",
        "{% for c in contents %}{% endfor %}", "{% for line in m.content.split('x') %}{% endfor %}"}) {
    EXPECT_FALSE(compiled(source)->wants_content_parts()) << source;
  }
}

// Everything a template may do is bounded: it ends soon, with an error or a bounded text, and never with a crash.
class HostileTemplate : public ::testing::TestWithParam<std::string> {};

TEST_P(HostileTemplate, EndsSoon) {
  const std::clock_t start = std::clock();  // CPU time, which other processes do not lengthen
  const Result<std::shared_ptr<const ChatTemplate>> chat = ChatTemplate::compile(GetParam(), {});
  if (chat) {
    const Result<std::string> text = render(**chat, {});
    EXPECT_FALSE(text) << text->size();
    if (!text) {
      EXPECT_EQ(text.error().code(), Code::kInvalidArgument) << text.error().to_string();
    }
  }
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 20.0);
}

/// KiB that the process has in memory.
long resident_kib() {
  ::malloc_trim(0);
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmRSS:")) return std::stol(line.substr(6));
  return 0;
}

TEST(DeepTemplate, RendersOnAnyThreadAndTheThreadKeepsLittleOfIt) {
  const auto deep = ChatTemplate::compile(
      "{% set ns = namespace(x=[]) %}{% for a in range(300) %}{% for b in range(1000) %}{% set ns.x = [ns.x] %}"
      "{% endfor %}{% endfor %}{{ ns.x == ns.x }}",
      {});
  ASSERT_TRUE(deep) << deep.error().to_string();
  const auto render = [&deep] {
    const auto text = (*deep)->render({});
    ASSERT_TRUE(text) << text.error().to_string();
    EXPECT_EQ(*text, "True");
  };
  const long before = resident_kib();
  render();
  if (!TANDEM_SANITIZER_HAS_MALLOC) {
    EXPECT_LT(resident_kib(), before + 10 * 1024) << "it took some 30 MiB";
  }
  std::thread(render).join();
  render();
}

std::string repeated(const std::string& text, int count) {
  std::string all;
  for (int index = 0; index < count; ++index) all += text;
  return all;
}

INSTANTIATE_TEST_SUITE_P(
    Bounded, HostileTemplate,
    ::testing::Values(
        "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% "
        "endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) %}xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx{% endfor "
        "%}{% endfor %}",
        "{{ 'a' * 10000000000 }}", "{{ [0] * 10000000000 }}", "{% for i in range(1000000000000) %}{% endfor %}",
        "{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
        "{{ ([0] * 99999999)|tojson }}", "{{ ([0] * 99999999)|string }}", "{{ '{:>{}}'.format('x', 999999999) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro f(n) %}{{ f(n + 1) }}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        "{% for i in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}", "{{ 'x'.center(100000000000) }}",
        "{{ '%999999999d'|format(1) }}", "{{ '{:>999999999}'.format('x') }}",
        "{{ 'a'.replace('', 'b' * 100000) * 100000 }}", "{{ strftime_now('%A' * 100000) }}",
        "{{ range(100000)|map('string')|join('x' * 100000) }}",
        "{{ ('x' * 100000).join(range(100000)|map('string')|list) }}", repeated("{{ (", 1) + repeated("(", 100000),
        "{{ " + repeated("[", 100000), "{{ " + repeated("not ", 100000) + "x }}",
        "{{ " + repeated("-", 100000) + "1 }}", repeated("{% if true %}", 100000),
        "{{ x" + repeated(".a", 100000) + " }}",
        "{% if a %}" + repeated("{% elif a %}", 80000) + "{% endif %}{{ x.y.z }}",
        "{{ x" + repeated("|upper", 50000) + " }}", "{{ 1" + repeated(" ~ 1", 50000) + " }}",
        "{% set ns = namespace(x=[]) %}{% for a in range(999) %}{% for i in range(999) %}{% set ns.x = [ns.x] %}"
        "{% endfor %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x={}) %}{% for a in range(999) %}{% for i in range(999) %}{% set ns.x = {'k': ns.x} %}"
        "{% endfor %}{% endfor %}{{ ns.x == ns.x }}",
        "{% include 'chat template' %}", "{% extends 'chat template' %}",
        "{% import 'chat template' as x %}{{ x.y.z }}",
        "{% set ns = namespace(x=[]) %}{% for i in range(90000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x|tojson "
        "}}"),
    [](const auto& test) { return "case" + std::to_string(test.index); });

}  // namespace
}  // namespace tandem::text
