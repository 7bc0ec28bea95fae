// SPDX-License-Identifier: Apache-2.0
// Fields that change nothing, rules between fields, structural tags as grammars, and what prefillers are told of a
// client's request.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>

#include "base/log.h"
#include "request_fixture.h"

namespace tandem::api {
namespace {

namespace json = boost::json;
using ::testing::Not;

class RulesTest : public RequestTest {
 protected:
  RulesTest() {
    engine_.options_.max_model_len = 2000;
    config_.trust_request_chat_template = true;
    rebuild();
  }

  /// What a chat of these members is rendered to.
  std::string rendered(const std::string& members) {
    auto job = prepare_chat(*context_, post("{" + members + "}"));
    EXPECT_TRUE(job) << job.error().message;
    return job ? context_->parts.tokenizer->decode(job->prompts[0].ids, false) : "";
  }

  /// The grammar of a structural tag.
  std::string grammar(const std::string& format) {
    const Job job = good(R"("response_format":{"type":"structural_tag",)" + format + "}");
    EXPECT_TRUE(job.constraint);
    return job.constraint ? job.constraint->source : "";
  }
  void no_grammar(const std::string& format, const std::string& why) {
    refused(R"("response_format":{"type":"structural_tag",)" + format + "}", why);
  }
  /// Whether an output that holds to the structural tag may be `text`.
  bool matches(const std::string& format, std::string_view text) { return fits(grammar(format), text); }
  bool fits(const std::string& source, std::string_view text, text::GrammarKind kind = text::GrammarKind::kLark) {
    const text::GrammarCompiler compiler(std::make_shared<ByteTokenizer>(), ByteTokenizer::kVocabSize,
                                         ByteTokenizer::kEos);
    const auto compiled = compiler.compile(kind, source);
    if (!compiled) ADD_FAILURE() << compiled.error().message() << "\n" << source;
    if (!compiled) return false;
    const auto matcher = *(*compiled)->start();
    for (const char c : text)
      if (matcher->finished() || !matcher->accept(static_cast<unsigned char>(c))) return false;
    return matcher->finished() ||
           (matcher->mask()->at(ByteTokenizer::kEos / 32) >> (ByteTokenizer::kEos % 32) & 1U) != 0;
  }
};

TEST_F(RulesTest, IdleMembersHaveATypeAndNoEffect) {
  good(R"("spaces_between_special_tokens":false,"length_penalty":1.5,"vllm_xargs":{"a":1},"mm_processor_kwargs":{},)"
       R"("user":"u","metadata":{"a":"b"},"store":true,"service_tier":"auto","invented":[1],"use_beam_search":false)");
  refused(R"("spaces_between_special_tokens":"perhaps")", "spaces_between_special_tokens");
  refused(R"("length_penalty":"long")", "length_penalty");
  refused(R"("user":5)", "user");
  refused(R"("guided_decoding_backend":{})", "guided_decoding_backend");
  refused(R"("vllm_xargs":5)", "vllm_xargs");
  refused(R"("mm_processor_kwargs":[])", "mm_processor_kwargs");
}

TEST_F(RulesTest, UnknownMembersAreToldOfOnceAndNotWithoutEnd) {
  UnknownFields unknown;
  const auto line = [&unknown](const std::string& body) {
    return unknown.line_about(json::parse(body).as_object(), chat_schema()).value_or("nothing");
  };
  const std::string all = R"({"messages":[],"user":"u","guided_decoding_backend":"x","kv_transfer_params":{})";
  EXPECT_EQ(line(all + "}"), "nothing") << "vLLM knows them";
  const std::string ignored = "The following fields were present in the request but ignored: ";
  EXPECT_EQ(line(all + R"(,"thinking":1,"a\nb\u0007\"":2})"), ignored + R"({"thinking", "a\nb\u0007\""})");
  EXPECT_EQ(line(all + R"(,"thinking":1})"), "nothing") << "once";
  EXPECT_EQ(line(R"({"new":1,"thinking":1})"), ignored + R"({"new"})");
  const std::string longest(UnknownFields::kMostCharacters - 1, 'x');
  EXPECT_EQ(line("{\"" + longest + "é" + std::string(100000, 'y') + "\":1}"), ignored + "{\"" + longest + "\"...}");

  std::string many = "{";
  for (int i = 0; i < 1000; ++i) many += fmt::format(R"("field {}":1,)", i);
  const std::string last = line(many + R"("z":1})");
  EXPECT_THAT(last, HasSubstr(R"("field 0")"));
  EXPECT_THAT(last, HasSubstr("(enough; no further names are told)"));
  EXPECT_EQ(std::count(last.begin(), last.end(), ','), static_cast<int>(UnknownFields::kMostNames) - 4 - 1);
  EXPECT_EQ(line(R"({"one more":1})"), "nothing");
}

TEST_F(RulesTest, WhatARequestDoesNotKnowIsInTheLog) {
  ::testing::internal::CaptureStderr();
  good(R"("invented":1)");
  good(R"("invented":1)");
  EXPECT_TRUE(chat(R"("invented too":1)"));
  log::configure(log::Level::kError, "");
  good(R"("silent":1)");
  log::configure(log::Level::kInfo, "");
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr(R"(were present in the request but ignored: {"invented"})"));
  EXPECT_EQ(log.find(R"({"invented"})"), log.rfind(R"({"invented"})"));
  EXPECT_THAT(log, HasSubstr(R"({"invented too"})"));
  EXPECT_THAT(log, Not(HasSubstr("silent")));
}

TEST_F(RulesTest, TheLastOfTwoMembersWithOneNameCounts) {
  EXPECT_EQ(good(R"("max_tokens":3,"max_tokens":5)").sampling.max_tokens, 5);
}

TEST_F(RulesTest, AllLogProbabilitiesNeedTheServersLeave) {
  config_.max_logprobs = -1;
  rebuild();
  EXPECT_EQ(chat(R"("logprobs":true,"top_logprobs":-1)")->sampling.logprobs, ByteTokenizer::kVocabSize);
  EXPECT_EQ(good(R"("prompt_logprobs":-1)").sampling.prompt_logprobs, ByteTokenizer::kVocabSize);
  EXPECT_EQ(good(R"("logprobs":200)").sampling.logprobs, 200);
}

TEST_F(RulesTest, LogProbabilitiesAreGivenWithoutTopOnes) {
  EXPECT_EQ(chat(R"("logprobs":true,"top_logprobs":null)")->sampling.logprobs, 0);
}

TEST_F(RulesTest, UsageCanBeForcedIntoStreams) {
  config_.enable_force_include_usage = true;
  rebuild();
  const Job job = good(R"("stream":true)");
  EXPECT_TRUE(job.include_usage);
  EXPECT_TRUE(job.continuous_usage);
}

TEST_F(RulesTest, DocumentsAreObjectsForTheTemplate) {
  const std::string user = R"("messages":[{"role":"user","content":"hi"}])";
  EXPECT_EQ(rendered(user + R"(,"documents":[{"text":"d"}],"chat_template":"{{ documents[0].text }}")"), "d");
  chat_refused(R"("documents":5)", "documents");
  chat_refused(R"("documents":["d"])", "documents");
}

TEST_F(RulesTest, ThoughtsOfEarlierTurnsHaveBothNames) {
  const std::string both =
      R"("chat_template":"{% for m in messages %}{{ m.reasoning }}|{{ m.reasoning_content }};{% endfor %}")";
  EXPECT_EQ(rendered(R"("messages":[{"role":"assistant","content":"a","reasoning":"x","reasoning_content":null},)"
                     R"({"role":"assistant","content":"a","reasoning_content":"y"}],)" +
                     both),
            "x|x;y|y;");
}

TEST_F(RulesTest, ReasoningEffortAndOtherVariablesReachTheTemplate) {
  const std::string user = R"("messages":[{"role":"any one","content":"hi"}],)";
  EXPECT_EQ(rendered(user + R"("reasoning_effort":"low","chat_template":"{{ reasoning_effort }}")"), "low");
  EXPECT_EQ(rendered(user + R"("reasoning_effort":"low","chat_template_kwargs":{"reasoning_effort":"none","x":[1]},)"
                            R"("chat_template":"{{ reasoning_effort }}{{ x[0] }}{{ messages[0].role }}")"),
            "none1any one");
}

TEST_F(RulesTest, AnEmptyListOfToolsIsNone) {
  for (const char* choice : {"", R"(,"tool_choice":"auto")", R"(,"tool_choice":null)", R"(,"tool_choice":"none")"}) {
    const auto job = chat(std::string(R"("tools":[])") + choice);
    ASSERT_TRUE(job) << choice << job.error().message;
    EXPECT_EQ(job->message.tools, ToolMode::kNone);
  }
  chat_refused(R"("tools":[],"tool_choice":"required")", "`tools` must be set");
}

TEST_F(RulesTest, WithToolsANullChoiceIsAuto) {
  config_.enable_auto_tool_choice = true;
  config_.tool_format = config::ToolFormat::kHermes;
  rebuild();
  const auto job = chat(R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":null)");
  ASSERT_TRUE(job) << job.error().message;
  EXPECT_EQ(job->message.tools, ToolMode::kAuto);
  EXPECT_FALSE(job->sampling.skip_special_tokens) << "tags may be special tokens";
}

TEST_F(RulesTest, StructuresWithTriggers) {
  const std::string tags = R"("triggers":["<f="],"structures":[{"begin":"<f=a>","schema":{"enum":[1]},"end":"</f>"},)"
                           R"({"begin":"<f=b>","schema":{"enum":[2]},"end":"</f>"}])";
  for (const char* text : {"", "free < text", "a<f=a>1</f>b<f=b>2</f>", "<f=b>2</f>::= end"})
    EXPECT_TRUE(matches(tags, text)) << text;
  for (const char* text : {"<f=a>2</f>", "<f=c>", "x<f=a>1"}) EXPECT_FALSE(matches(tags, text)) << text;
  no_grammar(R"("triggers":["<g"],"structures":[{"begin":"<f=a>","end":""}])",
             "no trigger is the beginning of '<f=a>'");
  no_grammar(R"("triggers":["<f"],"structures":[])", "'tags' should be a list with something in it");
  no_grammar(R"("triggers":["<f"],"structures":[{"end":""}])", "'begin' should be a string");
}

TEST_F(RulesTest, FormatsOfStructuralTags) {
  const std::string sequence =
      R"("format":{"type":"sequence","elements":[{"type":"const_string","value":"ok/"},)"
      R"({"type":"or","elements":[{"type":"regex","pattern":"[0-9]+/x"},{"type":"json_schema","json_schema":{"enum":["é"]}}]},)"
      R"({"type":"tag","begin":"<t>","content":{"type":"any_text"},"end":"</t>"}]})";
  EXPECT_TRUE(matches(sequence, "ok/12/x<t>any </ t text</t>"));
  EXPECT_TRUE(matches(sequence, "ok/\"é\"<t></t>"));
  EXPECT_FALSE(matches(sequence, "ok/12/x<t>"));
  EXPECT_FALSE(matches(sequence, "ok/12/x<t></t>more"));

  const std::string tag =
      R"({"begin":"<c>","content":{"type":"json_schema","json_schema":{"enum":[1,2]}},"end":"</c>"})";
  const auto triggered = [&tag](const std::string& more) {
    return R"("format":{"type":"triggered_tags","triggers":["<c"],"tags":[)" + tag + "]" + more + "}";
  };
  EXPECT_TRUE(matches(triggered(""), "none at all"));
  EXPECT_TRUE(matches(triggered(""), "one<c>1</c> and <c>2</c> then"));
  EXPECT_FALSE(matches(triggered(R"(,"at_least_one":true)"), "none at all"));
  EXPECT_TRUE(matches(triggered(R"(,"at_least_one":true)"), "a<c>1</c>b"));
  EXPECT_TRUE(matches(triggered(R"(,"stop_after_first":true)"), "none"));
  EXPECT_FALSE(matches(triggered(R"(,"stop_after_first":true)"), "a<c>1</c>b"));
  EXPECT_TRUE(matches(triggered(R"(,"stop_after_first":true,"at_least_one":true)"), "a<c>1</c>"));

  const std::string separated = R"("format":{"type":"tags_with_separator","separator":", ","tags":[)" + tag + "]";
  EXPECT_TRUE(matches(separated + "}", ""));
  EXPECT_TRUE(matches(separated + "}", "<c>1</c>, <c>2</c>"));
  EXPECT_FALSE(matches(separated + R"(,"at_least_one":true})", ""));
  EXPECT_FALSE(matches(separated + R"(,"stop_after_first":true})", "<c>1</c>, <c>2</c>"));

  const std::string thought =
      R"("format":{"type":"sequence","elements":[{"type":"tag","begin":"<think>","content":{"type":"any_text"},)"
      R"("end":"</think>"},{"type":"triggered_tags","triggers":["<c>"],"tags":[)" +
      tag + "]}]}";
  EXPECT_TRUE(matches(thought, "<think><c>9 hm</think>so <c>1</c>"));
  EXPECT_FALSE(matches(thought, "<think>hm</think><c>9"));
}

TEST_F(RulesTest, FormatsThatAreNone) {
  no_grammar(R"("format":5)", "a format should be an object");
  no_grammar(R"("format":{"type":"qwen_xml_parameter"})", "a format of type 'qwen_xml_parameter' is not supported");
  no_grammar(R"("format":{"type":"sequence","elements":[]})", "'elements' should be a list with something in it");
  no_grammar(R"("format":{"type":"const_string","value":""})", "should not be empty");
  no_grammar(R"("format":{"type":"json_schema","json_schema":5})", "should be a JSON schema");
  no_grammar(R"("format":{"type":"tag","begin":"a","end":"b"})", "a tag should have a 'content'");
  no_grammar(R"("format":{"type":"sequence","elements":[{"type":"any_text"},{"type":"const_string","value":"x"}]})",
             "any_text and triggered_tags should come last");
  refused(R"("structural_tag":"{}")", "expected a 'format', or lists of 'structures' and 'triggers'");
}

TEST_F(RulesTest, JsonWithoutBlanksIsSoInStructuralTagsToo) {
  const std::string object = R"({"type":"object","properties":{"a":{"enum":[1]}},"required":["a"]})";
  const std::string structures =
      R"("triggers":["<f"],"structures":[{"begin":"<f>","schema":)" + object + R"(,"end":"</f>"}])";
  const std::string format = R"("format":{"type":"triggered_tags","triggers":["<f"],"tags":[{"begin":"<f>","content":)"
                             R"({"type":"json_schema","json_schema":)" +
                             object + R"(},"end":"</f>"}]})";
  const std::string any = R"("triggers":["<f"],"structures":[{"begin":"<f>","end":"</f>"}])";
  const std::string tight = "so <f>{\"a\":1}</f>";
  const std::string loose = "so <f>{ \"a\": 1}</f>";
  for (const std::string& tag : {structures, format, any}) {
    EXPECT_TRUE(matches(tag, tight) && matches(tag, loose)) << tag;
    const std::string own = R"("structured_outputs":{"disable_any_whitespace":true,"structural_tag":{)" + tag + "}}";
    EXPECT_TRUE(fits(good(own).constraint->source, tight)) << "the request says so; " << tag;
    EXPECT_FALSE(fits(good(own).constraint->source, loose)) << tag;
  }
  config_.compact_json = true;
  rebuild();
  for (const std::string& tag : {structures, format, any}) {
    EXPECT_TRUE(matches(tag, tight)) << tag;
    EXPECT_FALSE(matches(tag, loose)) << "the server says so; " << tag;
  }
  for (const char* choice : {R"({"type":"function","function":{"name":"f"}})", R"("required")"}) {
    const auto job =
        chat(R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":)" + std::string(choice));
    ASSERT_TRUE(job) << job.error().message;
    EXPECT_THAT(job->constraint->source, HasSubstr(R"("x-guidance":{"whitespace_flexible":false,)")) << choice;
  }
}

TEST_F(RulesTest, SchemasSetNoOptionsOfTheCompiler) {
  const std::string own = R"({"enum":[1],"x-guidance":{"whitespace_pattern":"x"}})";
  EXPECT_THAT(grammar(R"("format":{"type":"json_schema","json_schema":)" + own + "}"),
              Not(HasSubstr("whitespace_pattern")));
  EXPECT_THAT(good(R"("guided_json":)" + own).constraint->source, Not(HasSubstr("whitespace_pattern")));
}

TEST_F(RulesTest, OneOfIsAnyOf) {
  const std::string one = R"({"oneOf":[{"type":"integer"},{"type":"number"}]})";
  const std::string json = good(R"("guided_json":)" + one).constraint->source;
  EXPECT_TRUE(fits(json, "5", text::GrammarKind::kJsonSchema));
  EXPECT_TRUE(fits(json, "5.5", text::GrammarKind::kJsonSchema));
  EXPECT_FALSE(fits(json, "true", text::GrammarKind::kJsonSchema));
  EXPECT_TRUE(matches(R"("format":{"type":"json_schema","json_schema":{"items":)" + one + "}}", "[1,2.5]"));
  const auto job = chat(R"("tools":[{"type":"function","function":{"name":"f","parameters":)" + one +
                        R"(}}],"tool_choice":"required")");
  ASSERT_TRUE(job) << job.error().message;
  EXPECT_TRUE(fits(job->constraint->source, R"([{"name":"f","parameters":5}])", text::GrammarKind::kJsonSchema));
}

TEST_F(RulesTest, TheModelIsCheckedBehindTheSamplingFieldsAndBeforeThePrompt) {
  refused(R"("model":"x","n":0)", "n must be at least 1, got 0.", 400);
  refused(R"("model":"x","logprobs":-1)", "does not exist", 404);
  EXPECT_EQ(completion(R"("model":"x")", "5").error().status, 404);
}

TEST_F(RulesTest, MembersOfOtherEndpointsAreIgnored) {
  EXPECT_TRUE(chat(R"("suffix":"x","prompt_embeds":"x","audio":{"voice":"x"})"));
  good(R"("audio":{"voice":"x"},"messages":5)");
  refused(R"("prompt_embeds":"x")", "prompt_embeds");
  for (const char* name : {"repetition_detection", "thinking_token_budget"}) {
    refused("\"" + std::string(name) + "\":1", name);
    chat_refused("\"" + std::string(name) + "\":1", name);
  }
}

TEST_F(RulesTest, WordsOfAListAreTheOnlyOnes) {
  EXPECT_TRUE(chat(R"("reasoning_effort":"xhigh")"));
  for (const char* effort : {"\"bad\"", "5", "\"\""})
    chat_refused(R"("reasoning_effort":)" + std::string(effort),
                 "[{'type': 'literal_error', 'loc': ('body', 'reasoning_effort'), 'msg': \"Input should be 'none', "
                 "'minimal', 'low', 'medium', 'high', 'xhigh' or 'max'\"}]");
  for (const char* type : {"\"x\"", "null", "5"})
    chat_refused(R"("tools":[{"type":)" + std::string(type) + R"(,"function":{"name":"f"}}],"tool_choice":"none")",
                 "literal_error");
}

TEST_F(RulesTest, APrefillerRefusesWhatADecoderWould) {
  config_.kv_transfer = test::test_kv(config::KvRole::kProducer);
  rebuild();
  const auto asked = [](const std::string& client) {
    return R"("stream":false,"max_tokens":1,"min_tokens":1,"kv_transfer_params":{"do_remote_decode":true,"tandem_client":)" +
           client + "}";
  };
  const Job job = good(asked(R"({"stream":true,"stream_options":{"include_usage":true},"max_tokens":500,"n":3})"));
  EXPECT_TRUE(job.kv.remote_decode) << "the stream is the client's, not the proxy's";
  EXPECT_FALSE(job.stream || job.include_usage);
  EXPECT_EQ(job.n, 1);
  EXPECT_EQ(job.sampling.max_tokens, 1);
  EXPECT_EQ(job.sampling.min_tokens, 1);
  EXPECT_EQ(good(asked("{}")).sampling.max_tokens, 1);

  refused(asked(R"({"max_tokens":1999})"), "you requested 1999 output tokens");
  refused(asked(R"({"max_tokens":0})"), "max_tokens must be at least 1, got 0.");
  refused(asked(R"({"min_tokens":17})"), "min_tokens must be less than or equal to max_tokens=16, got 17.");
  refused(asked(R"({"n":2})") + R"(,"temperature":0)", "n must be 1 when using greedy sampling, got 2.");
  refused(asked(R"({"stream_options":{"include_usage":true}})"), "Stream options can only be defined");
  config_.kv_transfer.reset();
  rebuild();
  EXPECT_EQ(good(asked(R"({"max_tokens":1999})")).sampling.max_tokens, 1) << "no prefiller: as the proxy asks";
}

}  // namespace
}  // namespace tandem::api
