// SPDX-License-Identifier: Apache-2.0
// Runs the processes of a deployment on this machine: starts them, prefixes what they print, waits until all answer,
// and stops all of them on SIGINT or SIGTERM or when one cannot start. Children also die with the launcher (PDEATHSIG).
#pragma once

#include <chrono>
#include <string>

#include "base/status.h"
#include "cluster/deployment.h"

namespace tandem::cluster {

struct LaunchOptions {
  std::string program;  ///< the tandem binary
  std::chrono::seconds ready_timeout{600};
  std::chrono::seconds stop_timeout{15};  ///< after SIGTERM, before SIGKILL
  /// After a signal the proxy has so long for its running requests, while instances go on; 0: all are stopped at once.
  std::chrono::milliseconds shutdown_timeout{0};
  bool color = false;
};

/// Makes the deployment's network, if it has one, and removes it at the end. Blocks until the deployment was stopped.
/// Ok after a signal; an error that names the process and the reason if one could not start or the proxy died. Must be
/// called from the main thread; takes SIGINT, SIGTERM and SIGCHLD meanwhile. Lines of its own start with "up: ".
Result<void> run_deployment(const Deployment& deployment, const LaunchOptions& options);

}  // namespace tandem::cluster
