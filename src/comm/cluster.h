// SPDX-License-Identifier: Apache-2.0
// The processes of one instance over TCP, one on each host: how they find each other, notice that one is gone, come
// back together, and run steps in rounds (Group). See README.md for the course of things.
//
//   auto cluster = Cluster::start(options);          // the port is open from here on
//   auto all = cluster->wait_for_all();              // who has which ranks
//   ... load ...
//   cluster->enter();                                // on the thread that runs the steps; then group() is used there
//   cluster->serving();
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/peer_tls.h"
#include "base/status.h"
#include "comm/coordinator.h"
#include "comm/group.h"
#include "comm/messages.h"

namespace tandem::comm {

struct ClusterOptions {
  std::string address;     ///< of the first process (--data-parallel-address)
  std::uint16_t port = 0;  ///< there (--data-parallel-rpc-port); the others take the same port if it is free
  std::string host;        ///< where the others reach this process; empty: its address on the link to the first one
  std::int32_t first_rank = 0;  ///< the process with rank 0 is the first one
  std::int32_t num_ranks = 1;
  std::int32_t total_ranks = 1;
  std::vector<Property> properties;    ///< must be the same in all processes
  std::string details;                 ///< told to the others (ProcessInfo::details)
  bool links = true;                   ///< whether steps are run together, so that group() is used
  std::shared_ptr<const PeerTls> tls;  ///< nullptr: plain; then only hosts of private networks may take part
  LinkTimes times;
  std::chrono::milliseconds start_timeout{600'000};
  std::chrono::milliseconds round_timeout{300'000};  ///< as long as the engine lets a step take
  std::function<void()> changed;  ///< first process: somebody came, went or is serving; any thread, must only post
};

class Cluster {
 public:
  /// Opens the port and starts to look for the others. An error is about address or port.
  static Result<std::unique_ptr<Cluster>> start(ClusterOptions options);
  virtual ~Cluster() = default;

  /// Waits until every rank has a process, with a line every few seconds. In the order of their ranks. An error if that
  /// takes longer than start_timeout, if this process does not fit to the first one, or after stop().
  virtual Result<std::vector<ProcessInfo>> wait_for_all() = 0;
  /// This process is loaded; waits, likewise, until all are, and links up with them. On the thread that uses group().
  virtual Result<void> enter() = 0;
  /// Without links: says that it is loaded and does not wait.
  virtual void loaded() = 0;
  /// This process answers requests from now on.
  virtual void serving() = 0;
  /// Ends all waits, for good.
  virtual void stop() = 0;

  virtual Group& group() = 0;
  /// Not ok: this process can never again be part of the instance and should end.
  virtual Status failure() const = 0;

  struct Process {
    ProcessInfo info;
    bool present = false;
    bool serving = false;
  };
  /// First process only: all known processes in the order of their ranks.
  virtual std::vector<Process> processes() const = 0;
  /// First process only. Ok if steps can run (with links), or if all processes are there (without); else names who is
  /// missing. Thread-safe.
  virtual Status complete() const = 0;
};

}  // namespace tandem::comm
