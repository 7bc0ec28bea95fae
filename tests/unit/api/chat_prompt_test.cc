// SPDX-License-Identifier: Apache-2.0
#include "api/chat_prompt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "api_support.h"

namespace tandem::api {
namespace {

namespace json = boost::json;
using ::testing::HasSubstr;

class ChatPromptTest : public ::testing::Test {
 protected:
  ChatPromptTest() { use_template(test::kTestTemplate); }

  void use_template(std::string_view source) {
    ServiceParts parts;
    parts.engine = &engine_;
    parts.metrics = &registry_;
    auto compiled = text::ChatTemplate::compile(source, {});
    EXPECT_TRUE(compiled) << compiled.error().message();
    parts.chat_template = *compiled;
    context_ = std::make_unique<Context>(config_, parts);
  }
  Outcome<ChatPrompt> render(const std::string& body) {
    body_ = json::parse(body);
    return render_chat_prompt(*context_, Fields(body_.as_object()));
  }
  std::string text(const std::string& body) {
    auto prompt = render(body);
    EXPECT_TRUE(prompt) << prompt.error().message;
    return prompt ? prompt->text : std::string();
  }
  std::string error(const std::string& body) {
    auto prompt = render(body);
    EXPECT_FALSE(prompt) << body;
    return prompt ? std::string() : prompt.error().message;
  }

  test::FakeEngine engine_;
  obs::Registry registry_;
  config::ServeConfig config_ = test::test_config();
  std::unique_ptr<Context> context_;
  json::value body_;
};

TEST_F(ChatPromptTest, PartsAreJoinedForTemplatesThatWantText) {
  EXPECT_EQ(
      text(
          R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"input_text","text":"b"},"c"]}]})"),
      "<user>a\nb\nc</user><assistant>");
  EXPECT_EQ(text(R"({"messages":[{"role":"user","content":[{"type":"text","text":""},{"type":"text","text":"b"}]}]})"),
            "<user>\nb</user><assistant>");
  EXPECT_EQ(text(R"({"messages":[{"role":"user","content":null}],"add_generation_prompt":false})"), "<user></user>");
  EXPECT_THAT(error(R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]})"),
              HasSubstr("content part of type 'image_url' is not supported"));
}

TEST_F(ChatPromptTest, PartsStayForTemplatesThatLoopOverThem) {
  use_template("{% for m in messages %}{% for c in m.content %}({{ c.type }}:{{ c.text }}){% endfor %}{% endfor %}");
  EXPECT_EQ(text(R"({"messages":[{"role":"user","content":"a"}]})"), "(text:a)");
  config_.content_format = config::ContentFormat::kString;
  use_template("{% for m in messages %}{{ m.content }}{% for c in m.content %}{% endfor %}{% endfor %}");
  EXPECT_EQ(text(R"({"messages":[{"role":"user","content":"a"}]})"), "a");
}

TEST_F(ChatPromptTest, ArgumentsOfToolCallsBecomeObjects) {
  use_template(
      "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }};{% endfor %}{% "
      "endfor %}");
  const auto call = [](const std::string& arguments) {
    return R"({"messages":[{"role":"assistant","content":null,"tool_calls":[{"type":"function","function":{"name":"f","arguments":)" +
           arguments + "}}]}]}";
  };
  EXPECT_EQ(text(call(R"("{\"city\": \"北京\", \"n\": 1}")")), R"({"city": "北京", "n": 1};)");
  EXPECT_EQ(text(call(R"("")")), "{};");
  EXPECT_EQ(text(call("null")), "{};");
  EXPECT_EQ(text(call(R"({"x":1})")), R"({"x": 1};)");
  EXPECT_THAT(error(call(R"("{oops")")), HasSubstr("arguments of a tool call are not JSON"));
  EXPECT_EQ(text(R"({"messages":[{"role":"assistant","content":"x","tool_calls":[]}]})"), "");
}

TEST_F(ChatPromptTest, ToolsAreRenderedInFullWithNoneAndCanBeHidden) {
  const std::string body =
      R"({"messages":[{"role":"user","content":"a"}],"tool_choice":"none","tools":[{"function":{"parameters":{"b":1,"a":2},"name":"f"},"type":"function"}]})";
  EXPECT_EQ(
      text(body),
      "<user>a</user>[[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": null, \"parameters\": "
      "{\"b\": 1, \"a\": 2}}}]]<assistant>");
  config_.exclude_tools_when_tool_choice_none = true;
  use_template(test::kTestTemplate);
  EXPECT_EQ(text(body), "<user>a</user><assistant>");
  EXPECT_THAT(error(R"({"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function"}]})"),
              HasSubstr("a tool needs a 'function'"));
}

TEST_F(ChatPromptTest, TheFinalMessageCanBeContinued) {
  auto prompt = render(
      R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"The answer "}],"continue_final_message":true})");
  ASSERT_TRUE(prompt) << prompt.error().message;
  EXPECT_EQ(prompt->text, "<user>q</user><assistant>The answer ");
  EXPECT_EQ(prompt->role, "assistant");
  EXPECT_EQ(prompt->last_content, "The answer ");
  use_template("{% for m in messages %}{{ m.role }}{% endfor %}");
  EXPECT_THAT(error(R"({"messages":[{"role":"user","content":"q"}],"continue_final_message":true})"),
              HasSubstr("continue_final_message"));
}

TEST_F(ChatPromptTest, TemplateVariablesAndErrors) {
  use_template(
      "{{ x }}{% if enable_thinking is defined and enable_thinking is false %}!{% endif %}{{ raise_exception('no way') "
      "if boom }}");
  EXPECT_EQ(
      text(R"({"messages":[{"role":"user","content":"q"}],"chat_template_kwargs":{"x":"y","enable_thinking":false}})"),
      "y!");
  EXPECT_THAT(error(R"({"messages":[{"role":"user","content":"q"}],"chat_template_kwargs":{"boom":true}})"),
              HasSubstr("no way"));
  config_.trust_request_chat_template = true;
  use_template("a");
  EXPECT_EQ(text(R"({"messages":[{"role":"user","content":"q"}],"chat_template":"own {{ messages[0].content }}"})"),
            "own q");
  EXPECT_FALSE(render(R"({"messages":[{"role":"user","content":"q"}],"chat_template":"{% if"})"));
}

TEST_F(ChatPromptTest, MessagesMustBeMessages) {
  for (const char* messages : {"null", "\"hello\"", "[]", "[1]", "[{}]", R"([{"role":1,"content":"x"}])",
                               R"([{"role":"user","content":5}])"}) {
    auto prompt = render(std::string("{\"messages\":") + messages + "}");
    ASSERT_FALSE(prompt) << messages;
    EXPECT_EQ(prompt.error().status, 400) << messages;
  }
}

TEST_F(ChatPromptTest, WithoutATemplateChatIsRefusedWithAWayOut) {
  ServiceParts parts;
  parts.engine = &engine_;
  parts.metrics = &registry_;
  context_ = std::make_unique<Context>(config_, parts);
  EXPECT_THAT(error(R"({"messages":[{"role":"user","content":"q"}]})"), HasSubstr("--chat-template"));
}

}  // namespace
}  // namespace tandem::api
