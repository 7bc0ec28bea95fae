// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <signal.h>

#include <cerrno>
#include <cstdio>

#include "app/commands.h"
#include "base/log.h"
#include "cluster/check_agent.h"
#include "cluster/network_check.h"

namespace tandem::app {
namespace {

/// Blocks SIGINT and SIGTERM in this and all later threads; wait() returns at one of them or after a time.
class StopSignals {
 public:
  StopSignals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGINT);
    sigaddset(&set_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  }
  /// False: the time is over.
  bool wait(std::chrono::milliseconds time) const {
    const timespec limit{static_cast<time_t>(time.count() / 1000), static_cast<long>(time.count() % 1000) * 1'000'000};
    int signal = -1;
    do {
      signal = sigtimedwait(&set_, nullptr, &limit);
    } while (signal < 0 && errno == EINTR);
    return signal > 0;
  }

 private:
  sigset_t set_{};
};

}  // namespace

Result<void> run_check_network(const config::CheckNetworkConfig& config) {
  const auto runner = cluster::process_runner();
  const cluster::NodeTools tools{.runner = *runner,
                                 .hccn_tool = config.hccn_tool,
                                 .hccn_conf = config.hccn_conf,
                                 .timeout = config.timeout,
                                 .exists = cluster::file_exists};
  const auto nodes = cluster::inspect_network(config, tools);
  const auto rows = cluster::assess_network(nodes, config);
  const std::string table = config.json ? cluster::check_table_json(rows) : cluster::check_table_text(rows);
  std::fwrite(table.data(), 1, table.size(), stdout);
  std::fflush(stdout);
  if (const std::size_t failed = cluster::num_failed(rows); failed > 0)
    return Status(Code::kFailedPrecondition, fmt::format("{} network checks failed; the table says which", failed));
  return {};
}

Result<void> run_check_agent(const config::CheckAgentConfig& config) {
  const StopSignals signals;
  auto listener = cluster::Listener::open(config.host, config.port);
  if (!listener) return listener.error().context("argument --port");
  const auto runner = cluster::process_runner();
  const cluster::CheckAgent agent(std::move(*listener), cluster::NodeTools{.runner = *runner,
                                                                           .hccn_tool = config.hccn_tool,
                                                                           .hccn_conf = config.hccn_conf,
                                                                           .timeout = config.timeout,
                                                                           .exists = cluster::file_exists});
  log::info("check agent listens on {}:{} for {} s", config.host, agent.port(), config.lifetime.count() / 1000);
  if (!signals.wait(config.lifetime)) log::info("check agent: its lifetime is over");
  return {};
}

}  // namespace tandem::app
