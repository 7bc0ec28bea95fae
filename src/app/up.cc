// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <climits>

#include "app/commands.h"
#include "cluster/deployment.h"
#include "cluster/launcher.h"
#include "kernels/thread_team.h"

namespace tandem::app {
namespace {

Result<std::string> own_program() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  if (length <= 0) return Status(Code::kInternal, "cannot find this program's own file through /proc/self/exe");
  return std::string(path, static_cast<std::size_t>(length));
}

bool wants_color(config::Color color) {
  if (color == config::Color::kAuto) return isatty(STDOUT_FILENO) == 1;
  return color == config::Color::kAlways;
}

}  // namespace

Result<void> run_up(const config::UpConfig& config) {
  cluster::LaunchOptions options;
  TANDEM_ASSIGN(options.program, own_program());
  options.ready_timeout = config.ready_timeout;
  options.shutdown_timeout = config.shutdown_timeout;
  options.color = wants_color(config.color);
  const int num_cpus = static_cast<int>(kernels::usable_cpus().size());
  TANDEM_ASSIGN(const cluster::Deployment deployment,
                cluster::make_deployment(config, cluster::kernel_port_finder(), num_cpus));
  return cluster::run_deployment(deployment, options);
}

}  // namespace tandem::app
