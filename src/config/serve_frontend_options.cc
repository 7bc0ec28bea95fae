// SPDX-License-Identifier: Apache-2.0
// Flags of `tandem serve` about its HTTP side (vllm_api.md 14.2).
#include <boost/json.hpp>

#include "base/json.h"
#include "config/command_options.h"

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

}  // namespace

void ServeOptions::add_frontend(FlagList& flags) {
  flags.group("Frontend");
  flags.many("--api-key", "KEY", "keys, one of which clients must send", "VLLM_API_KEY",
             [this](const std::vector<std::string>& keys) -> Result<void> {
               config_.api_keys = keys;
               return {};
             });
  flags.one("--ssl-certfile", "FILE", "PEM file of the server's certificates: TLS", "none",
            text_into(config_.ssl_certfile));
  flags.one("--ssl-keyfile", "FILE", "PEM file of its key", "that of --ssl-certfile", text_into(config_.ssl_keyfile));
  flags.one("--ssl-ca-certs", "FILE", "PEM file of who may sign clients' certificates", "none",
            text_into(config_.ssl_ca_certs));
  flags.one("--ssl-cert-reqs", "N", "clients' certificates: 0 none, 1 checked if there, 2 required", "0",
            integer_into(config_.ssl_cert_reqs, 0, 2));
  flags.one("--root-path", "PATH", "prefix that a gateway in front leaves on paths", "", text_into(config_.root_path));
  flags.one("--allowed-origins", "JSON", "origins that browsers may ask from", R"(["*"])",
            json_list_into(config_.allowed_origins));
  flags.one("--allowed-methods", "JSON", "methods that they may use", R"(["*"])",
            json_list_into(config_.allowed_methods));
  flags.one("--allowed-headers", "JSON", "headers that they may send", R"(["*"])",
            json_list_into(config_.allowed_headers));
  flags.toggle("--allow-credentials", "browsers may send cookies", config_.allow_credentials);
  flags.one("--config", "FILE", "flags in a YAML file; those of the command line win", "none",
            [](const std::string&) -> Result<void> { return {}; });  // read before flags are (config_file.h)
  flags.one("--host", "HOST", "address to listen on", "all interfaces", text_into(config_.host)).nullable();
  flags.one("--port", "PORT", "port to listen on; 0: any free one", "8000", integer_into(config_.port, 0, 65535));
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
  flags.toggle("--return-tokens-as-token-ids", "name tokens of log-probabilities token_id:N",
               config_.return_tokens_as_token_ids);
  flags.toggle("--enable-prompt-tokens-details", "usage tells how many prompt tokens were cached",
               config_.enable_prompt_tokens_details);
  flags.toggle("--enable-force-include-usage", "usage in every stream", config_.enable_force_include_usage);
  flags.toggle("--enable-request-id-headers", "answer with the request's X-Request-Id",
               config_.enable_request_id_headers);
  flags.one("--max-logprobs", "N", "most log-probabilities a token; -1: no limit", "20",
            integer_into(config_.max_logprobs, -1, 1 << 20));
}

Result<void> ServeOptions::finish_frontend(const Environment& environment) {
  if (config_.enable_auto_tool_choice && config_.tool_format == ToolFormat::kNone)
    return invalid("--enable-auto-tool-choice requires --tool-call-parser (hermes, qwen3_coder or llama3_json)");
  if (config_.api_keys.empty()) config_.api_keys = {environment("VLLM_API_KEY").value_or("")};
  std::erase(config_.api_keys, "");
  if (config_.ssl_certfile.empty() && !(config_.ssl_keyfile.empty() && config_.ssl_ca_certs.empty()))
    return invalid("--ssl-keyfile and --ssl-ca-certs need --ssl-certfile");
  if (config_.ssl_keyfile.empty()) config_.ssl_keyfile = config_.ssl_certfile;
  if (config_.ssl_cert_reqs > 0 && config_.ssl_ca_certs.empty())
    return invalid("--ssl-cert-reqs needs --ssl-ca-certs: who may sign clients' certificates");
  while (config_.root_path.ends_with('/')) config_.root_path.pop_back();
  if (!config_.root_path.empty() && !config_.root_path.starts_with('/'))
    return invalid("argument --root-path: " + config_.root_path + " does not begin with a slash");
  return {};
}

}  // namespace tandem::config
