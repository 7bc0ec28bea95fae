// SPDX-License-Identifier: Apache-2.0
// Bodies in, jobs or refusals out, without HTTP and without an engine.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "api/request.h"
#include "api_support.h"

namespace tandem::api {

using test::ByteTokenizer;
using ::testing::HasSubstr;

class RequestTest : public ::testing::Test {
 protected:
  RequestTest() { rebuild(); }

  void rebuild() {
    ServiceParts parts;
    parts.engine = &engine_;
    parts.tokenizer = std::make_shared<ByteTokenizer>();
    parts.chat_template = *text::ChatTemplate::compile(test::kTestTemplate, {});
    parts.metrics = &registry_;
    parts.vocab_size = ByteTokenizer::kVocabSize;
    parts.defaults = defaults_;
    parts.transfer = transfer_;
    context_ = std::make_unique<Context>(config_, parts);
  }

  static net::HttpRequest post(const std::string& body) {
    net::HttpRequest request;
    request.method = "POST";
    request.headers.set("Content-Type", "application/json; charset=utf-8");
    request.body = body;
    return request;
  }

  Outcome<Job> completion(const std::string& members, const std::string& prompt = R"("abc")") {
    return prepare_completion(*context_, post("{\"prompt\":" + prompt + (members.empty() ? "" : "," + members) + "}"));
  }
  Outcome<Job> chat(const std::string& members) {
    return prepare_chat(*context_, post(R"({"messages":[{"role":"user","content":"hi"}])" +
                                        (members.empty() ? "" : "," + members) + "}"));
  }
  /// The job of a completion that must be good.
  Job good(const std::string& members, const std::string& prompt = R"("abc")") {
    auto job = completion(members, prompt);
    EXPECT_TRUE(job) << job.error().message;
    return job ? std::move(*job) : Job();
  }
  void refused(const std::string& members, const std::string& text, int status = 400) {
    auto job = completion(members);
    ASSERT_FALSE(job) << members;
    EXPECT_EQ(job.error().status, status) << members;
    EXPECT_THAT(job.error().message, HasSubstr(text)) << members;
  }
  void chat_refused(const std::string& members, const std::string& text) {
    auto job = chat(members);
    ASSERT_FALSE(job) << members;
    EXPECT_EQ(job.error().status, 400) << members;
    EXPECT_THAT(job.error().message, HasSubstr(text)) << members;
  }

  test::FakeEngine engine_;
  obs::Registry registry_;
  config::ServeConfig config_ = test::test_config();
  SamplingDefaults defaults_;
  TransferInfo transfer_;
  std::unique_ptr<Context> context_;
};

}  // namespace tandem::api
