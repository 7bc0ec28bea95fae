// SPDX-License-Identifier: Apache-2.0
// Which endpoints there are, with which flags, and that /openapi.json says so.
#include "service_fixture.h"

namespace tandem::api {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class EndpointsTest : public ServiceTest {
 protected:
  json::object documented_paths() {
    return json::parse(body_of(get("/openapi.json"))).as_object().at("paths").as_object();
  }
  /// The answer to a method and path, with a body if it is a POST.
  std::string call(const std::string& method, const std::string& path) {
    return method == "post" ? ask(path, "{}") : get(path);
  }
};

TEST_F(EndpointsTest, EveryDocumentedRouteAnswers) {
  config_.dev_mode = config_.tokenizer_info = true;
  std::size_t count = 0;
  const json::object paths = documented_paths();
  for (const auto& path : paths) {
    for (const auto& operation : path.value().as_object()) {
      const std::string name(path.key());
      const std::string answer = call(std::string(operation.key()), name);
      EXPECT_THAT(answer, Not(HasSubstr(R"({"detail":)"))) << name;
      ++count;
      // A route that is refused says so with the status that is documented, and why.
      const json::object& responses = operation.value().at("responses").as_object();
      const int documented = std::stoi(std::string(responses.begin()->key()));
      if (documented < 400) continue;
      EXPECT_EQ(status_of(answer), documented) << name;
      EXPECT_GT(error_of(answer)["message"].as_string().size(), 20U) << name;
    }
  }
  EXPECT_GT(count, 35U);
}

/// By names, so that one that leaves the table is missed.
TEST_F(EndpointsTest, EveryRouteIsDocumented) {
  const json::object paths = documented_paths();
  for (const char* path :
       {"/v1/chat/completions", "/v1/completions", "/invocations", "/v1/models", "/tokenize", "/detokenize", "/health",
        "/ping", "/version", "/load", "/metrics", "/reset_prefix_cache", "/is_scaling_elastic_ep", "/tandem/release",
        "/tandem/info", "/v1/embeddings", "/openapi.json", "/docs", "/redoc"})
    EXPECT_TRUE(paths.contains(path)) << path;
  EXPECT_EQ(paths.at("/ping").as_object().size(), 2U);
  const std::string page = get("/docs");
  EXPECT_THAT(page, HasSubstr("text/html"));
  for (const auto& path : paths) EXPECT_THAT(page, HasSubstr("<code>" + std::string(path.key()) + "</code>"));
}

/// A value of no type that the member could have is refused by the member's name: so it is read.
TEST_F(EndpointsTest, EveryDocumentedMemberIsRead) {
  const json::object chat = json::parse(R"({"messages":[{"role":"user","content":"a"}]})").as_object();
  const json::object completion = json::parse(R"({"prompt":"a"})").as_object();
  const json::object tokens = json::parse(R"({"tokens":[1]})").as_object();
  std::size_t count = 0;
  const json::object paths = documented_paths();
  for (const auto& path : paths) {
    const std::string name(path.key());
    const json::object* post =
        path.value().as_object().if_contains("post") ? &path.value().as_object().at("post").as_object() : nullptr;
    // A release never fails, so that proxies need not look.
    if (post == nullptr || !post->contains("requestBody") || name == "/tandem/release") continue;
    const json::object& properties =
        post->at("requestBody").at_pointer("/content/application~1json/schema/properties").as_object();
    for (const auto& member : properties) {
      const std::string field(member.key());
      const json::value* type = member.value().as_object().if_contains("type");
      const bool wants_object = type != nullptr && type->at(0).as_string() == "object";
      bool refused = false;
      for (json::object body : {chat, completion, tokens}) {
        body[field] = wants_object || field == "guided_json" ? json::value(json::array{1})
                                                             : json::value(json::object{{"x", json::object()}});
        const std::string answer = ask(name, json::serialize(body));
        if (status_of(answer) != 400) continue;
        const json::object error = error_of(answer);
        const std::string message(error.at("message").as_string());
        const json::value& param = error.at("param");
        refused =
            refused || message.find(field) != std::string::npos || (param.is_string() && param.as_string() == field);
      }
      EXPECT_TRUE(refused) << name << ": " << field;
      ++count;
    }
  }
  EXPECT_GT(count, 150U);
}

#ifndef NDEBUG
TEST(RequestSchemaDeathTest, OnlyDocumentedMembersCanBeRead) {
  const json::object body = json::parse(R"({"prompt":"a"})").as_object();
  const Fields fields(body, completion_schema());
  EXPECT_TRUE(fields.has("prompt"));
  EXPECT_DEATH((void)fields.has("messages"), "request_schema.cc");
}
#endif

TEST_F(EndpointsTest, DocumentationCanBeTurnedOff) {
  config_.disable_docs = true;
  for (const char* path : {"/openapi.json", "/docs", "/redoc"}) EXPECT_EQ(status_of(get(path)), 404) << path;
}

TEST_F(EndpointsTest, TheNumberOfRanksIsNeverBeingChanged) {
  EXPECT_EQ(body_of(ask("/is_scaling_elastic_ep", "")), R"({"is_scaling_elastic_ep":false})");
}

TEST_F(EndpointsTest, OtherKindsOfModelsAreA404WithTheReason) {
  for (const char* path : {"/v1/embeddings", "/pooling", "/classify", "/score", "/v1/score", "/rerank", "/v1/rerank",
                           "/v2/rerank", "/v1/audio/transcriptions", "/v1/audio/translations", "/v1/responses"}) {
    const std::string answer = ask(path, R"({"input":"a"})");
    EXPECT_EQ(status_of(answer), 404) << path;
    EXPECT_EQ(error_of(answer)["type"].as_string(), "NotFoundError") << path;
  }
  EXPECT_THAT(ask("/v1/embeddings", "{}"), HasSubstr("The model does not support Embeddings API"));
}

TEST_F(EndpointsTest, SleepIsNotThereWithoutDevModeAndRefusedWithIt) {
  for (const char* path : {"/sleep?level=1", "/wake_up", "/collective_rpc"})
    EXPECT_EQ(body_of(ask(path, "{}")), R"({"detail":"Not Found"})") << path;
  EXPECT_EQ(status_of(get("/is_sleeping")), 404);
  EXPECT_EQ(status_of(get("/server_info")), 404);
  EXPECT_EQ(status_of(ask("/reset_prefix_cache", "")), 200);
}

TEST_F(EndpointsTest, DevModeTellsOfTheInside) {
  config_.dev_mode = true;
  config_.api_keys = {"a-secret"};
  const std::string sleep = ask("/sleep?level=1", "");
  EXPECT_EQ(status_of(sleep), 501);
  EXPECT_THAT(std::string(error_of(sleep)["message"].as_string()), HasSubstr("cannot sleep"));
  EXPECT_EQ(status_of(ask("/wake_up?tags=weights", "")), 501);
  EXPECT_EQ(body_of(get("/is_sleeping")), R"({"is_sleeping":false})");
  const json::value info = json::parse(body_of(get("/server_info?config_format=json")));
  EXPECT_EQ(info.at_pointer("/vllm_config/model_config/max_model_len").as_int64(), 64);
  EXPECT_EQ(info.at_pointer("/vllm_config/cache_config/block_size").as_int64(), config_.block_size);
  const json::value text = json::parse(body_of(get("/server_info")));
  EXPECT_THAT(std::string(text.at("vllm_config").as_string()), HasSubstr("max_model_len=64"));
  EXPECT_THAT(get("/server_info?config_format=json") + get("/server_info"), Not(HasSubstr("a-secret")));
  EXPECT_EQ(status_of(get("/server_info?config_format=xml")), 400);
}

TEST_F(EndpointsTest, LoadCountsWithItsFlagOnly) {
  engine_.script = [](std::size_t) {};  // requests stay open
  config_.server_load_tracking = true;
  test::RawClient open(port());
  open.send(test::post_text("/v1/completions", R"({"prompt":"a"})"));
  EXPECT_TRUE(test::eventually([this] { return body_of(get("/load")) == R"({"server_load":1})"; }));
  open.close();
  EXPECT_TRUE(test::eventually([this] { return body_of(get("/load")) == R"({"server_load":0})"; }));
}

TEST_F(EndpointsTest, LoadSaysZeroWithoutItsFlag) {
  engine_.script = [](std::size_t) {};
  test::RawClient open(port());
  open.send(test::post_text("/v1/completions", R"({"prompt":"a"})"));
  EXPECT_TRUE(test::eventually([this] { return engine_.num_submitted() == 1; }));
  EXPECT_EQ(body_of(get("/load")), R"({"server_load":0})");
}

TEST_F(EndpointsTest, InvocationsGoByTheBodysShape) {
  EXPECT_THAT(ask("/invocations", R"({"messages":[{"role":"user","content":"a"}]})"),
              HasSubstr(R"("object":"chat.completion")"));
  EXPECT_THAT(ask("/invocations", R"({"prompt":"a"})"), HasSubstr(R"("object":"text_completion")"));
  const std::string neither = ask("/invocations", R"({"input":"a"})");
  EXPECT_EQ(status_of(neither), 400);
  EXPECT_THAT(neither, HasSubstr("Cannot find suitable handler"));
  EXPECT_EQ(status_of(ask("/invocations", "{")), 400);
}

TEST_F(EndpointsTest, TokenizerInfoNeedsItsFlag) {
  EXPECT_EQ(body_of(get("/tokenizer_info")), R"({"detail":"Not Found"})");
}

TEST_F(EndpointsTest, TokenizerInfoIsTheConfiguration) {
  config_.tokenizer_info = true;
  tokenizer_config_ = R"({"tokenizer_class":"T"})";
  EXPECT_EQ(body_of(get("/tokenizer_info")), R"({"tokenizer_class":"T"})");
}

TEST_F(EndpointsTest, TemplateDefaultsStandUnderTheRequests) {
  config_.trust_request_chat_template = true;
  config_.default_chat_template_kwargs = R"({"a":"x","b":"y"})";
  const std::string answer = ask("/tokenize", R"({"messages":[{"role":"user","content":"-"}],
    "chat_template":"{{ a }}{{ b }}","chat_template_kwargs":{"b":"z"}})");
  EXPECT_THAT(answer, HasSubstr(R"("tokens":[120,122])"));
}

}  // namespace
}  // namespace tandem::api
