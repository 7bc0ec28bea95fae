// SPDX-License-Identifier: Apache-2.0
// Flags and variables of `tandem serve` about what it logs and how it lives on (vllm_api.md 14.2, 15).
#include <algorithm>
#include <cctype>
#include <cmath>

#include "config/command_options.h"

namespace tandem::config {
namespace {

Result<std::string> log_level_name(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return parse_choice<std::string>(text, {{"debug", "debug"},
                                          {"info", "info"},
                                          {"warning", "warning"},
                                          {"error", "error"},
                                          {"critical", "error"},
                                          {"trace", "debug"}});
}

template <class Text>
Setter level_into(Text& target) {
  return [&target](const std::string& value) -> Result<void> {
    TANDEM_ASSIGN(target, log_level_name(value));
    return {};
  };
}

}  // namespace

void ServeOptions::add_logging(FlagList& flags) {
  flags.toggle("--enable-log-requests", "log each prompt with its parameters", config_.enable_log_requests);
  flags.toggle("--enable-log-outputs", "log each answer; needs --enable-log-requests", config_.enable_log_outputs);
  flags
      .one("--max-log-len", "N", "characters and token ids of a prompt or answer that a line shows", "all",
           [this](const std::string& value) -> Result<void> {
             TANDEM_ASSIGN(config_.max_log_len, parse_integer(value, 0, std::int64_t{1} << 40));
             return {};
           })
      .nullable();
  flags.toggle("--disable-log-stats", "no periodic log line and no vllm: metrics", config_.disable_log_stats, false);
  flags.one("--log-level", "LEVEL", "debug, info, warning, error", "info, or VLLM_LOGGING_LEVEL",
            level_into(log_level_));
  flags.one("--uvicorn-log-level", "LEVEL",
            "debug, info, warning, error, critical, trace; the line for each HTTP request is at info", "info",
            level_into(http_log_level_));
  flags.toggle("--disable-uvicorn-access-log", "no line for each HTTP request", no_access_log_);
}

Result<void> ServeOptions::finish_logging(const Environment& environment) {
  // An empty variable is as good as none.
  const auto variable = [&](const char* name) -> std::optional<std::string> {
    auto value = environment(name);
    return value && !value->empty() ? value : std::nullopt;
  };
  const auto number = [&](const char* name, double low, bool low_allowed,
                          double high) -> Result<std::optional<double>> {
    const auto text = variable(name);
    if (!text) return std::optional<double>();
    auto value = parse_number(*text, low, low_allowed, high);
    if (!value) return value.error().context(std::string("environment variable ") + name);
    return std::optional(*value);
  };
  if (config_.enable_log_outputs && !config_.enable_log_requests)
    return Status(Code::kInvalidArgument, "--enable-log-outputs requires --enable-log-requests");
  if (const auto level = variable("VLLM_LOGGING_LEVEL"); level && !log_level_) {
    auto name = log_level_name(*level);
    if (!name) return name.error().context("environment variable VLLM_LOGGING_LEVEL");
    log_level_ = *name;
  }
  if (log_level_) config_.log_level = *log_level_;
  config_.access_log = !no_access_log_ && http_log_level_ != "warning" && http_log_level_ != "error";
  TANDEM_ASSIGN(const auto interval, number("VLLM_LOG_STATS_INTERVAL", 0, false, 86'400));
  if (interval) config_.log_stats_interval = std::chrono::milliseconds(std::max(1L, std::lround(*interval * 1e3)));
  config_.keep_alive_on_engine_death = variable("VLLM_KEEP_ALIVE_ON_ENGINE_DEATH").value_or("0") != "0";
  return {};
}

}  // namespace tandem::config
