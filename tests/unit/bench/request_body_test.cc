// SPDX-License-Identifier: Apache-2.0
#include "bench/request_body.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>

namespace tandem::bench {
namespace {

boost::json::value body_of(const config::BenchConfig& config) {
  return boost::json::parse(request_body(config, "m", Sample{"say \"x\"\n", 3, 7}));
}

TEST(RequestBody, Completions) {
  EXPECT_EQ(body_of(config::BenchConfig()), boost::json::parse(R"({
    "model": "m", "prompt": "say \"x\"\n", "temperature": 0.0, "repetition_penalty": 1.0, "max_tokens": 7,
    "logprobs": null, "stream": true, "stream_options": {"include_usage": true}})"));
}

TEST(RequestBody, Chat) {
  config::BenchConfig config;
  config.backend = config::BenchBackend::kChat;
  EXPECT_EQ(body_of(config), boost::json::parse(R"({
    "model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "say \"x\"\n"}]}],
    "temperature": 0.0, "max_completion_tokens": 7, "stream": true, "stream_options": {"include_usage": true}})"));
}

TEST(RequestBody, Flags) {
  config::BenchConfig config;
  config.ignore_eos = true;
  config.top_p = 0.5;
  config.top_k = 3;
  config.min_p = 0.25;
  config.temperature = 0.75;
  config.logprobs = 2;
  const auto body = body_of(config).as_object();
  EXPECT_EQ(body.at("ignore_eos"), true);
  EXPECT_EQ(body.at("top_p"), 0.5);
  EXPECT_EQ(body.at("top_k"), 3);
  EXPECT_EQ(body.at("min_p"), 0.25);
  EXPECT_EQ(body.at("temperature"), 0.75);
  EXPECT_EQ(body.at("logprobs"), 2);
}

TEST(RequestBody, ExtraFieldsReplace) {
  config::BenchConfig config;
  config.extra_body = R"({"temperature": 1.0, "cache_salt": "a"})";
  const auto body = body_of(config).as_object();
  EXPECT_EQ(body.at("temperature"), 1.0);
  EXPECT_EQ(body.at("cache_salt"), "a");
}

}  // namespace
}  // namespace tandem::bench
