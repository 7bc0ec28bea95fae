// SPDX-License-Identifier: Apache-2.0
// Flags of `tandem proxy` and `tandem up`. The proxy's are those of vLLM-Ascend's pull and layerwise proxy scripts
// (pd_protocol.md 9.1) and what those scripts lack.
#include <fmt/format.h>

#include <algorithm>

#include "config/command_options.h"
#include "config/tls_options.h"

namespace tandem::config {
namespace {

Status invalid(std::string message) { return Status(Code::kInvalidArgument, std::move(message)); }

/// A line continuation without a blank glues two arguments together: "192.0.0.2192.0.0.3". All labels are numbers then,
/// but it is no address.
Result<std::string> checked_host(const std::string& host) {
  if (host.empty()) return invalid("a host is empty");
  if (host.find_first_of(" /\\\t\n") != std::string::npos)
    return invalid(fmt::format("'{}' is not a host; expected a name or an address without scheme and path", host));
  if (host.find(',') != std::string::npos)
    return invalid(fmt::format("'{}' is not a host; several are written with blanks between them", host));
  if (const auto colon = host.find(':'); colon == host.rfind(':') && colon != std::string::npos)
    return invalid(fmt::format("'{}' is not a host; ports have a flag of their own", host));
  const bool numeric = std::all_of(host.begin(), host.end(), [](char c) { return c == '.' || (c >= '0' && c <= '9'); });
  if (!numeric) return host;
  int labels = 0;
  bool good = true;
  for (std::size_t start = 0; start <= host.size();) {
    const std::size_t dot = std::min(host.find('.', start), host.size());
    good = good && static_cast<bool>(parse_integer(host.substr(start, dot - start), 0, 255));
    ++labels;
    start = dot + 1;
  }
  if (good && labels == 4) return host;
  return invalid(
      fmt::format("'{}' is not an IPv4 address; were two addresses written without a blank between them?", host));
}

/// "host", or "https://host" for an instance that speaks TLS.
std::function<Result<void>(const std::vector<std::string>&)> hosts_into(std::vector<Backend>& target) {
  return [&target](const std::vector<std::string>& values) -> Result<void> {
    target.clear();
    for (const std::string& value : values) {
      Backend& backend = target.emplace_back();
      backend.tls = value.starts_with("https://");
      const std::size_t scheme = backend.tls ? 8 : value.starts_with("http://") ? 7 : 0;
      TANDEM_ASSIGN(backend.host, checked_host(value.substr(scheme)));
    }
    return {};
  };
}

std::function<Result<void>(const std::vector<std::string>&)> ports_into(std::vector<std::uint16_t>& target) {
  return [&target](const std::vector<std::string>& values) -> Result<void> {
    target.clear();
    for (const std::string& value : values) {
      TANDEM_ASSIGN(const std::int64_t port, parse_integer(value, 1, 65535));
      target.push_back(static_cast<std::uint16_t>(port));
    }
    return {};
  };
}

/// Decoders post there as it is, so that a URL they cannot use is refused here.
Setter url_into(std::string& target) {
  return [&target](const std::string& value) -> Result<void> {
    const std::size_t scheme = value.starts_with("http://") ? 7 : value.starts_with("https://") ? 8 : 0;
    const bool clean = value.find_first_of(" \t\r\n\"\\") == std::string::npos;
    if (scheme == 0 || scheme == value.size() || value[scheme] == '/' || !clean)
      return invalid(fmt::format("'{}' is not a URL; expected http://HOST:PORT/v1/metaserver", value));
    target = value;
    return {};
  };
}

Setter log_level_into(std::string& target) {
  return [&target](std::string value) -> Result<void> {
    for (char& c : value) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
    TANDEM_ASSIGN(
        target,
        parse_choice<std::string>(
            value,
            {{"debug", "debug"}, {"info", "info"}, {"warning", "warning"}, {"error", "error"}, {"critical", "error"}}));
    return {};
  };
}

Result<std::vector<Backend>> pair_up(const std::vector<Backend>& hosts, const std::vector<std::uint16_t>& ports,
                                     std::string_view what) {
  if (hosts.size() != ports.size())
    return invalid(fmt::format("Number of {} hosts must match number of {} ports (found {} hosts and {} ports)", what,
                               what, hosts.size(), ports.size()));
  std::vector<Backend> backends = hosts;
  for (std::size_t i = 0; i < hosts.size(); ++i) backends[i].port = ports[i];
  return backends;
}

/// Whether a server that listens on `own` is what answers at `other`, as far as their texts tell.
bool same_host(std::string_view own, std::string_view other) {
  const auto is_local = [](std::string_view host) { return host == "localhost" || host == "127.0.0.1"; };
  const bool everywhere = own == "0.0.0.0" || own == "::" || own == "[::]";
  return own == other || (is_local(other) && (everywhere || is_local(own)));
}

/// A proxy that is its own instance would ask itself without end.
Result<void> check_not_itself(const ProxyConfig& config, const std::vector<Backend>& backends, std::string_view what) {
  for (const Backend& backend : backends) {
    if (same_host(config.host, backend.host) && backend.port == config.port)
      return invalid(fmt::format("{} {}:{} is this proxy itself (--host {} --port {}); an instance needs another port",
                                 what, backend.host, backend.port, config.host, config.port));
  }
  return {};
}

}  // namespace

ProxyOptions::ProxyOptions(FlagList& flags, const Environment& environment) {
  flags.group("Proxy");
  flags.one("--host", "HOST", "address to listen on", config_.host, text_into(config_.host));
  flags.one("--port", "PORT", "port to listen on; 0: any free one", "8000", integer_into(config_.port, 0, 65535));
  flags.many("--prefiller-hosts", "HOST", "hosts of the prefillers, one for each port; https://HOST: over TLS",
             "localhost", hosts_into(prefiller_hosts_));
  flags.many("--prefiller-ports", "PORT", "ports of the prefillers", "8001", ports_into(prefiller_ports_));
  flags.many("--decoder-hosts", "HOST", "hosts of the decoders, one for each port; https://HOST: over TLS", "localhost",
             hosts_into(decoder_hosts_));
  flags.many("--decoder-ports", "PORT", "ports of the decoders", "8002", ports_into(decoder_ports_));
  flags.one("--connector", "NAME", "how KV moves: pull, layerwise, or auto (asks each decoder)", "auto",
            choice_into<ProxyConnector>(config_.connector, {{"auto", ProxyConnector::kAuto},
                                                            {"pull", ProxyConnector::kPull},
                                                            {"layerwise", ProxyConnector::kLayerwise}}));
  flags.one("--metaserver-url", "URL", "layerwise: where decoders reach /v1/metaserver", "from --host and --port",
            url_into(config_.metaserver_url));
  flags.one("--log-level", "LEVEL", "debug, info, warning, error", "info", log_level_into(config_.log_level));
  flags.toggle("--disable-uvicorn-access-log", "no line for each request", disable_access_log_, false);
  flags.group("Keys and TLS");
  flags.many("--api-key", "KEY", "keys, one of which clients must send", "VLLM_API_KEY",
             [this](const std::vector<std::string>& keys) -> Result<void> {
               config_.api_keys = keys;
               return {};
             });
  if (auto key = environment("VLLM_API_KEY")) config_.api_keys = {std::move(*key)};
  flags.one("--instance-api-key", "KEY", "what instances are sent, whatever the client sent",
            "the client's own, or OPENAI_API_KEY for clients without", text_into(config_.instance_api_key));
  config_.fallback_api_key = environment("OPENAI_API_KEY").value_or("");
  add_server_tls(flags, config_.tls);
  add_client_tls(flags, "--instance", "https instances", config_.instance_tls);
  flags.group("Retries and limits");
  flags.one("--max-retries", "N", "attempts of the prefill stage, over different prefillers", "3",
            integer_into(config_.max_retries, 1, 100));
  flags.one("--retry-delay", "TIME", "pause before the second attempt; doubles", "0.001",
            milliseconds_into(config_.retry_delay));
  flags.one("--max-stream-resumes", "N", "times that another decoder goes on with a stream that broke off", "1",
            integer_into(config_.max_stream_resumes, 0, 100));
  flags.one("--connect-timeout", "TIME", "until a backend accepts", "3s", milliseconds_into(config_.connect_timeout));
  flags.one("--prefill-timeout", "TIME", "whole answer of a prefiller", "600s",
            milliseconds_into(config_.prefill_timeout));
  flags.one("--first-byte-timeout", "TIME", "until a decoder begins to stream", "600s",
            milliseconds_into(config_.first_byte_timeout));
  flags.one("--whole-answer-timeout", "TIME", "answer of a decoder that is not streamed", "3600s",
            milliseconds_into(config_.whole_answer_timeout));
  flags.one("--stream-idle-timeout", "TIME", "between two pieces of a decoder's answer", "300s",
            milliseconds_into(config_.stream_idle_timeout));
  flags.one("--shutdown-timeout", "TIME", "for running requests to finish after SIGTERM; 0: they are ended", "25s",
            milliseconds_into(config_.shutdown_timeout, true));
  flags.one("--max-inflight", "N", "requests at once; over it 503 with Retry-After", "4096",
            integer_into(config_.max_inflight, 1, 1 << 20));
  flags.one("--max-waiting-retries", "N", "readiness probes of an instance that is added at run time", "3",
            integer_into(config_.max_waiting_retries, 1, 10'000));
  flags.one("--waiting-retry-interval", "TIME", "between two of those probes", "10s",
            milliseconds_into(config_.waiting_retry_interval));
  flags.group("Accepted, without effect here");
  flags.ignored("--workers", Arity::kOne, "one process serves all connections");
}

Result<ProxyConfig> ProxyOptions::finish(const std::vector<std::string>& positional) {
  if (!positional.empty()) return invalid(fmt::format("unrecognized arguments: {}", positional[0]));
  std::erase(config_.api_keys, "");
  config_.access_log = !disable_access_log_;
  TANDEM_TRY(finish_server_tls(config_.tls));
  TANDEM_ASSIGN(config_.prefillers, pair_up(prefiller_hosts_, prefiller_ports_, "prefiller"));
  TANDEM_ASSIGN(config_.decoders, pair_up(decoder_hosts_, decoder_ports_, "decoder"));
  TANDEM_TRY(check_not_itself(config_, config_.prefillers, "prefiller"));
  TANDEM_TRY(check_not_itself(config_, config_.decoders, "decoder"));
  return config_;
}

UpOptions::UpOptions(FlagList& flags) {
  flags.group("Deployment");
  flags.one("--model", "PATH", "model folder or .gguf file", "", text_into(config_.model));
  flags.one("--prefill", "N", "prefill instances", "1", integer_into(config_.prefill, 1, 64));
  flags.one("--decode", "N", "decode instances", "1", integer_into(config_.decode, 1, 64));
  flags.one("--connector", "NAME", "how KV moves: pull or layerwise", "as the file says, else pull",
            [this](const std::string& value) -> Result<void> {
              TANDEM_ASSIGN(config_.connector,
                            parse_choice<KvConnector>(
                                value, {{"pull", KvConnector::kPull}, {"layerwise", KvConnector::kLayerwise}}));
              return {};
            });
  flags.one("--host", "HOST", "address the proxy listens on", config_.host, text_into(config_.host));
  flags.one("--port", "PORT", "port the proxy listens on", "8000", integer_into(config_.port, 1, 65535));
  flags.one("--ready-timeout", "TIME", "until every process answers", "600s",
            [this](const std::string& value) -> Result<void> {
              TANDEM_ASSIGN(const std::int64_t count, parse_milliseconds(value));
              config_.ready_timeout = std::chrono::seconds(std::max<std::int64_t>(1, count / 1000));
              return {};
            });
  flags.one("--shutdown-timeout", "TIME", "for running requests to finish after Ctrl-C; 0: they are ended", "0",
            milliseconds_into(config_.shutdown_timeout, true));
  flags.one("--color", "WHEN", "auto, always, never", "auto",
            choice_into<Color>(config_.color,
                               {{"auto", Color::kAuto}, {"always", Color::kAlways}, {"never", Color::kNever}}));
  flags.one("--log-level", "LEVEL", "debug, info, warning, error", "info", log_level_into(config_.log_level));
  flags.group("Keys and TLS");
  flags.many("--api-key", "KEY", "keys, one of which clients must send to the proxy and to instances", "VLLM_API_KEY",
             [this](const std::vector<std::string>& keys) -> Result<void> {
               config_.api_keys = keys;
               return {};
             });
  add_server_tls(flags, config_.tls);
}

Result<UpConfig> UpOptions::finish(const std::vector<std::string>& positional, std::vector<std::string> rest) {
  if (positional.size() > 1)
    return invalid(fmt::format("unrecognized arguments: {} (flags for `tandem serve` go after --)", positional[1]));
  if (!positional.empty()) config_.deployment_file = positional[0];
  if (config_.model.empty() && config_.deployment_file.empty())
    return invalid("either --model MODEL or a deployment file (YAML) is required");
  std::erase(config_.api_keys, "");
  TANDEM_TRY(finish_server_tls(config_.tls));
  config_.serve_flags = std::move(rest);
  return config_;
}

}  // namespace tandem::config
