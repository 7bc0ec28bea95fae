// SPDX-License-Identifier: Apache-2.0
// A rank's compute threads: fork-join with static partition, so that results never depend on timing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace tandem::kernels {

class ThreadTeam {
 public:
  /// `num_threads` >= 1; the thread that calls run() is thread 0. `cpus` (may be empty: no pinning) gives the CPU of
  /// each thread. Waiting threads spin for a short time, then sleep.
  explicit ThreadTeam(int num_threads, std::vector<int> cpus = {});
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const;
  /// Calls body(thread) once for each thread in [0, size()) and returns when all are done. Not reentrant.
  void run(const std::function<void(int thread)>& body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// CPUs this process may run on (its affinity mask), not the machine's core count.
std::vector<int> usable_cpus();

}  // namespace tandem::kernels
