// SPDX-License-Identifier: Apache-2.0
// Flags of `tandem serve` about its HTTP side (vllm_api.md 14.2).
#include <fmt/format.h>

#include <boost/json.hpp>

#include "base/json.h"
#include "config/command_options.h"
#include "config/tls_options.h"

namespace tandem::config {
namespace {

namespace json = boost::json;

Status invalid(std::string message) { return Status(Code::kInvalidArgument, std::move(message)); }

/// ["a", "b"]
Setter json_list_into(std::vector<std::string>& target) {
  return [&target](const std::string& value) -> Result<void> {
    TANDEM_ASSIGN(const json::value list, parse_json(value, JsonLimits{.max_depth = 4, .max_bytes = 1U << 16}));
    if (!list.is_array()) return invalid("expected a JSON list of strings");
    target.clear();
    for (const json::value& each : list.get_array()) {
      if (!each.is_string()) return invalid("expected a JSON list of strings");
      target.emplace_back(each.get_string());
    }
    return {};
  };
}

Result<void> read_structured(const std::string& text, ServeConfig& config, std::vector<std::string>& notes) {
  TANDEM_ASSIGN(const json::value value, parse_json(text, JsonLimits{.max_depth = 8, .max_bytes = 1U << 16}));
  if (!value.is_object()) return invalid("expected a JSON object");
  const json::object& object = value.get_object();
  TANDEM_ASSIGN(const auto compact, json_bool(object, "disable_any_whitespace"));
  config.compact_json = compact.value_or(false);
  for (const auto& member : object) {
    const std::string_view name = member.key();
    if (name != "disable_any_whitespace")
      notes.push_back(fmt::format("--structured-outputs-config: ignored here: {}{}", name,
                                  name == "backend" ? " (llguidance serves all)" : ""));
  }
  return {};
}

}  // namespace

/// Where the server listens and who may ask it.
void ServeOptions::add_access(FlagList& flags) {
  flags.many("--api-key", "KEY", "keys, one of which clients must send", "VLLM_API_KEY",
             [this](const std::vector<std::string>& keys) -> Result<void> {
               config_.api_keys = keys;
               return {};
             });
  add_server_tls(flags, config_.tls);
  flags.one("--root-path", "PATH", "prefix that a gateway in front leaves on paths", "", text_into(config_.root_path))
      .nullable();
  flags.one("--allowed-origins", "JSON", "origins that browsers may ask from", R"(["*"])",
            json_list_into(config_.allowed_origins));
  flags.one("--allowed-methods", "JSON", "methods that they may use", R"(["*"])",
            json_list_into(config_.allowed_methods));
  flags.one("--allowed-headers", "JSON", "headers that they may send", R"(["*"])",
            json_list_into(config_.allowed_headers));
  flags.toggle("--allow-credentials", "browsers may send cookies", config_.allow_credentials);
  flags.one("--config", "FILE", "flags in a YAML file; those of the command line win", "none",
            // Read before flags are (config_file.h): one that is still there was not seen as such.
            [](const std::string&) -> Result<void> { return invalid("write --config in full"); });
  flags.one("--host", "HOST", "address to listen on", "all interfaces", text_into(config_.host)).nullable();
  flags.one("--port", "PORT", "port to listen on; 0: any free one", "8000", integer_into(config_.port, 0, 65535));
  flags.one("--uds", "PATH", "listen on a Unix socket, in place of --host and --port", "none", text_into(config_.uds))
      .nullable();
  flags.one("--shutdown-timeout", "TIME", "for running requests to finish after SIGTERM; 0: they are ended", "0",
            milliseconds_into(config_.shutdown_timeout, true));
}

void ServeOptions::add_frontend(FlagList& flags) {
  flags.group("Frontend");
  add_access(flags);
  add_templates_and_parsers(flags);
  flags.toggle("--return-tokens-as-token-ids", "name tokens of log-probabilities token_id:N",
               config_.return_tokens_as_token_ids);
  flags.toggle("--enable-prompt-tokens-details", "usage tells how many prompt tokens were cached",
               config_.enable_prompt_tokens_details);
  flags.toggle("--enable-force-include-usage", "usage in every stream", config_.enable_force_include_usage);
  flags.toggle("--enable-request-id-headers", "answer with the request's X-Request-Id",
               config_.enable_request_id_headers);
  flags.toggle("--enable-server-load-tracking", "/load counts the requests being answered; else it says 0",
               config_.server_load_tracking);
  flags.toggle("--enable-tokenizer-info-endpoint", "/tokenizer_info tells tokenizer_config.json",
               config_.tokenizer_info);
  flags.toggle("--disable-fastapi-docs", "no /openapi.json, /docs and /redoc", config_.disable_docs);
  flags.one("--max-logprobs", "N", "most log-probabilities a token; -1: no limit", "20",
            integer_into(config_.max_logprobs, -1, 1 << 20));
}

void ServeOptions::add_templates_and_parsers(FlagList& flags) {
  flags.many("--served-model-name", "NAME", "names that clients may use; the first one is shown", "the model path",
             [this](const std::vector<std::string>& names) -> Result<void> {
               for (const std::string& name : names)
                 if (name.empty()) return invalid("a name is empty");
               config_.served_model_names = names;
               return {};
             });
  flags
      .one("--chat-template", "PATH", "Jinja file, or the template itself on one line", "the model's",
           text_into(config_.chat_template))
      .nullable();
  flags.one("--chat-template-content-format", "FORMAT", "what templates get as content: auto, string, openai", "auto",
            choice_into<ContentFormat>(config_.content_format, {{"auto", ContentFormat::kAuto},
                                                                {"string", ContentFormat::kString},
                                                                {"openai", ContentFormat::kParts}}));
  flags
      .one("--default-chat-template-kwargs", "JSON", "variables of the template, under those of each request", "{}",
           [this](const std::string& value) -> Result<void> {
             TANDEM_ASSIGN(config_.default_chat_template_kwargs, parse_json_object(value));
             return {};
           })
      .json();
  flags.toggle("--trust-request-chat-template", "render templates that come with a request",
               config_.trust_request_chat_template);
  flags.one("--response-role", "ROLE", "role of answers", "assistant", text_into(config_.response_role));
  flags.toggle("--exclude-tools-when-tool-choice-none", "hide tools from the template when tool_choice is none",
               config_.exclude_tools_when_tool_choice_none);
  flags.toggle("--enable-auto-tool-choice", "let models call tools; needs --tool-call-parser",
               config_.enable_auto_tool_choice);
  flags
      .one("--tool-call-parser", "NAME", "how the model writes tool calls: hermes, qwen3_coder, llama3_json", "none",
           choice_into<ToolFormat>(config_.tool_format, {{"hermes", ToolFormat::kHermes},
                                                         {"qwen3_coder", ToolFormat::kQwen3Coder},
                                                         {"llama3_json", ToolFormat::kLlama3Json}}))
      .nullable();
  flags
      .one("--reasoning-parser", "NAME", "how the model marks its thoughts: qwen3, deepseek_r1", "none",
           choice_into<ReasoningFormat>(config_.reasoning_format, {{"qwen3", ReasoningFormat::kQwen3},
                                                                   {"deepseek_r1", ReasoningFormat::kDeepseekR1}}))
      .nullable();
  flags
      .one("--structured-outputs-config", "JSON",
           "disable_any_whitespace: JSON of structured output without blanks; backend: one serves all", "{}",
           [this, &flags](const std::string& value) { return read_structured(value, config_, flags.notes()); })
      .json();
}

Result<void> ServeOptions::finish_frontend(const Environment& environment) {
  if (config_.enable_auto_tool_choice && config_.tool_format == ToolFormat::kNone)
    return invalid("--enable-auto-tool-choice requires --tool-call-parser (hermes, qwen3_coder or llama3_json)");
  if (config_.api_keys.empty()) config_.api_keys = {environment("VLLM_API_KEY").value_or("")};
  std::erase(config_.api_keys, "");
  TANDEM_TRY(finish_server_tls(config_.tls));
  config_.dev_mode = environment("VLLM_SERVER_DEV_MODE").value_or("0") == "1";
  if (const auto idle = environment("VLLM_HTTP_TIMEOUT_KEEP_ALIVE"); idle && !idle->empty()) {
    const auto seconds = parse_integer(*idle, 1, 86'400);
    if (!seconds) return seconds.error().context("environment variable VLLM_HTTP_TIMEOUT_KEEP_ALIVE");
    config_.keep_alive = std::chrono::seconds(*seconds);
  }
  while (config_.root_path.ends_with('/')) config_.root_path.pop_back();
  if (!config_.root_path.empty() && !config_.root_path.starts_with('/'))
    return invalid("argument --root-path: " + config_.root_path + " does not begin with a slash");
  return {};
}

}  // namespace tandem::config
