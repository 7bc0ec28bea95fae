// SPDX-License-Identifier: Apache-2.0
// The compute threads of a process, all ranks together: fork-join with static partition, so that results never depend
// on timing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

namespace tandem::kernels {

/// What each thread of a team does: refers to a callable that outlives the call. (A std::function would allocate for
/// the captures of every kernel.)
class TeamBody {
 public:
  template <class Callable>
    requires(!std::is_same_v<Callable, TeamBody>)
  TeamBody(const Callable& callable)  // NOLINT(google-explicit-constructor): lambdas are passed as they are
      : callable_(&callable),
        call_([](const void* object, int thread) { (*static_cast<const Callable*>(object))(thread); }) {}
  void operator()(int thread) const { call_(callable_, thread); }

 private:
  const void* callable_;
  void (*call_)(const void* object, int thread);
};

class ThreadTeam {
 public:
  /// `num_threads` >= 1; the thread that calls run() is thread 0. `cpus` (may be empty: no binding) gives the
  /// CPUs that each thread may run on. Waiting threads spin for a short time, then sleep.
  explicit ThreadTeam(int num_threads, const std::vector<std::vector<int>>& cpus = {});
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const;
  /// Calls body(thread) once for each thread in [0, size()) and returns when all are done. Not reentrant, and body must
  /// not throw.
  void run(const TeamBody& body);

  /// At least `bytes` of memory, aligned to 64 bytes, contents undefined. The team owns it and keeps it for the next
  /// call, which ends the life of the former one. Only the thread that calls run() may ask, outside of run().
  std::byte* scratch(std::size_t bytes);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// CPUs this process may run on (its affinity mask), not the machine's core count.
std::vector<int> usable_cpus();

}  // namespace tandem::kernels
