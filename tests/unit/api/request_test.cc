// SPDX-License-Identifier: Apache-2.0
// Bodies in, jobs or refusals out: coercions, ranges with their texts, lengths, features that are refused.
#include <boost/json.hpp>
#include <limits>

#include "request_fixture.h"

namespace tandem::api {
namespace {

using ::testing::ElementsAre;

TEST_F(RequestTest, DefaultsOfACompletion) {
  const Job job = good("");
  EXPECT_THAT(job.prompts.at(0).ids, ElementsAre(ByteTokenizer::kBos, 'a', 'b', 'c'));
  EXPECT_EQ(job.sampling.max_tokens, 16);
  EXPECT_EQ(job.sampling.temperature, 1.0);
  EXPECT_FALSE(job.sampling.logprobs);
  EXPECT_FALSE(job.stream);
  EXPECT_THAT(job.id, testing::StartsWith("cmpl-"));
  EXPECT_EQ(job.base_id.size(), 32U);
}

TEST_F(RequestTest, ScalarsAreCoercedLeniently) {
  const Job job = good(
      R"("max_tokens":"5","temperature":"0.5","top_k":3.0,"ignore_eos":"yes","stream":1,"n":true,"unknown":{"x":1},"user":null)");
  EXPECT_EQ(job.sampling.max_tokens, 5);
  EXPECT_EQ(job.sampling.temperature, 0.5);
  EXPECT_EQ(job.sampling.top_k, 3);
  EXPECT_TRUE(job.sampling.ignore_eos);
  EXPECT_TRUE(job.stream);
  refused(R"("max_tokens":2.5)", "'loc': ('body', 'max_tokens'), 'msg': 'Input should be a valid integer'");
  refused(R"("max_tokens":"many")", "max_tokens");
  refused(R"("temperature":"hot")", "Input should be a valid number");
  refused(R"("stream":"maybe")", "Input should be a valid boolean");
  refused(R"("model":5)", "Input should be a valid string");
  refused(R"("seed":99999999999999999999)", "seed");
}

TEST_F(RequestTest, ElementsOfListsAreCoercedToo) {
  const Job job =
      good(R"("stop_token_ids":["5",6.0,true],"allowed_token_ids":["7"],"logit_bias":{"5":"1.5","6":true})");
  EXPECT_THAT(job.sampling.stop_token_ids, ElementsAre(5, 6, 1));
  EXPECT_THAT(job.sampling.allowed_token_ids, ElementsAre(7));
  EXPECT_THAT(job.sampling.logit_bias, ElementsAre(std::pair(5, 1.5F), std::pair(6, 1.0F)));
  for (const char* ids : {"[\"x\"]", "[null]", "[1.5]", "[[1]]", "[99999999999]", "[\"1.5\"]"})
    refused("\"stop_token_ids\":" + std::string(ids), "stop_token_ids");
  refused(R"("logit_bias":{"5":null})", "'loc': ('body', 'logit_bias'), 'msg': 'Input should be a valid number'");
  EXPECT_FALSE(completion("", "[1,\"5\"]")) << "a list of prompts is ids or texts";
}

TEST_F(RequestTest, BodiesThatAreNoRequests) {
  for (const char* body : {"", "{", "[1]", "null", "\"x\"", "{\"prompt\":\"a\"} x"}) {
    auto job = prepare_completion(*context_, post(body));
    ASSERT_FALSE(job) << body;
    EXPECT_EQ(job.error().status, 400) << body;
  }
  auto deep =
      prepare_completion(*context_, post("{\"prompt\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}"));
  ASSERT_FALSE(deep);
  EXPECT_THAT(deep.error().message, HasSubstr("'msg': 'JSON decode error'"));
  EXPECT_EQ(prepare_completion(*context_, post("{\"é\":")).error().message,
            "[{'type': 'json_invalid', 'loc': ('body', 5), 'msg': 'JSON decode error', 'ctx': {'error': "
            "'incomplete JSON'}}]");
  net::HttpRequest form = post("{\"prompt\":\"a\"}");
  form.headers.set("Content-Type", "text/plain");
  EXPECT_THAT(prepare_completion(*context_, form).error().message, HasSubstr("Only 'application/json' is allowed"));
}

TEST_F(RequestTest, SamplingRangesHaveTheFieldsTexts) {
  refused(R"("temperature":-1)", "temperature must be non-negative, got -1");
  refused(R"("top_p":0)", "top_p must be in (0, 1], got 0.");
  refused(R"("top_p":1.5)", "top_p must be in (0, 1], got 1.5.");
  refused(R"("top_k":-2)", "top_k must be 0 (disable), or at least 1, got -2.");
  refused(R"("min_p":2)", "min_p must be in [0, 1], got 2.");
  refused(R"("repetition_penalty":0)", "repetition_penalty must be greater than zero, got 0.");
  refused(R"("presence_penalty":3)", "presence_penalty must be in [-2, 2], got 3.");
  refused(R"("frequency_penalty":-3)", "frequency_penalty must be in [-2, 2], got -3.");
  refused(R"("n":0)", "n must be at least 1, got 0.");
  refused(R"("n":2,"temperature":0)", "n must be 1 when using greedy sampling, got 2.");
  refused(R"("stop":"")", "stop cannot contain an empty string.");
  refused(R"("stop":["a",""])", "stop cannot contain an empty string.");
  refused(R"("min_tokens":9,"max_tokens":4)", "min_tokens must be less than or equal to max_tokens=4, got 9.");
  refused(R"("max_tokens":0)", "max_tokens must be at least 1, got 0.");
  refused(R"("max_tokens":-7)", "max_tokens must be at least 1, got -7.");
  refused(R"("logit_bias":{"999":1})",
          "token_id(s) [999] in logit_bias contain out-of-vocab token ids. Vocabulary size: 258");
  refused(R"("logit_bias":{"x":1})", "logit_bias");
  refused(R"("allowed_token_ids":[])", "allowed_token_ids is not None and empty!");
  refused(R"("allowed_token_ids":[999])", "allowed_token_ids contains out-of-vocab token id!");
  refused(R"("logit_bias":{"1":"x"})", "('body', 'logit_bias')");
  refused(R"("stop_token_ids":[258])", "stop_token_ids contains out-of-vocab token id 258. Vocabulary size: 258");
  refused(R"("stop_token_ids":[-1])", "stop_token_ids contains out-of-vocab token id -1.");
  refused(R"("stop_token_ids":[2147483648])", "stop_token_ids");
  refused(R"("cache_salt":"")", "Parameter 'cache_salt' must be a non-empty string if provided.");
  refused(R"("logprobs":-1)", "`logprobs` must be a positive value.");
  refused(R"("logprobs":21)", "Requested sample logprobs of 21, which is greater than max allowed: 20");
}

TEST_F(RequestTest, ValuesAreResolved) {
  const Job job = good(
      R"("temperature":0.001,"top_k":-1,"stop":["x","y"],"logit_bias":{"65":1000,"66":-3},"seed":-1,"logprobs":0)");
  EXPECT_EQ(job.sampling.temperature, 0.01);
  EXPECT_EQ(job.sampling.top_k, 0);
  EXPECT_THAT(job.sampling.stop, ElementsAre("x", "y"));
  EXPECT_THAT(job.sampling.logit_bias, ElementsAre(std::pair(65, 100.0F), std::pair(66, -3.0F)));
  EXPECT_FALSE(job.sampling_fields.seed);
  EXPECT_EQ(job.sampling.logprobs, 0);
  const Job greedy = good(R"("temperature":0,"top_p":0.5,"top_k":9)");
  EXPECT_TRUE(greedy.sampling.greedy());
  EXPECT_EQ(greedy.sampling.top_p, 1.0);
  EXPECT_EQ(greedy.sampling.top_k, 0);
}

TEST_F(RequestTest, DefaultsComeFromTheModelAndTheRequestStandsAbove) {
  defaults_.temperature = 0.6;
  defaults_.top_k = 20;
  defaults_.max_new_tokens = 7;
  rebuild();
  EXPECT_EQ(good("").sampling.temperature, 0.6);
  EXPECT_EQ(good(R"("temperature":null)").sampling.temperature, 0.6);
  EXPECT_EQ(good(R"("temperature":0.9,"top_k":0)").sampling.temperature, 0.9);
  EXPECT_EQ(good(R"("temperature":0.9,"top_k":0)").sampling.top_k, 0);
  EXPECT_EQ(good(R"("max_tokens":null)").sampling.max_tokens, 7);
  EXPECT_EQ(good(R"("max_tokens":20)").sampling.max_tokens, 20);
  defaults_.max_new_tokens_ceiling = 5;
  rebuild();
  EXPECT_EQ(good(R"("max_tokens":20)").sampling.max_tokens, 5);
}

TEST_F(RequestTest, LengthsAgainstTheContext) {
  // max_model_len is 64; "abc" with <bos> has 4 tokens.
  EXPECT_EQ(good(R"("max_tokens":60)").sampling.max_tokens, 60);
  refused(R"("max_tokens":61)",
          "This model's maximum context length is 64 tokens. However, you requested 61 output tokens and your "
          "prompt contains 4 input tokens, for a total of 65 tokens.");
  refused(R"("max_tokens":9223372036854775807)", "maximum context length is 64 tokens");
  EXPECT_EQ(good(R"("max_tokens":null)").sampling.max_tokens, 60);
  auto job = completion("", '"' + std::string(70, 'a') + '"');
  ASSERT_FALSE(job);
  EXPECT_EQ(job.error().param, "input_tokens");
  auto huge = completion("", '"' + std::string(100'000, 'a') + '"');
  ASSERT_FALSE(huge);
  EXPECT_EQ(huge.error().param, "input_text");
  EXPECT_THAT(huge.error().message, HasSubstr("maximum context length is 64 tokens"));
  EXPECT_EQ(
      good(R"("truncate_prompt_tokens":3,"max_tokens":2)", '"' + std::string(70, 'a') + "bc\"").prompts[0].ids.size(),
      3U);
  refused(R"("truncate_prompt_tokens":63)", "truncate_prompt_tokens value (63) is greater than max_model_len");
  EXPECT_EQ(
      good(R"("truncate_prompt_tokens":-1,"max_tokens":2)", '"' + std::string(70, 'a') + '"').prompts[0].ids.size(),
      62U);
  refused(R"("truncate_prompt_tokens":0)", "truncate_prompt_tokens");
  const std::string long_one = '"' + std::string(70, 'a') + "bc\"";
  EXPECT_EQ(good(R"("truncate_prompt_tokens":-1,"max_tokens":2)", long_one).prompts[0].ids.size(), 62U);
  EXPECT_EQ(good(R"("truncate_prompt_tokens":-1,"max_tokens":null)", long_one).prompts[0].ids.size(), 63U);
  EXPECT_EQ(good(R"("truncate_prompt_tokens":-1,"max_tokens":2)").prompts[0].ids.size(), 4U) << "it fits";
  for (const char* too_many : {"64", "65", "9223372036854775807"}) {
    const auto none = completion(R"("truncate_prompt_tokens":-1,"max_tokens":)" + std::string(too_many), long_one);
    ASSERT_FALSE(none) << too_many;
    EXPECT_EQ(none.error().param, "input_tokens") << "no prompt at all would fit";
  }
}

TEST_F(RequestTest, PromptsInAllForms) {
  EXPECT_EQ(good("", R"(["a","b"])").prompts.size(), 2U);
  EXPECT_THAT(good("", "[1,2,3.0]").prompts[0].ids, ElementsAre(1, 2, 3));
  EXPECT_EQ(good("", "[[1],[2,3]]").prompts.size(), 2U);
  for (const char* prompt :
       {"[1,258]", "[-5]", "[[1],2]", "[1,\"a\"]", "[\"a\",1]", "5", "{}", "[]", "[[]]", "\"\"", "null", "[1.5]"}) {
    auto job = completion("", prompt);
    ASSERT_FALSE(job) << prompt;
    EXPECT_EQ(job.error().status, 400) << prompt;
  }
  EXPECT_THAT(completion("", "null").error().message,
              HasSubstr("Either prompt or prompt_embeds must be provided and non-empty."));
  EXPECT_EQ(good(R"("add_special_tokens":false)").prompts[0].ids.size(), 3U);
}

TEST_F(RequestTest, UnsupportedFeaturesAreRefusedByName) {
  refused(R"("best_of":2)", "vLLM V1 does not yet support best_of.");
  refused(R"("n":3,"best_of":2)", "best_of must be greater than or equal to n");
  refused(R"("use_beam_search":true)", "beam search");
  refused(R"("suffix":"x")", "suffix is not currently supported");
  refused(R"("logits_processors":["a"])", "logits_processors");
  refused(R"("guided_choice":[])", "Choice '[]' cannot be an empty list");
  refused(R"("response_format":{"type":"xml"})", "response_format");
  good(R"("best_of":1,"bad_words":[],"response_format":{"type":"text"},"structured_outputs":{},"suffix":null)");
}

TEST_F(RequestTest, Constraints) {
  EXPECT_FALSE(good("").constraint);
  EXPECT_FALSE(good(R"("structured_outputs":{},"response_format":{"type":"text"})").constraint);
  const auto source = [&](const std::string& fields) { return good(fields).constraint->source; };
  EXPECT_EQ(source(R"("guided_json":"{\"type\": \"object\"}")"),
            R"({"type":"object","x-guidance":{"coerce_one_of":true}})");
  EXPECT_EQ(source(R"("response_format":{"type":"json_schema","json_schema":{"schema":{"type":"null"}}})"),
            R"({"type":"null","x-guidance":{"coerce_one_of":true}})");
  EXPECT_EQ(source(R"("structured_outputs":{"json_object":true,"disable_any_whitespace":true})"),
            R"({"type":"object","x-guidance":{"whitespace_flexible":false,"coerce_one_of":true}})");
  EXPECT_EQ(source(R"("structured_outputs":{"json":{"properties":{"a":{}}},"disable_additional_properties":true})"),
            R"({"properties":{"a":{}},"additionalProperties":false,"x-guidance":{"coerce_one_of":true}})");
  EXPECT_EQ(good(R"("guided_regex":"a+")").constraint->kind, text::GrammarKind::kRegex);
  EXPECT_EQ(good(R"("structured_outputs":{"grammar":"start: \"a\""})").constraint->kind, text::GrammarKind::kGrammar);
  refused(R"("structured_outputs":{"regex":"a","choice":["b"]})", "You can only use one kind of constraints");
  refused(R"("guided_regex":"a","response_format":{"type":"json_object"})", "You can only use one kind");
  refused(R"("guided_json":"{")", "guided_json");
  refused(R"("guided_json":5)", "an object");
  refused(R"("structural_tag":"{}")", "Invalid structural tag specification");
}

TEST_F(RequestTest, ForcedToolsBecomeGrammars) {
  const std::string tools =
      R"("tools":[{"type":"function","function":{"name":"f","parameters":{"$defs":{"T":{"type":"null"}},"type":"object",)"
      R"("properties":{"a":{"$ref":"#/$defs/T"}}}}},{"type":"function","function":{"name":"g"}}])";
  engine_.options_.max_model_len = 2000;
  const auto named = chat(tools + R"(,"tool_choice":{"type":"function","function":{"name":"g"}})");
  ASSERT_TRUE(named) << named.error().message;
  EXPECT_EQ(named->message.tools, ToolMode::kNamed);
  EXPECT_EQ(named->constraint->source, R"({"type":"object","x-guidance":{"coerce_one_of":true}})");
  const auto required = chat(tools + R"(,"tool_choice":"required","parallel_tool_calls":false)");
  ASSERT_TRUE(required) << required.error().message;
  EXPECT_EQ(
      required->constraint->source,
      R"({"type":"array","minItems":1,"maxItems":1,"$defs":{"T":{"type":"null"}},"items":{"anyOf":[)"
      R"({"type":"object","properties":{"name":{"enum":["f"]},"parameters":{"type":"object","properties":{"a":{"$ref":"#/$defs/T"}}}},)"
      R"("required":["name","parameters"],"additionalProperties":false},)"
      R"({"type":"object","properties":{"name":{"enum":["g"]},"parameters":{"type":"object"}},)"
      R"("required":["name","parameters"],"additionalProperties":false}]},"x-guidance":{"coerce_one_of":true}})");
  chat_refused(tools + R"(,"tool_choice":{"type":"function","function":{"name":"h"}})", "does not match any");
}

TEST_F(RequestTest, LogProbabilitiesOfThePromptAndBadWords) {
  EXPECT_EQ(good(R"("prompt_logprobs":2)").sampling.prompt_logprobs, 2);
  EXPECT_EQ(good(R"("echo":true,"logprobs":1)").sampling.prompt_logprobs, 1);
  EXPECT_FALSE(good(R"("echo":true,"logprobs":1)").show_prompt_logprobs);
  refused(R"("prompt_logprobs":-2)", "`prompt_logprobs` must be a positive value or -1.");
  refused(R"("prompt_logprobs":1,"stream":true)", "`prompt_logprobs` are not available when `stream=True`.");
  refused(R"("prompt_logprobs":21)", "Requested prompt logprobs of 21, which is greater than max allowed: 20");
  const auto job = chat(R"("bad_words":["ab"," c"])");
  ASSERT_TRUE(job) << job.error().message;
  EXPECT_EQ(job->sampling.bad_words, (std::vector<std::vector<std::int32_t>>{{'a', 'b'}, {'c'}}));
  chat_refused(R"("bad_words":[" "])", "empty string");
  std::string many = R"("bad_words":["a")";
  for (int i = 0; i < 1024; ++i) many += R"(,"a")";
  chat_refused(many + "]", "bad_words has 1025 words");
}

TEST_F(RequestTest, ModelsByEveryServedName) {
  good(R"("model":"m")");
  good(R"("model":"alias")");
  good(R"("model":"")");
  refused(R"("model":"nobody")", "The model `nobody` does not exist.", 404);
}

TEST_F(RequestTest, ADeadEngineIsToldBeforeAnythingElseIsChecked) {
  engine_.alive = false;
  refused(R"("temperature":1)", "EngineCore encountered an issue.", 500);
}

TEST_F(RequestTest, StreamOptions) {
  refused(R"("stream_options":{"include_usage":true})",
          "Value error, Stream options can only be defined when `stream=True`.");
  good(R"("stream_options":{})");
  EXPECT_FALSE(good(R"("stream":true,"stream_options":{})").include_usage);
  EXPECT_TRUE(good(R"("stream":true,"stream_options":{"include_usage":true})").include_usage);
  EXPECT_TRUE(
      good(R"("stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true})").continuous_usage);
  EXPECT_FALSE(good(R"("stream":true,"stream_options":{"continuous_usage_stats":true})").continuous_usage);
}

TEST_F(RequestTest, RequestIds) {
  net::HttpRequest request = post(R"({"prompt":"a","request_id":"body"})");
  EXPECT_EQ(prepare_completion(*context_, request)->id, "cmpl-body");
  request.headers.set("x-request-id", "head");
  EXPECT_EQ(prepare_completion(*context_, request)->id, "cmpl-head");
  request.headers.set("x-request-id", "a\xff");
  EXPECT_TRUE(is_valid_utf8(prepare_completion(*context_, request)->id));
  request.headers.set("x-request-id", std::string(5000, 'x'));
  EXPECT_FALSE(prepare_completion(*context_, request));
}

TEST_F(RequestTest, ChatRules) {
  auto job = chat("");
  ASSERT_TRUE(job) << job.error().message;
  EXPECT_EQ(context_->parts.tokenizer->decode(job->prompts[0].ids, false), "<user>hi</user><assistant>");
  EXPECT_EQ(job->sampling.max_tokens, 64 - 26);
  EXPECT_EQ(chat(R"("max_tokens":3,"max_completion_tokens":4)")->sampling.max_tokens, 4);
  EXPECT_EQ(chat(R"("max_tokens":3,"max_completion_tokens":0)")->sampling.max_tokens, 3);
  EXPECT_EQ(chat(R"("logprobs":true)")->sampling.logprobs, 0);
  EXPECT_EQ(chat(R"("logprobs":true,"top_logprobs":3)")->sampling.logprobs, 3);
  EXPECT_FALSE(chat(R"("top_logprobs":0)")->sampling.logprobs);
  chat_refused(R"("top_logprobs":3)", "when using `top_logprobs`, `logprobs` must be set to true.");
  chat_refused(R"("logprobs":true,"top_logprobs":-2)", "`top_logprobs` must be a positive value or -1.");
  chat_refused(R"("logprobs":true,"top_logprobs":-1)", "Requested sample logprobs of 258");
  chat_refused(R"("max_tokens":0)", "max_tokens must be at least 1, got 0.");
  chat_refused(R"("tool_choice":"auto")", "When using `tool_choice`, `tools` must be set.");
  chat_refused(R"("tool_choice":"sometimes")", "Invalid value for `tool_choice`: sometimes!");
  chat_refused(R"("tools":[{"type":"function","function":{"name":"f"}}])",
               "\"auto\" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set");
  chat_refused(R"("chat_template":"x")", "--trust-request-chat-template is not set");
  chat_refused(R"("chat_template_kwargs":{"chat_template":"x"})", "--trust-request-chat-template is not set");
  chat_refused(R"("continue_final_message":true,"add_generation_prompt":true)", "Cannot set both");
}

TEST_F(RequestTest, UnseededChoicesDifferAndFollowTheRequestId) {
  SamplingFields fields;
  EXPECT_EQ(choice_seed(fields, 0, "id", 0), choice_seed(fields, 0, "id", 0));
  EXPECT_NE(choice_seed(fields, 0, "id", 0), choice_seed(fields, 0, "id", 1));
  EXPECT_NE(choice_seed(fields, 0, "id", 0), choice_seed(fields, 0, "other", 0));
  EXPECT_NE(choice_seed(fields, 0, "id", 0), choice_seed(fields, 1, "id", 0));
  fields.seed = 40;
  EXPECT_EQ(choice_seed(fields, 0, "id", 2), 42U);
}

TEST_F(RequestTest, HandoversAreReadWhereTheConnectorAllows) {
  const std::string handover = boost::json::serialize(transfer::to_json(test::test_handover(1)));
  const std::string member = "\"kv_transfer_params\":" + handover;
  EXPECT_TRUE(good(member).kv.remote_prefill.empty());  // no connector: a plain local request
  config_.kv_transfer = test::test_kv(config::KvRole::kBoth);
  rebuild();
  EXPECT_EQ(good(member).kv.remote_prefill.at(0)->lease.id, 1U);
  EXPECT_FALSE(good(R"("kv_transfer_params":{})").kv.remote_decode);
  EXPECT_TRUE(
      good(
          R"("kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"aborted_request":[]})")
          .kv.remote_decode);
  EXPECT_FALSE(good(R"("stream":true,"kv_transfer_params":{"do_remote_decode":true})").kv.remote_decode);
  refused(R"("kv_transfer_params":[])", "kv_transfer_params");
  refused(R"("kv_transfer_params":{"do_remote_prefill":true,"remote_block_ids":[1],"tandem":{"lease":"zz"}})",
          "kv_transfer_params is malformed");
  auto two = completion(member, R"(["a","b"])");
  ASSERT_FALSE(two);
  EXPECT_THAT(two.error().message, HasSubstr("it hands over 1 prompts, the request has 2"));
}

TEST(KvParams, SeveralPromptsTravelInTheFirstObject) {
  const std::optional<transfer::Handover> handovers[] = {test::test_handover(1), std::nullopt, test::test_handover(3)};
  const std::string text = kv_params_json(handovers);
  const boost::json::value body = boost::json::object{{"kv_transfer_params", boost::json::parse(text)}};
  auto params = read_kv_params(Fields(body.as_object()));
  ASSERT_TRUE(params) << params.error().message;
  ASSERT_EQ(params->remote_prefill.size(), 3U);
  EXPECT_EQ(params->remote_prefill[0]->lease.id, 1U);
  EXPECT_FALSE(params->remote_prefill[1]);
  EXPECT_EQ(params->remote_prefill[2]->lease.id, 3U);
  EXPECT_EQ(kv_params_json({}), "null");
}

/// A decoder's message as it comes through the metaserver.
boost::json::object decoders_message(const std::string& request_id, std::int64_t num_tokens) {
  transfer::Delivery delivery;
  delivery.engine_id = "D";
  delivery.host = "127.0.0.1";
  delivery.port = 30200;
  delivery.blocks = {5, 6};
  delivery.incarnation = 3;
  delivery.reception = 4;
  delivery.num_tokens = num_tokens;
  boost::json::object message = transfer::to_json(delivery);
  message["token_ids"] = boost::json::array();
  message["request_id"] = request_id;
  message["do_remote_prefill"] = false;
  message["do_remote_decode"] = true;
  return message;
}

TEST_F(RequestTest, PushesOfADecoder) {
  config_.kv_transfer = test::test_kv(config::KvRole::kProducer);
  rebuild();
  const auto member = [](const boost::json::object& object) {
    return "\"kv_transfer_params\":" + boost::json::serialize(object);
  };
  const Job one = good(member(decoders_message("cmpl-x-0", 3)));
  EXPECT_FALSE(one.kv.remote_decode) << "nothing is kept for a pull";
  ASSERT_EQ(one.kv.push_to.size(), 1U);
  EXPECT_EQ(one.kv.push_to[0]->reception, 4U);
  EXPECT_EQ(good(member(decoders_message("chatcmpl-x", 3))).kv.push_to.size(), 1U);

  const Job second = good(member(decoders_message("cmpl-x-1", 3)), R"(["abc","def"])");
  ASSERT_EQ(second.kv.push_to.size(), 2U);
  EXPECT_FALSE(second.kv.push_to[0]);
  EXPECT_TRUE(second.kv.push_to[1]);

  boost::json::object batch = decoders_message("cmpl-x-0", 3);
  batch["batch_kv_transfer_params"] =
      boost::json::object{{"cmpl-x-0", decoders_message("cmpl-x-0", 3)}, {"cmpl-x-1", decoders_message("cmpl-x-1", 5)}};
  const Job both = good(member(batch), R"(["abc","def"])");
  ASSERT_EQ(both.kv.push_to.size(), 2U);
  EXPECT_EQ(both.kv.push_to[0]->num_tokens, 3);
  EXPECT_EQ(both.kv.push_to[1]->num_tokens, 5);

  const Job alone = good(member(decoders_message("cmpl-x-1", 3)));
  ASSERT_EQ(alone.kv.push_to.size(), 1U);
  EXPECT_TRUE(alone.kv.push_to[0]) << "the proxy has sent that prompt only";
  const auto over = completion(member(decoders_message("cmpl-x-2", 3)), R"(["abc","def"])");
  ASSERT_FALSE(over);
  EXPECT_THAT(over.error().message, HasSubstr("it asks for prompt 2, the request has 2"));

  refused(member(decoders_message("cmpl-x-y", 3)), "request_id does not end in the number of a prompt");
  refused(member(decoders_message("cmpl-x-99999999999999999999", 3)), "request_id does not end");
  batch["batch_kv_transfer_params"] = 3;
  refused(member(batch), "batch_kv_transfer_params is not an object");
  boost::json::object foreign = decoders_message("cmpl-x-0", 3);
  foreign.erase("tandem");
  refused(member(foreign), "a decoder that is not Tandem");
  boost::json::object broken = decoders_message("cmpl-x-0", 3);
  broken["tandem"].as_object()["reception"] = 1;
  refused(member(broken), "kv_transfer_params is malformed");

  config_.kv_transfer = test::test_kv(config::KvRole::kConsumer);
  rebuild();
  refused(member(decoders_message("cmpl-x-0", 3)), "no producing KV connector");
}

TEST_F(RequestTest, APrefillerCutsAPromptWhereItsDecoderDid) {
  config_.kv_transfer = test::test_kv(config::KvRole::kProducer);
  rebuild();
  const auto asked = [](const boost::json::object& params, const char* keep = "-1") {
    return R"("max_tokens":1,"truncate_prompt_tokens":)" + std::string(keep) +
           ",\"kv_transfer_params\":" + boost::json::serialize(params);
  };
  const std::string long_one = '"' + std::string(70, 'a') + "bc\"";
  // The decoder saw "max_tokens":4, and what fits beside that is 60 tokens.
  const Job pushed = good(asked(decoders_message("cmpl-x-0", 60)), long_one);
  EXPECT_EQ(pushed.prompts[0].ids.size(), 60U);
  EXPECT_EQ(pushed.prompts[0].ids.back(), 'c');
  EXPECT_EQ(good(asked(decoders_message("cmpl-x-0", 4))).prompts[0].ids.size(), 4U) << "nothing to cut";
  EXPECT_EQ(good(asked(decoders_message("cmpl-x-0", 60), "5"), long_one).prompts[0].ids.size(), 5U);
  boost::json::object batch = decoders_message("cmpl-x-0", 60);
  batch["batch_kv_transfer_params"] = boost::json::object{{"cmpl-x-0", decoders_message("cmpl-x-0", 60)},
                                                          {"cmpl-x-1", decoders_message("cmpl-x-1", 59)}};
  const Job both = good(asked(batch), "[" + long_one + "," + long_one + "]");
  EXPECT_EQ(both.prompts[0].ids.size(), 60U);
  EXPECT_EQ(both.prompts[1].ids.size(), 59U);

  // Pull: our proxy says what the client asked for; of a foreign one's decoder nothing is known.
  boost::json::object pull{{"do_remote_decode", true}};
  EXPECT_TRUE(good(asked(pull)).kv.remote_decode) << "it was not cut";
  EXPECT_FALSE(good(asked(pull), long_one).kv.remote_decode);
  EXPECT_TRUE(good(asked(pull, "5"), long_one).kv.remote_decode);
  pull["tandem_client"] = boost::json::object{{"max_tokens", 4}};
  const Job told = good(asked(pull), long_one);
  EXPECT_TRUE(told.kv.remote_decode);
  EXPECT_EQ(told.prompts[0].ids.size(), 60U);
}

TEST_F(RequestTest, MetaserversOfALayerwiseProxy) {
  const auto member = [](const std::string& url, const std::string& more = "") {
    return R"("kv_transfer_params":{"do_remote_decode":false,"do_remote_prefill":true,"metaserver":")" + url + "\"" +
           more + "}";
  };
  EXPECT_FALSE(good(member("http://h/x")).kv.metaserver) << "no connector: a plain local request";
  config_.kv_transfer = test::test_kv(config::KvRole::kConsumer);
  rebuild();
  const Job job = good(member("http://192.0.0.1:8080/v1/metaserver"));
  ASSERT_TRUE(job.kv.metaserver);
  EXPECT_EQ(job.kv.metaserver->endpoint.to_string(), "192.0.0.1:8080");
  EXPECT_FALSE(good(member("http://h/x", R"(,"do_virtual":true)")).kv.metaserver);
  EXPECT_FALSE(job.kv.metaserver->endpoint.tls);
  EXPECT_TRUE(good(member("https://h/x")).kv.metaserver->endpoint.tls);
  refused(member("gopher://h/x"), "its scheme is not http");
  refused(member("http://h/" + std::string(3000, 'x')), "at most 2048");
  config_.kv_metaserver_hosts = {"proxy", "192.0.0.1"};
  rebuild();
  EXPECT_TRUE(good(member("http://192.0.0.1:8080/v1/metaserver")).kv.metaserver);
  refused(member("http://169.254.169.254/latest"),
          "the metaserver's host '169.254.169.254' is not among --kv-metaserver-hosts");
}

TEST_F(RequestTest, PeersMustBeOthersAndInTheRankTable) {
  const std::string member =
      "\"kv_transfer_params\":" + boost::json::serialize(transfer::to_json(test::test_handover(1)));
  config_.kv_transfer = test::test_kv(config::KvRole::kConsumer);
  transfer_.engine_id = "P";
  transfer_.incarnation = 5;
  rebuild();
  refused(member, "Conflict engine id 'P'", 500);
  transfer_.incarnation = 77;
  rebuild();
  EXPECT_EQ(good(member).kv.remote_prefill.size(), 1U) << "its own hand-over";
  config_.kv_transfer->kind = config::KvConnector::kRankTable;
  config_.kv_transfer->rank_table = "table.json";
  config_.kv_transfer->peer_hosts = {"10.0.0.1", "127.0.0.1"};
  transfer_.incarnation = 5;
  rebuild();
  EXPECT_EQ(good(member).kv.remote_prefill.size(), 1U) << "rank table deployments call everybody 0";
  config_.kv_transfer->peer_hosts = {"10.0.0.1"};
  rebuild();
  refused(member, "handed over by 127.0.0.1 (engine 'P'), which is in no row of the rank table table.json", 500);
}

TEST_F(RequestTest, TheHeaderNamesADataParallelRank) {
  config_.data_parallel.size = config_.data_parallel.local = 4;
  rebuild();
  const auto with_header = [this](const std::string& value) {
    net::HttpRequest request = post(R"({"prompt":"abc"})");
    request.headers.set("X-data-parallel-rank", value);
    return prepare_completion(*context_, request);
  };
  EXPECT_EQ(good("").rank, std::nullopt);
  for (const std::int32_t rank : {0, 3}) EXPECT_EQ(with_header(std::to_string(rank))->rank, rank);
  for (const std::string value : {"4", "-1", "two", "1x", "", " 1", "99999999999999999999", "1.0"}) {
    const auto job = with_header(value);
    ASSERT_FALSE(job) << value;
    EXPECT_EQ(job.error().status, 400);
    EXPECT_THAT(job.error().message, HasSubstr("the header X-data-parallel-rank is '" + value.substr(0, 32) +
                                               "', expected a rank of this instance: 0 to 3"));
  }
  config_.data_parallel = {};
  rebuild();
  EXPECT_EQ(with_header("0")->rank, 0);
  EXPECT_THAT(with_header("1").error().message, HasSubstr("expected a rank of this instance: 0"));
}

}  // namespace
}  // namespace tandem::api
