// SPDX-License-Identifier: Apache-2.0
// Entry of the `tandem` binary. Exit codes: 0 after a clean stop, 2 for usage, 1 for everything else; each failure is
// one line on stderr.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "app/commands.h"
#include "base/log.h"
#include "config/command_line.h"
#include "config/idle_variables.h"

namespace {

using tandem::Result;
namespace config = tandem::config;

constexpr int kUsageExit = 2;
constexpr int kFailureExit = 1;

std::optional<std::string> environment_variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

std::vector<std::string> environment_names() {
  std::vector<std::string> names;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text(*entry);
    names.push_back(text.substr(0, text.find('=')));
  }
  return names;
}

tandem::log::Level level_of(const std::string& name) {
  if (name == "debug") return tandem::log::Level::kDebug;
  if (name == "warning") return tandem::log::Level::kWarning;
  if (name == "error") return tandem::log::Level::kError;
  return tandem::log::Level::kInfo;
}

void start_log(const std::string& level, const std::vector<std::string>& notes) {
  tandem::log::configure(level_of(level), "");
  for (const std::string& note : notes) tandem::log::info("{}", note);
}

/// A stream through a proxy takes two descriptors, and the usual soft limit is 1024.
void raise_descriptor_limit() {
  constexpr rlim_t kEnough = 65'535;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= kEnough) return;
  limit.rlim_cur = std::min(limit.rlim_max, kEnough);
  (void)setrlimit(RLIMIT_NOFILE, &limit);
}

struct Runner {
  const std::vector<std::string>& notes;

  Result<void> operator()(const config::Text& text) const {
    std::fputs(text.text.c_str(), stdout);
    return {};
  }
  Result<void> operator()(const config::ServeConfig& serve) const {
    start_log(serve.log_level, notes);
    const std::string idle = config::idle_variables_note(environment_names(), serve);
    if (!idle.empty()) tandem::log::info("{}", idle);
    raise_descriptor_limit();
    return tandem::app::run_serve(serve);
  }
  Result<void> operator()(const config::ProxyConfig& proxy) const {
    start_log(proxy.log_level, notes);
    raise_descriptor_limit();
    return tandem::app::run_proxy(proxy);
  }
  Result<void> operator()(const config::UpConfig& up) const {
    start_log(up.log_level, notes);
    return tandem::app::run_up(up);
  }
  Result<void> operator()(const config::QuantizeConfig& quantize) const {
    start_log("info", notes);
    return tandem::app::run_quantize(quantize);
  }
  Result<void> operator()(const config::RanktableConfig& ranktable) const {
    start_log("info", notes);
    return tandem::app::run_ranktable(ranktable);
  }
  Result<void> operator()(const config::CheckNetworkConfig& check) const {
    start_log("info", notes);
    return tandem::app::run_check_network(check);
  }
  Result<void> operator()(const config::CheckAgentConfig& agent) const {
    start_log("info", notes);
    return tandem::app::run_check_agent(agent);
  }
  Result<void> operator()(const config::BenchConfig& bench) const {
    start_log("info", notes);
    return tandem::app::run_bench(bench);
  }
};

/// Longest first line of a message: failures are one line, whatever a file or a peer put into them.
std::string one_line(std::string text) {
  for (char& c : text)
    if (c == '\n' || c == '\r') c = ' ';
  return text;
}

int run(const std::vector<std::string>& arguments) {
  const auto line = config::parse_command_line(arguments, environment_variable);
  if (!line) {
    std::fprintf(stderr, "tandem: error: %s\n", one_line(line.error().message()).c_str());
    return kUsageExit;
  }
  const Result<void> done = std::visit(Runner{line->notes}, line->command);
  if (done) return 0;
  std::fprintf(stderr, "tandem: error: %s\n", one_line(done.error().message()).c_str());
  return kFailureExit;
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  try {
    return run(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tandem: error: %s\n", error.what());
    return kFailureExit;
  }
}
