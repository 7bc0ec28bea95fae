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
                                  R"({"tool_calls":[{"id":"ID","type":"function","index":0,"function":)"
                                  R"({"name":"f","arguments":"{\"a\":"}}]})",
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

/// What a client makes of a stream: a message as in a whole answer, and the reason.
json::object joined(const std::vector<std::string>& events) {
  json::object message{{"content", ""}, {"reasoning", ""}, {"tool_calls", json::array()}};
  const auto append = [](json::value& to, const json::object& from, const char* name) {
    if (const json::value* more = from.if_contains(name); more != nullptr && !more->is_null())
      to = std::string(to.as_string()) + std::string(more->as_string());
  };
  for (const std::string& event : events) {
    if (event == "[DONE]") continue;
    const json::object choice = json::parse(event).at("choices").at(0).as_object();
    const json::object& delta = choice.at("delta").as_object();
    append(message["content"], delta, "content");
    append(message["reasoning"], delta, "reasoning");
    json::array& calls = message["tool_calls"].as_array();
    for (const json::value& call : delta.contains("tool_calls") ? delta.at("tool_calls").as_array() : json::array()) {
      const json::object& function = call.at("function").as_object();
      EXPECT_TRUE(function.contains("arguments"));
      if (call.as_object().contains("id"))
        calls.push_back(function);
      else
        append(calls.at(call.at("index").as_int64()).as_object()["arguments"], function, "arguments");
    }
    if (!choice.at("finish_reason").is_null()) message["finish_reason"] = choice.at("finish_reason");
  }
  return message;
}

struct AStreamAndTheWholeAnswer : ToolServiceTest {
  /// The engine's output ends anywhere in `text`; `fields` are further members of the request.
  void expect_same_wherever_it_is_cut_off(const std::string& text, const std::string& fields) {
    std::string output;
    engine_.script = [this, &output](std::size_t index) {
      for (std::size_t i = 0; i < output.size(); ++i) engine_.say(index, output.substr(i, 1));
      engine_.say(index, "", FinishReason::kLength);
    };
    for (std::size_t end = 0; end <= text.size(); ++end) {
      output = text.substr(0, end);
      const json::object choice = first_choice(fields);
      const json::object& message = choice.at("message").as_object();
      const json::object streamed = joined(stream(fields));
      if (fields.find("tool_choice") == std::string::npos && message.at("tool_calls").as_array().empty() &&
          !streamed.at("tool_calls").as_array().empty()) {
        // A call that is none came after the stream had told of one: as vLLM's, a whole answer has no calls then.
        ASSERT_NE(streamed.at("finish_reason"), "tool_calls") << output;
        ASSERT_TRUE(output.ends_with(message.at("content").as_string())) << output;
        continue;
      }
      const auto text_of = [&](const char* name) { return message.at(name).is_null() ? "" : message.at(name); };
      ASSERT_EQ(streamed.at("content"), text_of("content")) << output;
      ASSERT_EQ(streamed.at("reasoning"), text_of("reasoning")) << output;
      json::array functions;
      for (const json::value& call : message.at("tool_calls").as_array()) functions.push_back(call.at("function"));
      ASSERT_EQ(streamed.at("tool_calls"), json::value(functions)) << output;
      ASSERT_EQ(streamed.at("finish_reason"), choice.at("finish_reason")) << output;
    }
  }
};

TEST_F(AStreamAndTheWholeAnswer, AreTheSameWhereverTheyAreCutOff) {
  config_.reasoning_format = config::ReasoningFormat::kQwen3;
  const std::string call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1]}}\n</tool_call>";
  expect_same_wherever_it_is_cut_off("hm</think>Yes. " + call + "\n" + call, "");
  expect_same_wherever_it_is_cut_off("hm</think>" + call, ",\"include_reasoning\":false");
  expect_same_wherever_it_is_cut_off("</think>" + call + "<tool_call>{\"name\": \"none\"}</tool_call>", "");
  expect_same_wherever_it_is_cut_off("</think><tool_call>{\"name\": \"f\", \"arguments\": {oh}}</tool_call>", "");
}

TEST_F(AStreamAndTheWholeAnswer, AreTheSameForForcedCallsToo) {
  expect_same_wherever_it_is_cut_off(R"([{"name": "f", "parameters": {"a": 1}}, {"parameters": {}, "name": "f"}])",
                                     R"(,"tool_choice":"required")");
  expect_same_wherever_it_is_cut_off(R"({"a": {"b": "c"}})",
                                     R"(,"tool_choice":{"type":"function","function":{"name":"f"}})");
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
  say({"<think>", "hm"}, FinishReason::kLength);
  for (const char* shown : {"true", "false"}) {
    const json::object cut_off = first_choice(std::string(",\"include_reasoning\":") + shown).at("message").as_object();
    EXPECT_TRUE(cut_off.at("content").is_null()) << shown;
    EXPECT_EQ(cut_off.at("reasoning").is_null(), std::string_view(shown) == "false");
  }
  say({"<think>", "hm", "</think>", "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>"});
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

/// What a model says, where it belongs with the parser, with enable_thinking as given (-1: not given).
struct ThinkingCase {
  config::ReasoningFormat parser;
  int enabled;
  std::string_view text;
  std::string_view reasoning;
  std::string_view content;
};

constexpr ThinkingCase kThinking[] = {
    {config::ReasoningFormat::kQwen3, 1, "<think>a</think>b", "a", "b"},
    {config::ReasoningFormat::kQwen3, -1, "a</think>b", "a", "b"},
    {config::ReasoningFormat::kQwen3, 1, "<think>a", "a", ""},
    {config::ReasoningFormat::kQwen3, -1, "a", "a", ""},
    {config::ReasoningFormat::kQwen3, 0, "b", "", "b"},
    {config::ReasoningFormat::kQwen3, 1, "<think>a</think>", "a", ""},
    {config::ReasoningFormat::kDeepseekR1, 1, "<think>a</think>b", "a", "b"},
    {config::ReasoningFormat::kDeepseekR1, -1, "a</think>b", "a", "b"},
    {config::ReasoningFormat::kDeepseekR1, 1, "a", "a", ""},
    {config::ReasoningFormat::kDeepseekR1, 0, "a</think>b", "a", "b"},
};

TEST_F(ServiceTest, ThoughtsAndContentWithBothParsersWholeAndStreamed) {
  engine_.options_.max_model_len = 1000;
  std::string_view text;
  engine_.script = [this, &text](std::size_t index) {
    for (std::size_t i = 0; i < text.size(); ++i)
      engine_.say(index, std::string(1, text[i]),
                  i + 1 == text.size() ? std::optional(FinishReason::kLength) : std::nullopt);
  };
  const auto text_of = [](const json::value& value) { return value.is_null() ? "" : std::string(value.as_string()); };
  for (const ThinkingCase& row : kThinking) {
    text = row.text;
    if (server_) {
      io_.call([this] { service_.reset(); });
      io_.run(stop(std::chrono::milliseconds(500)));
      io_.call([this] { server_.reset(); });
    }
    config_.reasoning_format = row.parser;
    std::string body = R"({"messages":[{"role":"user","content":"a"}])";
    if (row.enabled >= 0)
      body += std::string(R"(,"chat_template_kwargs":{"enable_thinking":)") + (row.enabled > 0 ? "true}" : "false}");
    const json::value whole = json::parse(body_of(ask("/v1/chat/completions", body + "}")));
    const json::value& message = whole.at("choices").at(0).at("message");
    EXPECT_EQ(text_of(message.at("reasoning")), row.reasoning) << row.text;
    EXPECT_EQ(text_of(message.at("content")), row.content) << row.text;
    std::string reasoning, content;
    for (const std::string& event : events("/v1/chat/completions", body + R"(,"stream":true})")) {
      if (event == "[DONE]") continue;
      const json::object delta = json::parse(event).at("choices").at(0).at("delta").as_object();
      if (const json::value* piece = delta.if_contains("reasoning")) reasoning += text_of(*piece);
      if (const json::value* piece = delta.if_contains("content")) content += text_of(*piece);
    }
    EXPECT_EQ(reasoning, row.reasoning) << row.text;
    EXPECT_EQ(content, row.content) << row.text;
  }
}

TEST_F(ToolServiceTest, TokensThatAreHeldBackKeepTheirIds) {
  say({"<tool", "_call>", "{\"name\": \"f\", \"arguments\": {}}", "</tool_call>"});
  std::size_t num_ids = 0;
  for (const std::string& event : stream(",\"return_token_ids\":true")) {
    if (event == "[DONE]") continue;
    const json::value parsed = json::parse(event);
    const json::object& choice = parsed.at("choices").at(0).as_object();
    if (const json::value* ids = choice.if_contains("token_ids")) num_ids += ids->as_array().size();
    EXPECT_EQ(parsed.as_object().contains("prompt_token_ids"), choice.at("delta").as_object().contains("role"));
  }
  EXPECT_EQ(num_ids, 4U);
}

TEST_F(ToolServiceTest, EachChoiceHasItsOwnParser) {
  engine_.script = [this](std::size_t index) {
    engine_.say(index, index == 0 ? "<tool_call>{\"name\": \"f\", " : "no call");
    engine_.say(index, index == 0 ? "\"arguments\": {}}</tool_call>" : ".", FinishReason::kStop);
  };
  const json::value answer =
      json::parse(body_of(ask("/v1/chat/completions", std::string(kToolRequest) + ",\"n\":2,\"temperature\":1}")));
  EXPECT_EQ(answer.at("choices").at(0).at("finish_reason"), "tool_calls");
  EXPECT_EQ(answer.at("choices").at(1).at("finish_reason"), "stop");
  EXPECT_EQ(answer.at("choices").at(1).at("message").at("content"), "no call.");
}

TEST_F(ToolServiceTest, ForcedCallsHaveEmptyContentAndTheirReasons) {
  say({R"([{"name": "f", "parameters": {"a": 1}}])"});
  const json::object required = first_choice(",\"tool_choice\":\"required\"");
  EXPECT_EQ(required.at("finish_reason"), "tool_calls");
  EXPECT_EQ(required.at("message").at("content"), "");
  EXPECT_EQ(required.at("message").at("tool_calls").at(0).at("function").at("arguments"), R"({"a": 1})");
  say({R"({"a": 1})"});
  const json::object named = first_choice(R"(,"tool_choice":{"type":"function","function":{"name":"f"}})");
  EXPECT_EQ(named.at("finish_reason"), "stop");
  EXPECT_EQ(named.at("message").at("content"), "");
  EXPECT_EQ(named.at("message").at("tool_calls").at(0).at("function").at("arguments"), R"({"a": 1})");
  say({R"([{"name": "f", "param)"}, FinishReason::kLength);
  const json::object cut = first_choice(",\"tool_choice\":\"required\"");
  EXPECT_EQ(cut.at("finish_reason"), "length");
  EXPECT_TRUE(cut.at("message").at("tool_calls").as_array().empty());
  EXPECT_EQ(cut.at("message").at("content"), R"([{"name": "f", "param)");
  say({R"([{"name": "f", "parameters": {"a)"}, FinishReason::kLength);
  const json::object later = first_choice(",\"tool_choice\":\"required\"");
  EXPECT_EQ(later.at("finish_reason"), "length");
  EXPECT_EQ(later.at("message").at("content"), "");
  EXPECT_EQ(later.at("message").at("tool_calls").at(0).at("function").at("arguments"), R"({"a)");
}

}  // namespace
}  // namespace tandem::api
