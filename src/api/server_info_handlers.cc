// SPDX-License-Identifier: Apache-2.0
// Endpoints that tell of the server itself: its description, its configuration, its tokenizer (vllm_api.md 3).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <boost/json.hpp>

#include "api/handlers.h"
#include "api/routes.h"
#include "config/version.h"

namespace tandem::api {
namespace {

namespace json = boost::json;

json::array texts(const std::vector<std::string>& list) {
  json::array array;
  for (const std::string& text : list) array.emplace_back(text);
  return array;
}

/// vLLM's names where it has the thing. No keys, and no files of keys.
json::object config_object(const Context& context) {
  const config::ServeConfig& config = context.config;
  const config::DataParallel& data = config.data_parallel;
  json::object all;
  all["model_config"] = {{"model", config.model},
                         {"tokenizer", config.tokenizer.empty() ? config.model : config.tokenizer},
                         {"served_model_name", texts(config.served_model_names)},
                         {"max_model_len", context.max_model_len()},
                         {"vocab_size", context.parts.vocab_size},
                         {"quantization", config::quantization_name(config.quantization)},
                         {"generation_config", config.generation_config},
                         {"max_logprobs", config.max_logprobs},
                         {"logprobs_mode", config::logprobs_mode_name(config.logprobs_mode)},
                         {"seed", config.seed}};
  all["cache_config"] = {{"block_size", config.block_size},
                         {"num_gpu_blocks", context.engine().stats().num_blocks},
                         {"enable_prefix_caching", config.enable_prefix_caching}};
  all["scheduler_config"] = {{"max_num_seqs", config.max_num_seqs},
                             {"max_num_batched_tokens", config.max_num_batched_tokens},
                             {"long_prefill_token_threshold", config.long_prefill_token_threshold},
                             {"policy", config.scheduling == config::Scheduling::kFcfs ? "fcfs" : "priority"},
                             {"async_scheduling", config.async_scheduling}};
  all["parallel_config"] = {{"tensor_parallel_size", config.tensor_parallel_size},
                            {"data_parallel_size", data.size},
                            {"data_parallel_size_local", data.local},
                            {"data_parallel_rank", data.external_rank.value_or(data.start_rank)},
                            {"enable_expert_parallel", config.expert_parallel}};
  json::value transfer;
  if (config.kv_transfer)
    transfer = {{"kv_connector", context.parts.transfer.connector},
                {"kv_role", context.parts.transfer.role},
                {"engine_id", context.parts.transfer.engine_id},
                {"kv_port", config.kv_transfer->port}};
  all["kv_transfer_config"] = std::move(transfer);
  all["version"] = config::version();
  return all;
}

/// One line of name=value, as vLLM prints its configuration.
std::string config_text(const json::object& config) {
  std::vector<std::string> parts;
  for (const auto& section : config) {
    if (!section.value().is_object()) {
      parts.push_back(fmt::format("{}={}", std::string_view(section.key()), json::serialize(section.value())));
      continue;
    }
    for (const auto& member : section.value().get_object())
      parts.push_back(fmt::format("{}={}", std::string_view(member.key()), json::serialize(member.value())));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace

net::Task<void> handle_server_info(ContextPtr context, ExchangePtr exchange) {
  const std::string& query = exchange->request().query;
  const json::object config = config_object(*context);
  net::HttpResponse response;
  if (query == "config_format=json") {
    response.body = json::serialize(json::object{{"vllm_config", config}});
  } else if (query.empty() || query == "config_format=text") {
    response.body = json::serialize(json::object{{"vllm_config", config_text(config)}});
  } else {
    response = error_response(bad_request("the query is not known; expected config_format=text or =json"));
  }
  (void)co_await exchange->respond(std::move(response));
}

net::Task<void> handle_is_sleeping(ContextPtr, ExchangePtr exchange) {
  net::HttpResponse response(200, "application/json", R"({"is_sleeping":false})");
  (void)co_await exchange->respond(std::move(response));
}

net::Task<void> handle_is_scaling(ContextPtr, ExchangePtr exchange) {
  net::HttpResponse response(200, "application/json", R"({"is_scaling_elastic_ep":false})");
  (void)co_await exchange->respond(std::move(response));
}

net::Task<void> handle_tokenizer_info(ContextPtr context, ExchangePtr exchange) {
  net::HttpResponse response(200, "application/json", context->parts.tokenizer_config);
  if (response.body.empty()) {
    const Refusal refusal(404, "NotFoundError", "this model comes without a tokenizer_config.json");
    response = error_response(refusal);
  }
  (void)co_await exchange->respond(std::move(response));
}

net::Task<void> handle_openapi(ContextPtr context, ExchangePtr exchange) {
  net::HttpResponse response(200, "application/json", openapi_json(routes_of(context->config)));
  (void)co_await exchange->respond(std::move(response));
}

net::Task<void> handle_docs(ContextPtr context, ExchangePtr exchange) {
  net::HttpResponse response(200, "text/html; charset=utf-8", docs_page(routes_of(context->config)));
  (void)co_await exchange->respond(std::move(response));
}

}  // namespace tandem::api
