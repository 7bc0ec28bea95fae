// SPDX-License-Identifier: Apache-2.0
// The table of pd_protocol.md 2.5 and 2.6, row by row.
#include "proxy/client_body.h"

#include <gtest/gtest.h>

namespace tandem::proxy {
namespace {

/// `client`: what it sent of the members that a prefiller gets otherwise.
std::string params_with(const std::string& client) {
  return R"("kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,)"
         R"("remote_block_ids":null,"remote_host":null,"remote_port":null,"aborted_request":[],"tandem_client":)" +
         client + "}";
}

std::string prefill_of(std::string_view text) {
  auto body = ClientBody::parse(text);
  return body ? body->for_prefill() : body.error().to_string();
}

TEST(ClientBodyTest, PrefillGetsOneTokenWhateverTheClientAsked) {
  EXPECT_EQ(prefill_of(R"({"prompt":"x"})"),
            R"({"prompt":"x","stream":false,"max_tokens":1,"min_tokens":1,)" + params_with("{}") + "}");
  EXPECT_EQ(
      prefill_of(
          R"({"model":"m","max_tokens":500,"min_tokens":100,"max_completion_tokens":200,"n":4,"stream":true,"stream_options":{"include_usage":true},"seed":9223372036854775807})"),
      R"({"model":"m","max_tokens":1,"min_tokens":1,"max_completion_tokens":1,"n":1,"stream":false,"seed":9223372036854775807,)" +
          params_with(
              R"({"stream":true,"stream_options":{"include_usage":true},"max_tokens":500,"max_completion_tokens":200,"min_tokens":100,"n":4})") +
          "}");
  EXPECT_EQ(prefill_of(R"({"max_tokens":null,"max_completion_tokens":null})"),
            R"({"max_tokens":1,"max_completion_tokens":1,"stream":false,"min_tokens":1,)" +
                params_with(R"({"max_tokens":null,"max_completion_tokens":null})") + "}");
}

TEST(ClientBodyTest, WhatIsNoRequestIsRefusedInTheWordsOfAnInstance) {
  EXPECT_EQ(ClientBody::parse("{\"é\":").error().message(),
            "[{'type': 'json_invalid', 'loc': ('body', 5), 'msg': 'JSON decode error', 'ctx': {'error': "
            "'incomplete JSON'}}]");
  EXPECT_EQ(ClientBody::parse("[1]").error().message(),
            "[{'type': 'model_attributes_type', 'loc': ('body',), 'msg': 'Input should be a valid dictionary or object "
            "to extract fields from'}]");
}

TEST(ClientBodyTest, RequestIdsThatCanBeHeaders) {
  const auto id_of = [](std::string_view text) { return ClientBody::parse(text)->request_id(); };
  EXPECT_EQ(id_of(R"({"request_id":"mine \u00e9"})"), "mine é");
  EXPECT_EQ(id_of(R"({"prompt":"x"})"), "");
  EXPECT_EQ(id_of(R"({"request_id":7})"), "");
  EXPECT_EQ(id_of(R"({"request_id":"a\r\nx-evil: 1"})"), "");
  EXPECT_EQ(id_of("{\"request_id\":\"" + std::string(5000, 'x') + "\"}"), "");
}

TEST(ClientBodyTest, DecodeGetsWhatTheClientSentAndThePrefillersParams) {
  const auto body = ClientBody::parse(
      R"({"max_tokens":null,"stream":true,"kv_transfer_params":{"remote_host":"evil"},"temperature":0.7})");
  ASSERT_TRUE(body);
  EXPECT_TRUE(body->stream());
  EXPECT_EQ(body->for_decode(""), R"({"max_tokens":null,"stream":true,"temperature":0.7})");
  EXPECT_EQ(body->for_decode(R"({"a":[1, 2]})"),
            R"({"max_tokens":null,"stream":true,"temperature":0.7,"kv_transfer_params":{"a":[1, 2]}})");
  EXPECT_EQ(body->for_prefill().find("evil"), std::string::npos);
}

TEST(ClientBodyTest, ParamsThatAnInstanceWouldRefuse) {
  const auto fault_of = [](const std::string& params) {
    return ClientBody::parse(R"({"prompt":"a","kv_transfer_params":)" + params + "}")->fault();
  };
  for (const char* good :
       {"null", "{}", R"({"do_remote_decode":"yes","do_remote_prefill":0,"x":[]})", R"({"do_remote_decode":null})"})
    EXPECT_FALSE(fault_of(good)) << good;
  for (const char* bad : {"5", "[]", R"("x")", "false"}) {
    ASSERT_TRUE(fault_of(bad)) << bad;
    EXPECT_EQ(fault_of(bad)->param, "kv_transfer_params");
    EXPECT_EQ(fault_of(bad)->message,
              "[{'type': 'dict_type', 'loc': ('body', 'kv_transfer_params'), 'msg': 'Input should be a valid "
              "dictionary'}]");
  }
  for (const char* flag : {"do_remote_decode", "do_remote_prefill"}) {
    const auto fault = fault_of("{\"" + std::string(flag) + R"(":"x"})");
    ASSERT_TRUE(fault) << flag;
    EXPECT_EQ(fault->param, flag);
  }
  EXPECT_FALSE(ClientBody::parse(R"({"prompt":"a"})")->fault());
}

TEST(ClientBodyTest, ParamsOfAPrefillersAnswer) {
  EXPECT_EQ(*kv_params_of(R"({"id":"x","kv_transfer_params":{"lease": 18446744073709551615}})"),
            R"({"lease": 18446744073709551615})");
  EXPECT_EQ(*kv_params_of(R"({"kv_transfer_params":null})"), "");
  EXPECT_EQ(*kv_params_of(R"({"kv_transfer_params":{ }})"), "");
  EXPECT_EQ(*kv_params_of(R"({"choices":[]})"), "");
  EXPECT_FALSE(kv_params_of("<html>"));
}

}  // namespace
}  // namespace tandem::proxy
