// SPDX-License-Identifier: Apache-2.0
// What streams and whole answers have beside text: when they begin, echoes, ids, and what never is in them.
#include "service_fixture.h"

namespace tandem::api {
namespace {

using test::eventually;
using test::post_text;
using test::RawClient;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr std::string_view kChat = R"({"messages":[{"role":"user","content":"a"}])";

TEST_F(ServiceTest, TheRoleComesWithTheFirstToken) {
  engine_.script = nullptr;
  RawClient client(port());
  client.send(post_text("/v1/chat/completions", std::string(kChat) + R"(,"stream":true})"));
  ASSERT_TRUE(eventually([this] { return engine_.num_submitted() == 1; }));
  EXPECT_THAT(client.read_some(std::chrono::milliseconds(50)), IsEmpty()) << "not even a head";
  engine_.say(0, "H", FinishReason::kLength);
  const std::string answer = client.read_until("[DONE]");
  EXPECT_LT(answer.find(R"("delta":{"role":"assistant","content":""})"), answer.find(R"("delta":{"content":"H"})"));
  EXPECT_THAT(answer, HasSubstr(R"("finish_reason":"length")"));
}

TEST_F(ServiceTest, EchoOfAChatIsItsLastMessageIfTheRoleIsTheSame) {
  const std::string body =
      R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"So"}],"echo":true,)";
  for (const char* how : {R"("continue_final_message":true)", R"("add_generation_prompt":true)"})
    EXPECT_THAT(body_of(ask("/v1/chat/completions", body + how + "}")), HasSubstr(R"("content":"SoHi")"));
  const auto list = events("/v1/chat/completions", body + R"("stream":true})");
  ASSERT_THAT(list, SizeIs(5));
  EXPECT_THAT(list[1], HasSubstr(R"("delta":{"content":"So"})"));
  EXPECT_THAT(body_of(ask("/v1/chat/completions", std::string(kChat) + R"(,"echo":true})")),
              HasSubstr(R"("content":"Hi")"))
      << "a user's words are no assistant's";
}

TEST_F(ServiceTest, WithoutAGenerationPromptTheRoleIsTheLastMessages) {
  const std::string body = std::string(kChat) + R"(,"add_generation_prompt":false)";
  EXPECT_THAT(body_of(ask("/v1/chat/completions", body + "}")), HasSubstr(R"("role":"user","content":"Hi")"));
  config_.response_role = "bot";
  EXPECT_THAT(events("/v1/chat/completions", body + R"(,"stream":true})").front(), HasSubstr(R"("role":"user")"));
}

TEST_F(ServiceTest, EchoWithTokenIdsHasIdsInPlaceOfText) {
  const std::string answer =
      body_of(ask("/v1/completions", R"({"prompt":[97,98],"echo":true,"return_token_ids":true})"));
  EXPECT_THAT(answer, HasSubstr(R"("text":"Hi")"));
  EXPECT_THAT(answer, HasSubstr(R"("token_ids":[72,105],"prompt_logprobs":null,"prompt_token_ids":[97,98])"));
}

TEST_F(ServiceTest, PromptIdsAreInTheFirstChunkOnlyAndIfAskedFor) {
  for (const bool asked : {true, false}) {
    const auto list = events("/v1/completions", std::string(R"({"prompt":[97],"stream":true,"return_token_ids":)") +
                                                    (asked ? "true}" : "false}"));
    ASSERT_THAT(list, SizeIs(3));
    EXPECT_THAT(list[0], HasSubstr(asked ? R"("prompt_token_ids":[97],"token_ids":[72])"
                                         : R"("prompt_token_ids":null,"token_ids":null)"));
    EXPECT_THAT(list[1], HasSubstr(R"("prompt_token_ids":null)"));
  }
}

TEST_F(ServiceTest, NoStreamCarriesAHandover) {
  config_.kv_transfer = test::test_kv(config::KvRole::kProducer);
  const std::string body =
      R"({"prompt":"a","stream":true,"stream_options":{"include_usage":true},"kv_transfer_params":{"do_remote_decode":true}})";
  for (const std::string& event : events("/v1/completions", body))
    EXPECT_THAT(event, Not(HasSubstr("kv_transfer_params")));
  EXPECT_FALSE(engine_.submitted(0).request.remote_decode) << "nothing would ever release it";
}

TEST_F(ServiceTest, ARefusalDoesNotRepeatTheRequest) {
  const std::string secret(100, 's');
  for (const char* members : {R"("top_p":"x")", R"("stream_options":{"include_usage":true})", R"("temperature":-1)"}) {
    const std::string response = ask("/v1/completions", R"({"prompt":")" + secret + "\"," + members + "}");
    EXPECT_EQ(status_of(response), 400);
    EXPECT_THAT(body_of(response), Not(HasSubstr(secret)));
    const json::object error = error_of(response);
    EXPECT_EQ(error.at("code"), 400);
    EXPECT_EQ(error.at("type"), "BadRequestError");
    EXPECT_TRUE(error.contains("param"));
  }
}

TEST_F(ServiceTest, FieldsReachTheEngine) {
  ask("/v1/completions",
      R"({"prompt":"a","priority":-2,"cache_salt":"s","max_tokens":9,"min_tokens":2,"stop":["x"],"stop_token_ids":[3],)"
      R"("include_stop_str_in_output":true,"ignore_eos":true,"skip_special_tokens":false,"seed":-5,"allowed_token_ids":[1,2],)"
      R"("repetition_penalty":1.5,"presence_penalty":1,"frequency_penalty":-1,"top_k":4,"top_p":0.5,"min_p":0.25})");
  const engine::GenerationRequest request = engine_.submitted(0).request;
  EXPECT_EQ(request.priority, -2);
  EXPECT_EQ(request.cache_salt, "s");
  const worker::SamplingParams& sampling = *request.sampling;
  EXPECT_EQ(sampling.max_tokens, 9);
  EXPECT_EQ(sampling.min_tokens, 2);
  EXPECT_THAT(sampling.stop, ::testing::ElementsAre("x"));
  EXPECT_THAT(sampling.stop_token_ids, ::testing::ElementsAre(3));
  EXPECT_TRUE(sampling.include_stop_str_in_output && sampling.ignore_eos && !sampling.skip_special_tokens);
  EXPECT_EQ(sampling.seed, static_cast<std::uint64_t>(-5));
  EXPECT_THAT(sampling.allowed_token_ids, ::testing::ElementsAre(1, 2));
  EXPECT_EQ(sampling.repetition_penalty, 1.5);
  EXPECT_EQ(sampling.presence_penalty, 1.0);
  EXPECT_EQ(sampling.frequency_penalty, -1.0);
  EXPECT_EQ(sampling.top_k, 4);
  EXPECT_EQ(sampling.top_p, 0.5);
  EXPECT_EQ(sampling.min_p, 0.25);
}

}  // namespace
}  // namespace tandem::api
