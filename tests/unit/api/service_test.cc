// SPDX-License-Identifier: Apache-2.0
// The whole API over HTTP, with an engine whose outputs the test writes: exact JSON, order of events, errors before and
// after the head, clients that leave, hand-overs.
#include "service_fixture.h"

namespace tandem::api {
namespace {

using test::eventually;
using test::head_of;
using test::post_text;
using test::RawClient;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

TEST(Refusals, WhatAPeerDoesNotHaveIsNoMistakeOfTheClient) {
  EXPECT_EQ(Refusal(Status(Code::kNotFound, "no such model")).status, 404);
  EXPECT_EQ(Refusal(Status(Code::kNotFound, "D does not wait any more", Scope::kTransfer)).status, 503);
  EXPECT_EQ(Refusal(Status(Code::kInvalidArgument, "P sent nonsense", Scope::kPeer)).status, 503);
  EXPECT_EQ(Refusal(Status(Code::kInvalidArgument, "the hand-over has no blocks", Scope::kTransfer)).status, 400);
  EXPECT_EQ(Refusal(Status(Code::kDataLoss, "checksum", Scope::kTransfer)).status, 500);
}

TEST_F(ServiceTest, CompletionHasAllKeysInOrder) {
  const std::string response = ask("/v1/completions", R"({"prompt":"abc","model":"alias"})");
  ASSERT_EQ(status_of(response), 200);
  EXPECT_EQ(
      normalized(body_of(response)),
      R"({"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"Hi","logprobs":null,)"
      R"("finish_reason":"length","stop_reason":null,"token_ids":null,"prompt_logprobs":null,"prompt_token_ids":null}],)"
      R"("service_tier":null,"system_fingerprint":null,"usage":{"prompt_tokens":4,"total_tokens":6,"completion_tokens":2,)"
      R"("prompt_tokens_details":null},"kv_transfer_params":null})");
}

TEST_F(ServiceTest, ChatHasAllKeysInOrder) {
  const std::string response = ask("/v1/chat/completions", R"({"messages":[{"role":"user","content":"a"}]})");
  ASSERT_EQ(status_of(response), 200);
  EXPECT_EQ(
      normalized(body_of(response)),
      R"({"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant",)"
      R"("content":"Hi","refusal":null,"annotations":null,"audio":null,"function_call":null,"tool_calls":[],"reasoning":null,)"
      R"("reasoning_content":null},"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null}],)"
      R"("service_tier":null,"system_fingerprint":null,"usage":{"prompt_tokens":25,"total_tokens":27,"completion_tokens":2,)"
      R"("prompt_tokens_details":null},"prompt_logprobs":null,"prompt_token_ids":null,"kv_transfer_params":null})");
}

TEST_F(ServiceTest, CompletionStream) {
  EXPECT_THAT(
      events("/v1/completions", R"({"prompt":"abc","stream":true})"),
      ElementsAre(
          R"({"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"H","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}],"usage":null})",
          R"({"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"i","logprobs":null,"finish_reason":"length","stop_reason":null,"prompt_token_ids":null,"token_ids":null}],"usage":null})",
          "[DONE]"));
}

TEST_F(ServiceTest, ChatStreamBeginsWithTheRoleAndEndsWithUsage) {
  EXPECT_THAT(
      events("/v1/chat/completions",
             R"({"messages":[{"role":"user","content":"a"}],"stream":true,"stream_options":{"include_usage":true}})"),
      ElementsAre(
          R"({"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":null})",
          R"({"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"H"},"logprobs":null,"finish_reason":null,"token_ids":null}]})",
          R"({"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"i"},"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null}]})",
          R"({"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":{"prompt_tokens":25,"total_tokens":27,"completion_tokens":2}})",
          "[DONE]"));
}

TEST_F(ServiceTest, ContinuousUsageIsInEveryChunk) {
  const auto list = events(
      "/v1/chat/completions",
      R"({"messages":[{"role":"user","content":"a"}],"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}})");
  ASSERT_THAT(list, SizeIs(5));
  EXPECT_THAT(
      list[0],
      HasSubstr(R"("usage":{"prompt_tokens":25,"total_tokens":25,"completion_tokens":0},"prompt_token_ids":null})"));
  EXPECT_THAT(list[1], HasSubstr(R"("usage":{"prompt_tokens":25,"total_tokens":26,"completion_tokens":1}})"));
  EXPECT_THAT(list[2], HasSubstr(R"("completion_tokens":2}})"));
  EXPECT_THAT(list[3], HasSubstr(R"("choices":[],"usage")"));
}

TEST_F(ServiceTest, TokensWithoutTextAreChunksToo) {
  engine_.script = [this](std::size_t index) {
    engine_.say(index, "");
    engine_.say(index, "é");
    engine_.say(index, "", FinishReason::kStop);
  };
  const auto list = events("/v1/completions", R"({"prompt":"a","stream":true})");
  ASSERT_THAT(list, SizeIs(4));
  EXPECT_THAT(list[0], HasSubstr(R"("text":"")"));
  EXPECT_THAT(list[1], HasSubstr(R"("text":"é")"));
  EXPECT_THAT(list[2], HasSubstr(R"("finish_reason":"stop")"));
}

TEST_F(ServiceTest, StopReasonsKeepTheirType) {
  engine_.script = [this](std::size_t index) {
    engine::Output output;
    output.tokens = {1};
    output.finish = FinishReason::kStop;
    if (index == 0) output.stop_reason = std::string("END\"");
    if (index == 1) output.stop_reason = 151643;
    engine_.emit(index, output);
  };
  EXPECT_THAT(body_of(ask("/v1/completions", R"({"prompt":"a"})")), HasSubstr(R"("stop_reason":"END\"")"));
  EXPECT_THAT(body_of(ask("/v1/completions", R"({"prompt":"a"})")), HasSubstr(R"("stop_reason":151643)"));
}

TEST_F(ServiceTest, WhatAStoppingEngineCutsOffIsRefusedUnlessItHasBegun) {
  engine_.script = [this](std::size_t index) { engine_.say(index, "", FinishReason::kAbort); };
  for (const char* body : {R"({"prompt":"a"})", R"({"prompt":"a","stream":true})"}) {
    const std::string nothing = ask("/v1/completions", body);
    EXPECT_EQ(status_of(nothing), 503) << "another instance can be asked";
    EXPECT_THAT(nothing, AllOf(HasSubstr("the instance is stopping"), HasSubstr("Retry-After: 1")));
  }
  engine_.script = [this](std::size_t index) {
    engine_.say(index, "H");
    engine_.say(index, "", FinishReason::kAbort);
  };
  EXPECT_EQ(status_of(ask("/v1/completions", R"({"prompt":"a"})")), 503) << "half an answer is none";
  const auto list = events("/v1/completions", R"({"prompt":"a","stream":true})");
  ASSERT_THAT(list, SizeIs(3));
  EXPECT_THAT(list[1], HasSubstr(R"("finish_reason":"abort")"));
}

TEST_F(ServiceTest, LogprobsOfCompletions) {
  const std::string body = body_of(ask("/v1/completions", R"({"prompt":"a","logprobs":2})"));
  EXPECT_THAT(body, HasSubstr(R"("logprobs":{"text_offset":[0,1],"token_logprobs":[-0.5,-0.5],"tokens":["H","i"],)"
                              R"("top_logprobs":[{"H":-0.5,"b":-1.5},{"i":-0.5,"b":-1.5}]})"));
  const auto list = events("/v1/completions", R"({"prompt":"a","logprobs":0,"stream":true})");
  EXPECT_THAT(
      list[1],
      HasSubstr(
          R"("logprobs":{"text_offset":[1],"token_logprobs":[-0.5],"tokens":["i"],"top_logprobs":[{"i":-0.5}]})"));
}

TEST_F(ServiceTest, LogprobsOfChats) {
  const std::string chat = R"({"messages":[{"role":"user","content":"a"}],"logprobs":true)";
  EXPECT_THAT(
      body_of(ask("/v1/chat/completions", chat + R"(,"top_logprobs":2})")),
      HasSubstr(
          R"("logprobs":{"content":[{"token":"H","logprob":-0.5,"bytes":[72],"top_logprobs":[{"token":"H","logprob":-0.5,"bytes":[72]},)"
          R"({"token":"b","logprob":-1.5,"bytes":[98]}]},)"));
  EXPECT_THAT(body_of(ask("/v1/chat/completions", chat + "}")), HasSubstr(R"("bytes":[72],"top_logprobs":[]},)"));
  EXPECT_THAT(body_of(ask("/v1/chat/completions", chat + R"(,"return_tokens_as_token_ids":true})")),
              HasSubstr(R"("token":"token_id:72")"));
}

TEST_F(ServiceTest, ChoicesOfSeveralPrompts) {
  const auto body = json::parse(body_of(ask("/v1/completions", R"({"prompt":["ab","c"],"n":2,"seed":7,"max_tokens":2})",
                                            "X-Request-Id: r\r\n")))
                        .as_object();
  ASSERT_EQ(body.at("choices").as_array().size(), 4U);
  EXPECT_EQ(body.at("id").as_string(), "cmpl-r");
  EXPECT_EQ(body.at("usage").at("prompt_tokens").as_int64(), 3 + 2);
  EXPECT_EQ(body.at("usage").at("completion_tokens").as_int64(), 8);
  EXPECT_EQ(engine_.submitted(0).request.id, "0_cmpl-r-0");
  EXPECT_EQ(engine_.submitted(3).request.id, "1_cmpl-r-1");
  EXPECT_EQ(engine_.submitted(1).request.sampling->seed, 8U);
  EXPECT_EQ(engine_.submitted(2).request.sampling->seed, 7U);
  EXPECT_EQ(engine_.submitted(0).request.group->size, 2);
  EXPECT_EQ(engine_.submitted(0).request.group, engine_.submitted(1).request.group);
  EXPECT_NE(engine_.submitted(0).request.group, engine_.submitted(2).request.group) << "of another prompt";
}

TEST_F(ServiceTest, EchoAndTokenIds) {
  EXPECT_THAT(body_of(ask("/v1/completions", R"({"prompt":"abc","echo":true})")), HasSubstr(R"("text":"abcHi")"));
  EXPECT_THAT(body_of(ask("/v1/completions", R"({"prompt":[97,98],"echo":true})")), HasSubstr(R"("text":"abHi")"));
  engine_.script = [this](std::size_t index) { engine_.say(index, "x", FinishReason::kLength); };
  const std::string only_prompt = body_of(ask("/v1/completions", R"({"prompt":"abc","echo":true,"max_tokens":0})"));
  EXPECT_THAT(only_prompt, HasSubstr(R"("text":"abc")"));
  EXPECT_THAT(only_prompt, HasSubstr(R"("completion_tokens":1)"));
  EXPECT_THAT(body_of(ask("/v1/completions", R"({"prompt":[97],"return_token_ids":true})")),
              HasSubstr(R"("token_ids":[120],"prompt_logprobs":null,"prompt_token_ids":[97])"));
}

TEST_F(ServiceTest, RefusalsComeBeforeTheHeadOfAStream) {
  for (const char* path : {"/v1/completions", "/v1/chat/completions"}) {
    const std::string response =
        ask(path, R"({"prompt":"a","messages":[{"role":"user","content":"x"}],"stream":true,"temperature":-1})");
    EXPECT_EQ(status_of(response), 400);
    const auto error = error_of(response);
    EXPECT_EQ(error.at("type").as_string(), "BadRequestError");
    EXPECT_EQ(error.at("code").as_int64(), 400);
    EXPECT_EQ(error.at("param").as_string(), "temperature");
  }
  EXPECT_EQ(engine_.num_submitted(), 0U);
}

TEST_F(ServiceTest, AFullQueueIs503WithRetryAfter) {
  engine_.refusal = Status(Code::kResourceExhausted, "too many requests are waiting");
  const std::string response = ask("/v1/completions", R"({"prompt":"a"})");
  EXPECT_EQ(status_of(response), 503);
  EXPECT_THAT(head_of(response), HasSubstr("Retry-After: 1"));
}

TEST_F(ServiceTest, EngineErrorsAreStatusesBeforeTheFirstToken) {
  engine_.script = [this](std::size_t index) {
    engine::Output output;
    output.error = Status(Code::kDataLoss, "block 3 has a wrong checksum");
    engine_.emit(index, output);
  };
  for (const char* stream : {"true", "false"}) {
    const std::string response = ask("/v1/completions", std::string(R"({"prompt":"a","stream":)") + stream + "}");
    EXPECT_EQ(status_of(response), 500);
    EXPECT_THAT(std::string(error_of(response).at("message").as_string()), HasSubstr("wrong checksum"));
  }
}

TEST_F(ServiceTest, EngineErrorsInMidStreamAreEventsAndDone) {
  engine_.script = [this](std::size_t index) {
    engine_.say(index, "H");
    engine::Output output;
    output.error = Status(Code::kInternal, "worker died");
    engine_.emit(index, output);
  };
  const auto list = events("/v1/completions", R"({"prompt":"a","stream":true})");
  ASSERT_THAT(list, SizeIs(3));
  EXPECT_EQ(list[1],
            R"({"error": {"message": "worker died", "type": "InternalServerError", "param": null, "code": 500}})");
  EXPECT_EQ(list[2], "[DONE]");
}

TEST_F(ServiceTest, AnEngineThatDiesWordlesslyIsNoticed) {
  engine_.script = [this](std::size_t index) {
    engine_.say(index, "H");
    engine_.alive = false;
  };
  const auto list = events("/v1/completions", R"({"prompt":"a","stream":true})");
  ASSERT_THAT(list, SizeIs(3));
  EXPECT_THAT(list[1], HasSubstr("EngineCore encountered an issue."));
  EXPECT_EQ(status_of(get("/health")), 503);
}

TEST_F(ServiceTest, AClientThatLeavesIsAborted) {
  engine_.script = [this](std::size_t index) { engine_.say(index, "H"); };
  {
    RawClient streaming(port());
    streaming.send(post_text("/v1/completions", R"({"prompt":["a","b"],"stream":true})"));
    streaming.read_until("\"text\":\"H\"");
  }
  EXPECT_TRUE(eventually([this] { return engine_.num_aborted() == 2; }));
  {
    RawClient waiting(port());
    waiting.send(post_text("/v1/chat/completions", R"({"messages":[{"role":"user","content":"a"}]})"));
    EXPECT_TRUE(eventually([this] { return engine_.num_submitted() == 3; }));
  }
  EXPECT_TRUE(eventually([this] { return engine_.num_aborted() == 3; }));
  EXPECT_TRUE(eventually([this] { return body_of(get("/load")) == R"({"server_load":0})"; }));
}

TEST_F(ServiceTest, PrefillersHandOverEveryPrompt) {
  config_.kv_transfer = test::test_kv(config::KvRole::kProducer);
  engine_.script = [this](std::size_t index) {
    engine::Output output;
    output.tokens = {5};
    output.finish = FinishReason::kLength;
    if (engine_.submitted(index).request.remote_decode) output.handover = test::test_handover(index);
    engine_.emit(index, output);
  };
  const std::string decode =
      R"("max_tokens":1,"min_tokens":1,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null})";
  const auto body =
      json::parse(body_of(ask("/v1/completions", R"({"prompt":["a","b"],"n":2,)" + decode + "}"))).as_object();
  const auto& params = body.at("kv_transfer_params").as_object();
  EXPECT_TRUE(params.at("do_remote_prefill").as_bool());
  EXPECT_EQ(params.at("remote_engine_id").as_string(), "P");
  EXPECT_EQ(params.at("last_token_id").as_int64(), 5);
  EXPECT_EQ(params.at("tandem_prompts").as_array().size(), 1U);
  // One of a prompt's choices carries its KV.
  EXPECT_TRUE(engine_.submitted(0).request.remote_decode);
  EXPECT_FALSE(engine_.submitted(1).request.remote_decode);
  EXPECT_TRUE(engine_.submitted(2).request.remote_decode);
  const std::string released = ask("/tandem/release", json::serialize(json::object{{"kv_transfer_params", params}}));
  EXPECT_EQ(body_of(released), R"({"released":true})");
  EXPECT_THAT(engine_.released(), SizeIs(2));
}

TEST_F(ServiceTest, AProxyThatMissedTheAnswerReleasesByRequestId) {
  config_.kv_transfer = test::test_kv(config::KvRole::kProducer);
  engine_.script = [this](std::size_t index) {
    engine::Output output;
    output.tokens = {5};
    output.finish = FinishReason::kLength;
    output.handover = test::test_handover(9);
    engine_.emit(index, output);
  };
  const std::string id = "X-Request-Id: abc\r\n";
  ask("/v1/completions", R"({"prompt":"a","kv_transfer_params":{"do_remote_decode":true}})", id);
  EXPECT_EQ(body_of(ask("/tandem/release", "{}", "X-Request-Id: another\r\n")), R"({"released":false})");
  EXPECT_EQ(body_of(ask("/tandem/release", "{}", id)), R"({"released":true})");
  ASSERT_THAT(engine_.released(), SizeIs(1));
  EXPECT_EQ(engine_.released()[0].id, 9U);
}

TEST_F(ServiceTest, HandoversThatNobodyReceivesAreGivenUp) {
  config_.kv_transfer = test::test_kv(config::KvRole::kProducer);
  engine_.script = {};
  {
    RawClient client(port());
    client.send(post_text("/v1/completions", R"({"prompt":"a","kv_transfer_params":{"do_remote_decode":true}})"));
    ASSERT_TRUE(eventually([this] { return engine_.num_submitted() == 1; }));
  }
  ASSERT_TRUE(eventually([this] { return engine_.num_aborted() == 1; }));
  engine::Output late;  // the abort came too late: the prefill was done
  late.finish = FinishReason::kLength;
  late.handover = test::test_handover(9);
  engine_.emit(0, late);
  ASSERT_TRUE(eventually([this] { return engine_.released().size() == 1; }));
  EXPECT_EQ(engine_.released()[0].id, 9U);
}

TEST_F(ServiceTest, DecodersGetThePromptsHandover) {
  config_.kv_transfer = test::test_kv(config::KvRole::kConsumer);
  const std::string params = json::serialize(transfer::to_json(test::test_handover(4)));
  ask("/v1/completions", R"({"prompt":"a","n":2,"kv_transfer_params":)" + params + "}");
  ASSERT_EQ(engine_.num_submitted(), 2U);
  EXPECT_EQ(engine_.submitted(0).request.remote_prefill->lease.id, 4U);
  EXPECT_EQ(engine_.submitted(1).request.remote_prefill->lease.id, 4U);
  EXPECT_THAT(engine_.calls(), ElementsAre("hold", "hold", "submit", "submit", "drop", "drop"))
      << "one choice may be done before the other is submitted";
}

TEST_F(ServiceTest, ReleaseNeverFails) {
  for (const char* body :
       {"{}", "nonsense", R"({"kv_transfer_params":{"do_remote_prefill":true,"tandem":{"lease":"zz"}}})"}) {
    const std::string response = ask("/tandem/release", body);
    EXPECT_EQ(status_of(response), 200);
    EXPECT_EQ(body_of(response), R"({"released":false})");
  }
}

TEST_F(ServiceTest, TimesAreToldToThoseWhoAsk) {
  EXPECT_THAT(head_of(ask("/v1/completions", R"({"prompt":"a"})", "X-Tandem-Timing: 1\r\n")),
              HasSubstr("X-Tandem-Timing: template=0.500000;queue=0.250000;lease_wait=0.000000;transfer=0.125000;"
                        "verify=0.000000;prefill=0.000000;first_step=0.062500\r\n"));
  EXPECT_THAT(head_of(ask("/v1/completions", R"({"prompt":"a"})")), Not(HasSubstr("X-Tandem-Timing")));
  const std::string streamed = ask("/v1/completions", R"({"prompt":"a","stream":true})", "X-Tandem-Timing: 1\r\n");
  EXPECT_THAT(head_of(streamed), HasSubstr("X-Tandem-Timing: template=0.500000;queue=0.250000;"));
  EXPECT_THAT(body_of(streamed), Not(HasSubstr("timing")));
}

TEST_F(ServiceTest, TheSlowestChoiceTellsItsTimes) {
  engine_.script = [this](std::size_t index) {
    engine::Output output;
    output.tokens = {'x'};
    output.finish = FinishReason::kLength;
    output.times.queue = index == 1 ? 0.75 : 0.5;
    engine_.emit(index, std::move(output));
  };
  EXPECT_THAT(head_of(ask("/v1/completions", R"({"prompt":["a","b","c"]})", "X-Tandem-Timing: 1\r\n")),
              HasSubstr(";queue=0.750000;"));
}

TEST_F(ServiceTest, EngineIsToldWhenTheRequestCame) {
  ask("/v1/completions", R"({"prompt":"a"})",
      "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n");
  const engine::GenerationRequest request = engine_.submitted(0).request;
  EXPECT_LT(request.received, request.arrival);
  EXPECT_GT(request.received, request.arrival - std::chrono::seconds(10));
  EXPECT_EQ(request.traceparent, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
  ask("/v1/completions", R"({"prompt":"a"})", "traceparent: 00-<script>\r\n");
  EXPECT_EQ(engine_.submitted(1).request.traceparent, "");
}

TEST_F(ServiceTest, DecoderOfALayerwiseProxy) {
  config_.kv_transfer = test::test_kv(config::KvRole::kConsumer);
  const std::string params =
      R"("kv_transfer_params":{"do_remote_decode":false,"do_remote_prefill":true,"metaserver":"http://h:81/v1/metaserver"})";
  ask("/v1/completions", R"({"prompt":["a","b"],"n":2,)" + params + "}", "X-Request-Id: 12-34\r\n");
  ASSERT_EQ(engine_.num_submitted(), 4U);
  for (const std::size_t index : {0U, 2U}) {  // the first choice of each prompt
    const auto& metaserver = engine_.submitted(index).request.metaserver;
    ASSERT_TRUE(metaserver);
    EXPECT_EQ(metaserver->host, "h");
    EXPECT_EQ(metaserver->port, 81);
    EXPECT_EQ(metaserver->target, "/v1/metaserver");
    EXPECT_EQ(metaserver->request_id, index == 0 ? "cmpl-12-34-0" : "cmpl-12-34-1");
    EXPECT_FALSE(engine_.submitted(index + 1).request.metaserver);
  }
  ask("/v1/chat/completions", R"({"messages":[{"role":"user","content":"a"}],)" + params + "}",
      "X-Request-Id: 12-34\r\n");
  EXPECT_EQ(engine_.submitted(4).request.metaserver->request_id, "chatcmpl-12-34");
}

TEST_F(ServiceTest, InfoTellsTheConnector) {
  EXPECT_EQ(body_of(get("/tandem/info")),
            R"({"engine_id":"e1","kv_connector":"MooncakeLayerwiseConnector","kv_role":"kv_consumer",)"
            R"("incarnation":"fedcba9876543210","tp_size":2,"dp_size":1,"dp_start_rank":0,"dp_size_local":1,)"
            R"("block_size":16,"model":"m"})");
}

TEST_F(ServiceTest, UtilityEndpoints) {
  EXPECT_EQ(status_of(get("/health")), 200);
  EXPECT_EQ(body_of(get("/health")), "");
  EXPECT_EQ(status_of(get("/ping", "POST")), 200);
  EXPECT_THAT(body_of(get("/version")), testing::StartsWith(R"({"version":")"));
  EXPECT_THAT(test::head_of(get("/version")), Not(testing::ContainsRegex("\n[Ss]erver:")));
  EXPECT_EQ(body_of(get("/load")), R"({"server_load":0})");
  registry_.counter("x_total", "help");
  EXPECT_THAT(get("/metrics"), HasSubstr("text/plain; version=0.0.4; charset=utf-8"));
  EXPECT_EQ(status_of(get("/reset_prefix_cache", "POST")), 200);
  EXPECT_EQ(engine_.num_resets, 1);
  EXPECT_EQ(body_of(get("/nope")), R"({"detail":"Not Found"})");
  EXPECT_EQ(status_of(get("/v1/completions")), 405);
  EXPECT_EQ(status_of(get("/v1/models", "OPTIONS")), 405) << "no browser asks so";
  EXPECT_THAT(
      normalized(body_of(get("/v1/models"))),
      testing::StartsWith(
          R"({"object":"list","data":[{"id":"m","object":"model","created":1,"owned_by":"vllm","root":"models/test","parent":null,"max_model_len":64,"permission":[{"id":"modelperm-1",)"));
}

TEST_F(ServiceTest, TokenizeAndDetokenize) {
  EXPECT_EQ(body_of(ask("/tokenize", R"({"prompt":"ab"})")),
            R"({"count":3,"max_model_len":64,"tokens":[256,97,98],"token_strs":null})");
  EXPECT_EQ(body_of(ask("/tokenize", R"({"prompt":"a","add_special_tokens":false,"return_token_strs":true})")),
            R"({"count":1,"max_model_len":64,"tokens":[97],"token_strs":["a"]})");
  EXPECT_THAT(body_of(ask("/tokenize", R"({"messages":[{"role":"u","content":"x"}]})")), HasSubstr(R"("count":19,)"));
  EXPECT_EQ(body_of(ask("/detokenize", R"({"tokens":[256,97]})")), R"({"prompt":"<bos>a"})");
  EXPECT_EQ(body_of(ask("/detokenize", R"({"tokens":["98",97.0]})")), R"({"prompt":"ba"})");
  EXPECT_EQ(status_of(ask("/detokenize", R"({"tokens":[999]})")), 400);
  EXPECT_EQ(status_of(ask("/detokenize", R"({})")), 400);
  EXPECT_EQ(status_of(ask("/tokenize", R"({"prompt":"a","model":"nobody"})")), 404);
}

TEST_F(ServiceTest, LargeBodiesAreWorkedOnAsideAndRefusedAlike) {
  const std::string large(200'000, 'a');
  for (const char* path : {"/v1/completions", "/v1/chat/completions"}) {
    const std::string response =
        ask(path, R"({"messages":[{"role":"user","content":")" + large + R"("}],"prompt":")" + large + "\"}");
    EXPECT_EQ(status_of(response), 400);
    EXPECT_THAT(std::string(error_of(response).at("message").as_string()),
                HasSubstr("maximum context length is 64 tokens"));
  }
  EXPECT_THAT(body_of(ask("/tokenize", R"({"prompt":")" + large + "\"}")), testing::StartsWith(R"({"count":200001,)"));
  EXPECT_EQ(status_of(ask("/v1/completions", R"({"prompt":"a","user":")" + large + "\"}")), 200);
}

TEST_F(ServiceTest, CachedTokensAreToldWithTheFlag) {
  config_.enable_prompt_tokens_details = true;
  engine_.script = [this](std::size_t index) {
    engine::Output output;
    output.tokens = {1};
    output.finish = FinishReason::kLength;
    output.num_cached_tokens = 2;
    engine_.emit(index, output);
  };
  EXPECT_THAT(body_of(ask("/v1/completions", R"({"prompt":"abc"})")),
              HasSubstr(R"("prompt_tokens_details":{"cached_tokens":2}})"));
}

TEST_F(ServiceTest, LogProbabilitiesOfThePrompt) {
  engine_.script = [this](std::size_t index) {
    engine::Output output;
    output.tokens = {'x'};
    output.text = "x";
    output.finish = FinishReason::kLength;
    output.prompt_logprobs = {{}, {{'b', -1.5F, 2}, {'c', -0.5F, 1}}};
    if (engine_.submitted(index).request.sampling->logprobs) output.logprobs = {{{'x', -0.25F, 1}}};
    engine_.emit(index, std::move(output));
  };
  const json::value asked = json::parse(body_of(ask("/v1/completions", R"({"prompt":[97,98],"prompt_logprobs":1})")));
  EXPECT_EQ(asked.at("choices").at(0).at("prompt_logprobs"),
            json::parse(R"([null,{"98":{"logprob":-1.5,"rank":2,"decoded_token":"b"},
                                  "99":{"logprob":-0.5,"rank":1,"decoded_token":"c"}}])"));
  const json::value echo =
      json::parse(body_of(ask("/v1/completions", R"({"prompt":[97,98],"echo":true,"logprobs":1})")));
  EXPECT_EQ(echo.at("choices").at(0).at("text"), "abx");
  EXPECT_TRUE(echo.at("choices").at(0).at("prompt_logprobs").is_null());
  EXPECT_EQ(echo.at("choices").at(0).at("logprobs"),
            json::parse(R"({"text_offset":[0,1,2],"token_logprobs":[null,-1.5,-0.25],"tokens":["a","b","x"],
                            "top_logprobs":[null,{"b":-1.5,"c":-0.5},{"x":-0.25}]})"));
  const json::value only =
      json::parse(body_of(ask("/v1/completions", R"({"prompt":[97,98],"echo":true,"logprobs":1,"max_tokens":0})")));
  EXPECT_EQ(only.at("choices").at(0).at("logprobs").at("tokens"), json::parse(R"(["a","b"])"));
  const json::value chat = json::parse(
      body_of(ask("/v1/chat/completions", R"({"messages":[{"role":"user","content":"a"}],"prompt_logprobs":0})")));
  EXPECT_EQ(chat.at("prompt_logprobs").as_array().size(), 2U);
}

TEST_F(ServiceTest, LogProbabilitiesOfAPromptOfOneToken) {
  engine_.script = [this](std::size_t index) {
    engine::Output output;
    output.tokens = {'x'};
    output.text = "x";
    output.finish = FinishReason::kLength;
    output.logprobs = {{{'x', -0.25F, 1}}};
    output.prompt_logprobs = {{}};
    engine_.emit(index, std::move(output));
  };
  const std::string body = R"({"prompt":[97],"echo":true,"logprobs":0,"prompt_logprobs":0)";
  const json::value whole = json::parse(body_of(ask("/v1/completions", body + "}"))).at("choices").at(0);
  EXPECT_EQ(whole.at("prompt_logprobs"), json::parse("[null]"));
  EXPECT_EQ(whole.at("logprobs"), json::parse(R"({"text_offset":[0,1],"token_logprobs":[null,-0.25],"tokens":["a","x"],
                                                  "top_logprobs":[null,{"x":-0.25}]})"));
  const json::value event = json::parse(events("/v1/completions", body + R"(,"stream":true})").front());
  EXPECT_EQ(event.at("choices").at(0).at("logprobs"), whole.at("logprobs"));
  const json::value none = json::parse(body_of(ask("/v1/completions", body + R"(,"max_tokens":0})")));
  EXPECT_EQ(none.at("choices").at(0).at("logprobs").at("tokens"), json::parse(R"(["a"])"));
}

}  // namespace
}  // namespace tandem::api
