// SPDX-License-Identifier: Apache-2.0
// The processes of one instance, as one of them sees the others in the middle of a step. An instance that spans hosts
// has one process on each. All processes run the same steps, and a step is a fixed number of rounds: in each round
// every process sends one message to every other one. The message may be empty; it must be sent all the same.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"

namespace tandem::comm {

using Bytes = std::span<const std::byte>;

/// All but wake() is called by one thread, in this order: wait_for_others() or work of one's own, then start_step(),
/// then begin() and finish() in turn for each round of the step.
///
/// An error has Scope::kPeer and names the process that is gone. It ends the step for all processes; each gets it from
/// its next begin() or finish() at the latest, even if everybody is back by then. start_step() forgets it: once all are
/// back, the next step begins with the first round.
class Group {
 public:
  virtual ~Group() = default;
  virtual int rank() const = 0;  ///< this process, 0 .. size() - 1
  virtual int size() const = 0;
  /// Between two steps. An error if a process is missing. Nothing to do for groups whose processes cannot be lost.
  virtual Result<void> start_step() { return {}; }
  /// Starts a round: outgoing[p] goes to process p (outgoing[rank()] is not looked at). The bytes stay unchanged until
  /// finish(). Does not wait for anybody, so that the caller can compute meanwhile.
  virtual Result<void> begin(std::span<const Bytes> outgoing) = 0;
  /// Ends the round: waits until this process's messages are sent and those of all others are here. Element p is from
  /// process p (that of rank() is empty), valid until the next begin().
  virtual Result<std::span<const Bytes>> finish() = 0;
  /// Waits until another process has begun a round that this one has not: then there is a step to take part in, with or
  /// without work of one's own. False if `timeout` passed or wake() was called first.
  virtual bool wait_for_others(std::chrono::milliseconds timeout) = 0;
  /// Ends a wait_for_others() in another thread, or the next one. Thread-safe.
  virtual void wake() = 0;
};

/// Members of one group in one process, for tests and as the example of the contract: element i has rank i.
std::vector<std::unique_ptr<Group>> make_local_group(int size);

}  // namespace tandem::comm
