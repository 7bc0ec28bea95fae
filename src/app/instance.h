// SPDX-License-Identifier: Apache-2.0
// One instance without its HTTP server: model or stub, KV memory, transfer engine and engine, built from a config.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "api/context.h"
#include "app/processes.h"
#include "app/text_source.h"
#include "base/status.h"
#include "config/serve_config.h"
#include "engine/engine.h"
#include "obs/metrics.h"
#include "transfer/transfer_engine.h"
#include "worker/worker.h"

namespace tandem::app {

class Instance {
 public:
  struct Hooks {
    std::function<void()> before_transfer;  ///< called just before the transfer engine binds the KV port
    /// If the ranks are in several processes: called once this one looks for the others, and what is called when one
    /// comes or goes (on any thread; must only post).
    std::function<void(std::shared_ptr<Processes>)> on_processes;
    std::function<void()> processes_changed;
    std::uint16_t http_port = 0;  ///< of this process's API
  };
  /// Loads everything; takes long. If the ranks are in several processes, all of them load together.
  static Result<std::unique_ptr<Instance>> load(const config::ServeConfig& config, const Hooks& hooks);
  ~Instance();
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  engine::Engine& engine() { return *engine_; }
  /// nullptr: all ranks are in this process.
  const std::shared_ptr<Processes>& processes() const { return processes_; }
  /// What the API needs of it. Valid while the instance lives.
  api::ServiceParts service_parts();
  /// Aborts all requests, ends leases and fetches, joins threads. Takes up to some ten seconds. Idempotent.
  void stop();

 private:
  explicit Instance(const config::ServeConfig& config);
  Result<void> load_model(const Hooks& hooks);
  Result<void> join_processes(const Hooks& hooks, model::ModelOptions& options);
  Result<void> load_stub(const Hooks& hooks);
  Result<void> start_transfer();
  void start_engine();
  api::SamplingDefaults sampling_defaults() const;

  config::ServeConfig config_;
  obs::Registry metrics_;
  std::int64_t max_model_len_ = 0;
  api::TransferInfo transfer_info_;
  TextParts text_;
  model::GenerationDefaults generation_defaults_;
  // Order: each uses those above it.
  std::shared_ptr<const PeerTls> peer_tls_;        ///< nullptr: connections to peers are plain
  std::unique_ptr<model::Checkpoint> checkpoint_;  ///< the model reads rows of its mapped file; nullptr with a stub
  std::shared_ptr<Processes> processes_;           ///< nullptr: all ranks are in this process
  std::unique_ptr<worker::Worker> worker_;
  std::unique_ptr<transfer::TransferEngine> transfer_;
  std::unique_ptr<engine::Announcer> announcer_;  ///< layerwise push, decoder
  std::unique_ptr<engine::Engine> engine_;
};

/// Where peers reach this instance's transfer engine: VLLM_HOST_IP, kv_ip, --host if it is one address, or the address
/// of the default route.
std::string advertised_host(const config::ServeConfig& config);

}  // namespace tandem::app
