// SPDX-License-Identifier: Apache-2.0
// Any bytes as the body of a completion or a chat: a job whose values are in range, or a 4xx.
#include <cstdlib>

#include "api/request.h"
#include "unit/api/api_support.h"

namespace {

struct World {
  World() {
    tandem::api::ServiceParts parts;
    parts.engine = &engine;
    parts.tokenizer = std::make_shared<tandem::test::ByteTokenizer>();
    parts.chat_template = *tandem::text::ChatTemplate::compile(tandem::test::kTestTemplate, {});
    parts.metrics = &registry;
    parts.vocab_size = tandem::test::ByteTokenizer::kVocabSize;
    config.kv_transfer = tandem::test::test_kv(tandem::config::KvRole::kBoth);
    context = std::make_unique<tandem::api::Context>(config, parts);
  }
  tandem::test::FakeEngine engine;
  tandem::obs::Registry registry;
  tandem::config::ServeConfig config = tandem::test::test_config();
  std::unique_ptr<tandem::api::Context> context;
};

void check(const tandem::api::Outcome<tandem::api::Job>& job) {
  if (!job) {
    if (job.error().status < 400 || job.error().status > 499) std::abort();
    return;
  }
  const auto& sampling = job->sampling;
  if (sampling.max_tokens < 1 || sampling.max_tokens > 64 || job->prompts.empty()) std::abort();
  for (const auto& prompt : job->prompts)
    for (const std::int32_t id : prompt.ids)
      if (id < 0 || id >= tandem::test::ByteTokenizer::kVocabSize) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static World world;
  tandem::net::HttpRequest request;
  request.headers.set("Content-Type", "application/json");
  request.body.assign(reinterpret_cast<const char*>(data), size);
  check(tandem::api::prepare_completion(*world.context, request));
  check(tandem::api::prepare_chat(*world.context, request));
  return 0;
}
