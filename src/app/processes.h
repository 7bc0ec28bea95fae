// SPDX-License-Identifier: Apache-2.0
// This process among those of its instance, when the data-parallel ranks are spread over several (docs/multi_host.md):
// what it tells the others, and what the first one knows of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "api/front.h"
#include "base/peer_tls.h"
#include "base/status.h"
#include "comm/cluster.h"
#include "config/serve_config.h"
#include "model/checkpoint.h"
#include "model/model.h"

namespace tandem::app {

class Processes {
 public:
  struct Options {
    std::uint16_t http_port = 0;                    ///< of this process's API
    const model::Checkpoint* checkpoint = nullptr;  ///< nullptr with a stub
    model::ModelOptions model;                      ///< but the experts
    std::shared_ptr<const PeerTls> tls;             ///< of connections between processes; nullptr: plain
    std::function<void()> changed;                  ///< somebody came or went; called on any thread, must only post
  };
  /// Opens the port at which the processes meet. An error names the flag.
  static Result<std::unique_ptr<Processes>> start(const config::ServeConfig& config, const Options& options);

  /// Waits for all processes, with lines that say for whom. Where each one's experts are; without experts to share, or
  /// --enable-expert-parallel, a placement without a group.
  Result<model::ExpertPlacement> wait_for_all();
  comm::Cluster& cluster() { return *cluster_; }
  /// Whether steps are run together with the others.
  bool steps_together() const { return together_; }
  /// What who is not the first process must bear to be answered here.
  const std::string& token() const { return token_; }
  /// First process: what its API needs. Thread-safe.
  api::InstanceView view() const;

 private:
  Processes() = default;
  std::int32_t total_ranks_ = 1;
  std::int32_t tensor_parallel_ = 1;
  bool together_ = false;
  /// The instance was complete once. Before, nobody is answered; later, without common steps, a process may be missing.
  mutable std::atomic<bool> all_served_{false};
  std::string token_;
  std::unique_ptr<comm::Cluster> cluster_;
};

/// An internal API as a process tells it to the others, and back. An error says what does not fit.
std::string api_details(std::uint16_t port, const std::string& token);
Result<void> read_api_details(const std::string& details, api::OtherProcess& process);

}  // namespace tandem::app
