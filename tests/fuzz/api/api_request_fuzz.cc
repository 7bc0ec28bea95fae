// SPDX-License-Identifier: Apache-2.0
// Any bytes as the body of a completion or a chat: a job whose values are in range, or a 4xx; and of what its output
// must match a grammar, or a 4xx.
#include <cstdlib>

#include "api/constraint.h"
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
    config.enable_auto_tool_choice = true;
    config.tool_format = tandem::config::ToolFormat::kHermes;
    config.kv_transfer = tandem::test::test_kv(tandem::config::KvRole::kBoth);
    context = std::make_unique<tandem::api::Context>(config, parts);
  }
  tandem::test::FakeEngine engine;
  tandem::obs::Registry registry;
  tandem::config::ServeConfig config = tandem::test::test_config();
  std::unique_ptr<tandem::api::Context> context;
};

void check(const tandem::api::Refusal& refusal) {
  if (refusal.status < 400 || refusal.status > 499 || refusal.message.empty()) std::abort();
}

void check(const tandem::api::Context& context, const tandem::api::Constraint& constraint) {
  const auto grammar = tandem::api::compile(*context.grammars, constraint);
  if (!grammar) return check(grammar.error());
  const auto matcher = (*grammar)->start();
  if (matcher) (void)(*matcher)->mask();
}

void check(const tandem::api::Context& context, const tandem::api::Outcome<tandem::api::Job>& job) {
  if (!job) return check(job.error());
  if (job->constraint) check(context, *job->constraint);
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
  check(*world.context, tandem::api::prepare_completion(*world.context, request));
  check(*world.context, tandem::api::prepare_chat(*world.context, request));
  return 0;
}
