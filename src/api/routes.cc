// SPDX-License-Identifier: Apache-2.0
#include "api/routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>

#include "config/version.h"

namespace tandem::api {
namespace {

namespace json = boost::json;

Route served(std::string_view method, std::string_view path, Endpoint endpoint, std::string_view what,
             Schema body = {}) {
  return {.method = method, .path = path, .endpoint = endpoint, .what = what, .body = body};
}

Route served_if(Presence presence, std::string_view method, std::string_view path, Endpoint endpoint,
                std::string_view what) {
  return {.method = method, .path = path, .endpoint = endpoint, .what = what, .presence = presence};
}

Route refused(int status, std::string_view method, std::string_view path, std::string_view why,
              Presence presence = Presence::kAlways) {
  return {.method = method, .path = path, .what = why, .status = status, .presence = presence};
}

net::Task<void> handle_completions(ContextPtr context, ExchangePtr exchange) {
  co_await handle_generation(context, exchange, GenerationKind::kCompletion);
}

net::Task<void> handle_chat(ContextPtr context, ExchangePtr exchange) {
  co_await handle_generation(context, exchange, GenerationKind::kChat);
}

net::Task<void> handle_invocations(ContextPtr context, ExchangePtr exchange) {
  co_await handle_generation(context, exchange, GenerationKind::kByShape);
}

std::vector<Route> all_routes() {
  constexpr int kNotFound = 404;
  constexpr int kNotImplemented = 501;
  constexpr std::string_view kEmbeddings =
      "The model does not support Embeddings API: it generates text, and has no pooling layer";
  constexpr std::string_view kScores = "The model does not support Score API: it generates text, and ranks nothing";
  constexpr std::string_view kAudio = "The model does not support audio: it reads and writes text only";
  std::vector<Route> routes = {
      served("POST", "/v1/chat/completions", handle_chat, "an answer to messages, whole or as a stream", chat_schema()),
      served("POST", "/v1/completions", handle_completions, "a continuation of a prompt, whole or as a stream",
             completion_schema()),
      served("POST", "/invocations", handle_invocations, "a chat or a completion, by what the body has", chat_schema()),
      served("GET", "/v1/models", handle_models, "the names that are served"),
      served("POST", "/tokenize", handle_tokenize, "text or messages to token ids", tokenize_schema()),
      served("POST", "/detokenize", handle_detokenize, "token ids to text", detokenize_schema()),
      served_if(Presence::kTokenizerInfo, "GET", "/tokenizer_info", handle_tokenizer_info,
                "the tokenizer's configuration"),
      served("GET", "/health", handle_health, "200 while the engine works, else 503"),
      served("GET", "/ping", handle_health, "as /health"),
      served("POST", "/ping", handle_health, "as /health"),
      served("GET", "/version", handle_version, "the server's version"),
      served("GET", "/load", handle_load, "requests being answered, with --enable-server-load-tracking"),
      served("GET", "/metrics", handle_metrics, "Prometheus text"),
      served("GET", "/metrics/", handle_metrics, "Prometheus text"),
      served("POST", "/reset_prefix_cache", handle_reset_prefix_cache, "forgets cached prompts that nobody uses"),
      served_if(Presence::kDevMode, "GET", "/server_info", handle_server_info,
                "the configuration; config_format=text or json"),
      served_if(Presence::kDevMode, "GET", "/is_sleeping", handle_is_sleeping, "false: it never does"),
      refused(kNotImplemented, "POST", "/sleep",
              "this server cannot sleep: weights and KV are in the machine's memory, stop it to free them",
              Presence::kDevMode),
      refused(kNotImplemented, "POST", "/wake_up", "this server cannot sleep, so there is nothing to wake up",
              Presence::kDevMode),
      refused(kNotImplemented, "POST", "/collective_rpc", "there are no Python workers to call", Presence::kDevMode),
      refused(kNotImplemented, "POST", "/scale_elastic_ep",
              "the number of ranks is fixed at start; start the instance anew with another --data-parallel-size"),
      served("POST", "/is_scaling_elastic_ep", handle_is_scaling, "false: the number of ranks is fixed at start"),
      served("POST", "/tandem/release", handle_release, "ends the leases of a hand-over", release_schema()),
      served("GET", "/tandem/info", handle_info, "connector, role and layout of this instance"),
      refused(kNotFound, "POST", "/v1/embeddings", kEmbeddings),
      refused(kNotFound, "POST", "/pooling", "The model does not support Pooling API: it has no pooling layer"),
      refused(kNotFound, "POST", "/classify", "The model does not support Classification API: it has no classifier"),
      refused(kNotFound, "POST", "/v1/responses", "the Responses API is not in this version; use /v1/chat/completions"),
      served_if(Presence::kDocs, "GET", "/openapi.json", handle_openapi, "this description"),
      served_if(Presence::kDocs, "GET", "/docs", handle_docs, "this list as a page"),
      served_if(Presence::kDocs, "GET", "/redoc", handle_docs, "this list as a page"),
  };
  for (const std::string_view path : {"/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"})
    routes.push_back(refused(kNotFound, "POST", path, kScores));
  for (const std::string_view path : {"/v1/audio/transcriptions", "/v1/audio/translations", "/v1/audio/speech"})
    routes.push_back(refused(kNotFound, "POST", path, kAudio));
  return routes;
}

json::value type_name(FieldType type) {
  switch (type) {
    case FieldType::kAny:
      break;
    case FieldType::kBoolean:
      return "boolean";
    case FieldType::kInteger:
      return "integer";
    case FieldType::kNumber:
      return "number";
    case FieldType::kString:
      return "string";
    case FieldType::kArray:
      return "array";
    case FieldType::kObject:
      return "object";
  }
  return nullptr;
}

json::object body_description(Schema schema) {
  json::object properties;
  for (const FieldDoc& field : schema) {
    json::object& property = properties[field.name].emplace_object();
    if (const json::value name = type_name(field.type); name.is_string())
      property["type"] = json::array{name, "null"};  // null is as good as absent
    if (!field.what.empty()) property["description"] = field.what;
  }
  const json::object object{{"type", "object"}, {"properties", std::move(properties)}};
  return {{"required", true}, {"content", {{"application/json", {{"schema", object}}}}}};
}

}  // namespace

std::vector<Route> routes_of(const config::ServeConfig& config) {
  std::vector<Route> routes = all_routes();
  std::erase_if(routes, [&config](const Route& route) {
    switch (route.presence) {
      case Presence::kAlways:
        return false;
      case Presence::kDevMode:
        return !config.dev_mode;
      case Presence::kTokenizerInfo:
        return !config.tokenizer_info;
      case Presence::kDocs:
        return config.disable_docs;
    }
    return false;
  });
  return routes;
}

std::string openapi_json(std::span<const Route> routes) {
  json::object paths;
  for (const Route& route : routes) {
    json::object operation{{"summary", route.what}};
    if (!route.body.empty()) operation["requestBody"] = body_description(route.body);
    const std::string_view meaning = route.endpoint == nullptr ? "always: an error object that says why" : "the answer";
    operation["responses"] = {{std::to_string(route.status), {{"description", meaning}}},
                              {"default", {{"description", "an error object"}}}};
    std::string method(route.method);
    for (char& c : method) c = static_cast<char>(c - 'A' + 'a');
    json::value& path = paths[route.path];
    if (!path.is_object()) path = json::object();
    path.as_object()[method] = std::move(operation);
  }
  const json::object document{{"openapi", "3.1.0"},
                              {"info", {{"title", "Tandem"}, {"version", config::version()}}},
                              {"paths", std::move(paths)}};
  return json::serialize(document);
}

std::string docs_page(std::span<const Route> routes) {
  std::string page =
      "<!doctype html>\n<meta charset=\"utf-8\">\n<title>Tandem</title>\n<h1>Tandem</h1>\n"
      "<p><a href=\"openapi.json\">openapi.json</a></p>\n<table>\n";
  for (const Route& route : routes)
    page += fmt::format("<tr><td>{}<td><code>{}</code><td>{}{}</tr>\n", route.method, route.path,
                        route.endpoint == nullptr ? fmt::format("{}: ", route.status) : "", route.what);
  return page + "</table>\n";
}

}  // namespace tandem::api
