// SPDX-License-Identifier: Apache-2.0
// Runs an outside program to its end: no shell, bounded output, a deadline after which it is killed. An interface, so
// that tests answer from recorded outputs.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"

namespace tandem::cluster {

struct CommandOutput {
  int exit_code = 0;
  std::string text;  ///< stdout and stderr together, at most 1 MiB
};

/// Thread-safe.
class CommandRunner {
 public:
  virtual ~CommandRunner() = default;
  /// argv[0] is a path, or a name looked up in PATH. kNotFound: no such program; kDeadlineExceeded: killed after
  /// `timeout`. Any exit code is a value.
  virtual Result<CommandOutput> run(const std::vector<std::string>& argv, std::chrono::milliseconds timeout) = 0;
};

std::unique_ptr<CommandRunner> process_runner();

/// "hccn_tool -i 0 -ip -g", for messages.
std::string command_text(const std::vector<std::string>& argv);

}  // namespace tandem::cluster
