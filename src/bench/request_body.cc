// SPDX-License-Identifier: Apache-2.0
#include "bench/request_body.h"

#include <boost/json.hpp>

#include "base/json.h"

namespace tandem::bench {
namespace {

namespace json = boost::json;

void add_question(const config::BenchConfig& config, const Sample& sample, json::object& body) {
  if (config.backend == config::BenchBackend::kChat) {
    json::object part{{"type", "text"}, {"text", sample.prompt}};
    json::object message{{"role", "user"}, {"content", json::array{std::move(part)}}};
    body["messages"] = json::array{std::move(message)};
    body["max_completion_tokens"] = sample.output_tokens;
    if (config.logprobs) {
      body["logprobs"] = true;
      body["top_logprobs"] = *config.logprobs;
    }
    return;
  }
  body["prompt"] = sample.prompt;
  body["repetition_penalty"] = 1.0;
  body["max_tokens"] = sample.output_tokens;
  if (config.logprobs) {
    body["logprobs"] = *config.logprobs;
  } else {
    body["logprobs"] = nullptr;
  }
}

}  // namespace

std::string request_body(const config::BenchConfig& config, const std::string& model, const Sample& sample) {
  json::object body;
  body["model"] = model;
  add_question(config, sample, body);
  body["temperature"] = config.temperature.value_or(0.0);
  body["stream"] = true;
  body["stream_options"] = json::object{{"include_usage", true}};
  if (config.ignore_eos) body["ignore_eos"] = true;
  if (config.top_p) body["top_p"] = *config.top_p;
  if (config.top_k) body["top_k"] = *config.top_k;
  if (config.min_p) body["min_p"] = *config.min_p;
  const auto extra = parse_json(config.extra_body);
  TANDEM_ASSERT(extra && extra->is_object(), "--extra-body was checked when the flags were read");
  for (const auto& [key, value] : extra->get_object()) body[key] = value;
  return json::serialize(body);
}

}  // namespace tandem::bench
