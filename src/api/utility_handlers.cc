// SPDX-License-Identifier: Apache-2.0
// Everything but generation (vllm_api.md 3 and 4, pd_protocol.md 2.1).
#include <fmt/format.h>

#include <boost/json.hpp>
#include <chrono>

#include "api/aside.h"
#include "api/chat_prompt.h"
#include "api/front.h"
#include "api/handlers.h"
#include "api/json_writer.h"
#include "api/request.h"
#include "base/log.h"
#include "config/version.h"
#include "net/relay.h"

namespace tandem::api {
namespace {

namespace json = boost::json;

std::string models_json(Context& context) {
  const auto created =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  JsonWriter writer;
  writer.begin_object().member("object", "list").key("data").begin_array();
  for (const std::string& name : context.config.served_model_names) {
    writer.begin_object().member("id", name).member("object", "model").member("created", created);
    writer.member("owned_by", "vllm").member("root", context.config.model).null_member("parent");
    writer.member("max_model_len", context.max_model_len()).key("permission").begin_array().begin_object();
    writer.member("id", "modelperm-" + context.random_hex(32))
        .member("object", "model_permission")
        .member("created", created);
    writer.member("allow_create_engine", false).member("allow_sampling", true).member("allow_logprobs", true);
    writer.member("allow_search_indices", false).member("allow_view", true).member("allow_fine_tuning", false);
    writer.member("organization", "*").null_member("group").member("is_blocking", false);
    writer.end_object().end_array().end_object();
  }
  writer.end_array().end_object();
  return writer.take();
}

Outcome<std::string> tokenize_json(const Context& context, const net::HttpRequest& request) {
  TANDEM_ASSIGN(const json::object object, read_json_body(request));
  const Fields body(object, tokenize_schema());
  TANDEM_TRY(check_model(context, body));
  std::string text;
  const bool is_prompt = body.has("prompt");
  if (is_prompt) {
    TANDEM_ASSIGN(const auto prompt, body.text("prompt"));
    text = *prompt;
  } else {
    TANDEM_ASSIGN(ChatPrompt prompt, render_chat_prompt(context, body, false));
    text = std::move(prompt.text);
  }
  TANDEM_ASSIGN(const bool add_special, body.boolean("add_special_tokens", is_prompt));
  TANDEM_ASSIGN(const bool with_strings, body.boolean("return_token_strs", false));
  TANDEM_ASSIGN(const auto ids, tokenize(context, text, add_special, false));
  JsonWriter writer;
  writer.begin_object().member("count", static_cast<std::int64_t>(ids.size()));
  writer.member("max_model_len", context.max_model_len()).key("tokens").begin_array();
  for (const std::int32_t id : ids) writer.integer(id);
  writer.end_array().key("token_strs");
  if (with_strings) {
    writer.begin_array();
    for (const std::int32_t id : ids) writer.string(context.parts.tokenizer->id_to_piece(id));
    writer.end_array();
  } else {
    writer.null();
  }
  writer.end_object();
  return writer.take();
}

Outcome<std::string> detokenize_json(const Context& context, const net::HttpRequest& request) {
  TANDEM_ASSIGN(const json::object object, read_json_body(request));
  const Fields body(object, detokenize_schema());
  TANDEM_TRY(check_model(context, body));
  TANDEM_ASSIGN(const auto ids, body.token_ids("tokens"));
  if (!ids) return validation_error("missing", "tokens", "Field required");
  if (context.parts.tokenizer == nullptr) return bad_request("this server has no tokenizer", "tokens");
  for (const std::int32_t id : *ids)
    if (id < 0 || id >= context.parts.vocab_size)
      return bad_request(
          fmt::format("Token id {} is out of vocabulary (vocabulary size: {})", id, context.parts.vocab_size),
          "tokens");
  JsonWriter writer;
  writer.begin_object().member("prompt", context.parts.tokenizer->decode(*ids, false)).end_object();
  return writer.take();
}

/// Ends the leases that the body names, or, without kv_transfer_params, those that the answer to the request of this
/// X-Request-Id carried. True if there was one.
Outcome<std::string> release_json(const Context& context, const net::HttpRequest& request) {
  TANDEM_ASSIGN(const json::object object, read_json_body(request));
  TANDEM_ASSIGN(const KvParams params, read_kv_params(Fields(object, release_schema())));
  bool released = false;
  for (const auto& handover : params.remote_prefill) {
    if (!handover || !context.produces_kv()) continue;
    context.engine().release_lease(handover->lease);
    released = true;
  }
  const auto id = request.headers.find("x-request-id");
  if (params.remote_prefill.empty() && id) {
    for (const transfer::LeaseId lease : context.handed_over.find(std::string(*id))) {
      context.engine().release_lease(lease);
      released = true;
    }
  }
  JsonWriter writer;
  writer.begin_object().member("released", released).end_object();
  return writer.take();
}

std::string info_json(const Context& context) {
  const TransferInfo& transfer = context.parts.transfer;
  JsonWriter writer;
  const auto text_or_null = [&](std::string_view key, const std::string& text) {
    if (text.empty())
      writer.null_member(key);
    else
      writer.member(key, text);
  };
  writer.begin_object();
  text_or_null("engine_id", transfer.engine_id);
  text_or_null("kv_connector", transfer.connector);
  text_or_null("kv_role", transfer.role);
  // Hexadecimal text: 64 bits do not survive in languages whose numbers are doubles.
  text_or_null("incarnation", transfer.connector.empty() ? "" : fmt::format("{:x}", transfer.incarnation));
  const config::DataParallel& data = context.config.data_parallel;
  writer.member("tp_size", std::int64_t{transfer.tp_size}).member("dp_size", std::int64_t{data.size});
  writer.member("dp_start_rank", std::int64_t{data.start_rank}).member("dp_size_local", std::int64_t{data.local});
  writer.member("block_size", std::int64_t{context.config.block_size}).member("model", context.model_name());
  writer.end_object();
  return writer.take();
}

net::HttpResponse response_of(const Outcome<std::string>& body) {
  if (!body) return error_response(body.error());
  return net::HttpResponse(200, "application/json", *body);
}

}  // namespace

net::Task<void> handle_models(ContextPtr context, ExchangePtr exchange) {
  net::HttpResponse response(200, "application/json", models_json(*context));
  (void)co_await exchange->respond(std::move(response));
}

net::Task<void> handle_tokenize(ContextPtr context, ExchangePtr exchange) {
  const net::HttpRequest& request = exchange->request();
  std::shared_ptr<Outcome<std::string>> body;
  if (request.body.size() < kLargeBodyBytes) {
    body = std::make_shared<Outcome<std::string>>(tokenize_json(*context, request));
  } else {
    std::function<Outcome<std::string>()> work = [raw = context.get(),
                                                  copy = std::make_shared<net::HttpRequest>(request)] {
      return tokenize_json(*raw, *copy);
    };
    body = co_await run_aside<std::string>(context, exchange->executor(), std::move(work));
  }
  net::HttpResponse response = response_of(*body);
  (void)co_await exchange->respond(std::move(response));
}

net::Task<void> handle_detokenize(ContextPtr context, ExchangePtr exchange) {
  net::HttpResponse response = response_of(detokenize_json(*context, exchange->request()));
  (void)co_await exchange->respond(std::move(response));
}

net::Task<void> handle_health(ContextPtr context, ExchangePtr exchange) {
  const Status incomplete = context->front ? context->front->incomplete() : Status();
  net::HttpResponse response(context->engine().healthy() ? 200 : 503, "", "");
  if (!incomplete.ok()) response = error_response(Refusal(503, "ServiceUnavailableError", incomplete.message()));
  (void)co_await exchange->respond(std::move(response));
}

net::Task<void> handle_version(ContextPtr, ExchangePtr exchange) {
  net::HttpResponse response(200, "application/json", fmt::format(R"({{"version":"{}"}})", config::version()));
  (void)co_await exchange->respond(std::move(response));
}

net::Task<void> handle_load(ContextPtr context, ExchangePtr exchange) {
  net::HttpResponse response(
      200, "application/json",
      fmt::format(R"({{"server_load":{}}})", context->config.server_load_tracking ? context->in_flight : 0));
  (void)co_await exchange->respond(std::move(response));
}

net::Task<void> handle_metrics(ContextPtr context, ExchangePtr exchange) {
  const auto accept = exchange->request().headers.find("accept");
  const obs::Format format = obs::format_for(accept.value_or(""));
  std::vector<std::string> others;
  if (context->front) {
    net::ClientRequest request("GET", "/metrics");
    if (accept) request.headers.set("Accept", std::string(*accept));
    others = co_await context->front->ask_others(exchange->executor(), std::move(request));
  }
  net::HttpResponse response(200, std::string(obs::content_type(format)),
                             context->parts.metrics->expose(format, others));
  (void)co_await exchange->respond(std::move(response));
}

net::Task<void> handle_reset_prefix_cache(ContextPtr context, ExchangePtr exchange) {
  if (!context->engine().reset_prefix_cache()) log::warning("the prefix cache was not reset: blocks are in use");
  if (context->front) {
    net::ClientRequest request("POST", "/reset_prefix_cache");
    (void)co_await context->front->ask_others(exchange->executor(), std::move(request));
    context->front->forget_prompts();
  }
  net::HttpResponse response(200, "", "");
  (void)co_await exchange->respond(std::move(response));
}

net::Task<void> handle_release(ContextPtr context, ExchangePtr exchange) {
  auto body = release_json(*context, exchange->request());
  if (context->front) {
    // Who has the KV knows its lease; the others ignore it.
    net::ClientRequest request("POST", "/tandem/release");
    request.headers = net::request_headers(exchange->request().headers);
    request.body = exchange->request().body;
    const auto answers = co_await context->front->ask_others(exchange->executor(), std::move(request));
    for (const std::string& answer : answers)
      if (answer.find("true") != std::string::npos) body = answer;
  }
  net::HttpResponse response(200, "application/json", body ? *body : R"({"released":false})");
  (void)co_await exchange->respond(std::move(response));
}

net::Task<void> handle_info(ContextPtr context, ExchangePtr exchange) {
  net::HttpResponse response(200, "application/json", info_json(*context));
  (void)co_await exchange->respond(std::move(response));
}

}  // namespace tandem::api
