// SPDX-License-Identifier: Apache-2.0
// Tool calls and thoughts over HTTP; what is one is parsers_test.cc's matter.
#include "service_fixture.h"

namespace tandem::api {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr std::string_view kToolRequest =
    R"({"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":{"name":"f"}}])";

class ToolServiceTest : public ServiceTest {
 protected:
  ToolServiceTest() {
    config_.enable_auto_tool_choice = true;
    config_.tool_format = config::ToolFormat::kHermes;
    engine_.options_.max_model_len = 1000;
  }
  /// The engine says these pieces.
  void say(std::vector<std::string> pieces, FinishReason finish = FinishReason::kStop) {
    engine_.script = [this, pieces, finish](std::size_t index) {
      for (std::size_t i = 0; i < pieces.size(); ++i)
        engine_.say(index, pieces[i], i + 1 == pieces.size() ? std::optional(finish) : std::nullopt);
    };
  }
  json::object first_choice(const std::string& rest) {
    const std::string response = ask("/v1/chat/completions", std::string(kToolRequest) + rest + "}");
    EXPECT_EQ(status_of(response), 200) << response;
    return json::parse(body_of(response)).at("choices").at(0).as_object();
  }
  std::vector<std::string> stream(const std::string& rest) {
    return events("/v1/chat/completions", std::string(kToolRequest) + rest + ",\"stream\":true}");
  }
};

TEST_F(ToolServiceTest, CallsOfAWholeAnswer) {
  say({"<tool_call>", "\n{\"name\": \"f\", \"argum", "ents\": {\"a\": 1}}", "\n</tool_call>\n<tool_call>",
       "{\"name\": \"f\", \"arguments\": {}}</tool_call>"});
  const json::object choice = first_choice("");
  EXPECT_EQ(choice.at("finish_reason"), "tool_calls");
  const json::object& message = choice.at("message").as_object();
  EXPECT_TRUE(message.at("content").is_null());
  const json::array& calls = message.at("tool_calls").as_array();
  ASSERT_THAT(calls, SizeIs(2));
  EXPECT_EQ(calls[0].at("function"), json::parse(R"({"name":"f","arguments":"{\"a\": 1}"})"));
  EXPECT_EQ(calls[1].at("function"), json::parse(R"({"name":"f","arguments":"{}"})"));
  EXPECT_EQ(calls[0].at("type"), "function");
  EXPECT_TRUE(std::regex_match(std::string(calls[0].at("id").as_string()), std::regex("chatcmpl-tool-[0-9a-f]{32}")));
  EXPECT_NE(calls[0].at("id"), calls[1].at("id"));
  EXPECT_FALSE(engine_.submitted(0).request.sampling->skip_special_tokens);
  EXPECT_EQ(first_choice(",\"parallel_tool_calls\":false").at("message").at("tool_calls").as_array().size(), 1U);
}

TEST_F(ToolServiceTest, CallsOfAStream) {
  say({"Yes.", "<tool_call>", "{\"name\": \"f\", ", "\"arguments\": {\"a\":", " 1}}", "</tool_call>"});
  std::vector<std::string> deltas;
  std::string last_reason;
  for (const std::string& event : stream("")) {
    if (event == "[DONE]") continue;
    const json::value choice = json::parse(event).at("choices").at(0);
    deltas.push_back(std::regex_replace(std::string(json::serialize(choice.at("delta"))),
                                        std::regex("chatcmpl-tool-[0-9a-f]{32}"), "ID"));
    if (!choice.at("finish_reason").is_null()) last_reason = choice.at("finish_reason").as_string();
  }
  EXPECT_THAT(deltas, ElementsAre(R"({"role":"assistant","content":""})", R"({"content":"Yes."})",
                                  R"({"tool_calls":[{"id":"ID","type":"function","index":0,"function":{"name":"f"}}]})",
                                  R"({"tool_calls":[{"index":0,"function":{"arguments":"{\"a\":"}}]})",
                                  R"({"tool_calls":[{"index":0,"function":{"arguments":" 1}"}}]})", "{}"));
  EXPECT_EQ(last_reason, "tool_calls");
}

TEST_F(ToolServiceTest, ABrokenCallIsTextInAWholeAnswer) {
  const std::string text = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call><tool_call>{\"name\"";
  say({text}, FinishReason::kLength);
  const json::object choice = first_choice("");
  EXPECT_EQ(choice.at("finish_reason"), "length");
  EXPECT_EQ(choice.at("message").at("content"), json::value(text));
  EXPECT_TRUE(choice.at("message").at("tool_calls").as_array().empty());
}

TEST_F(ToolServiceTest, WithToolChoiceNoneAllTextIsContent) {
  const std::string text = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
  say({text});
  const json::object choice = first_choice(",\"tool_choice\":\"none\"");
  EXPECT_EQ(choice.at("finish_reason"), "stop");
  EXPECT_EQ(choice.at("message").at("content"), json::value(text));
  EXPECT_TRUE(engine_.submitted(0).request.sampling->skip_special_tokens);
}

TEST_F(ToolServiceTest, ThoughtsHaveBothNames) {
  config_.reasoning_format = config::ReasoningFormat::kQwen3;
  say({"<think>", "hm", "</think>", "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>"});
  const json::object message = first_choice("").at("message").as_object();
  EXPECT_EQ(message.at("reasoning"), "hm");
  EXPECT_EQ(message.at("reasoning_content"), "hm");
  EXPECT_TRUE(message.at("content").is_null());
  EXPECT_THAT(message.at("tool_calls").as_array(), SizeIs(1));
  EXPECT_TRUE(first_choice(",\"include_reasoning\":false").at("message").at("reasoning").is_null());
  const std::vector<std::string> list = stream("");
  ASSERT_GE(list.size(), 3U);
  EXPECT_THAT(list[1], HasSubstr(R"("delta":{"reasoning":"hm","reasoning_content":"hm"})"));
}

TEST_F(ToolServiceTest, WithoutThinkingTextIsContent) {
  config_.reasoning_format = config::ReasoningFormat::kQwen3;
  say({"plain"});
  EXPECT_EQ(first_choice("").at("message").at("reasoning"), "plain");
  const json::object off = first_choice(",\"chat_template_kwargs\":{\"enable_thinking\":false}");
  EXPECT_EQ(off.at("message").at("content"), "plain");
  EXPECT_TRUE(off.at("message").at("reasoning").is_null());
}

}  // namespace
}  // namespace tandem::api
