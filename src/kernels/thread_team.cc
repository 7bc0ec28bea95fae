// SPDX-License-Identifier: Apache-2.0
// Fork-join over a fixed set of threads: one epoch counter starts a round, one counter of unfinished threads ends it.
#include "kernels/thread_team.h"

#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <new>
#include <thread>
#include <utility>

#include "base/status.h"

namespace tandem::kernels {
namespace {

using SteadyClock = std::chrono::steady_clock;

// Long enough to bridge the serial code between two kernels of a forward pass, short enough to be no load when idle.
constexpr auto kSpin = std::chrono::microseconds(30);
constexpr auto kYield = std::chrono::microseconds(100);
constexpr int kPausesPerClockRead = 32;

inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

void bind_this_thread(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(static_cast<std::size_t>(cpu), &set);
  // CPUs outside of the container's set are refused; the thread then runs anywhere, which is slower but right.
  (void)sched_setaffinity(0, sizeof(set), &set);
}

/// Waits until `value` differs from `old`: spins, yields, then sleeps. Returns the new value.
std::uint32_t wait_change(const std::atomic<std::uint32_t>& value, std::uint32_t old, bool may_spin) {
  const auto start = SteadyClock::now();
  std::uint32_t now = value.load(std::memory_order_acquire);
  while (may_spin && now == old) {
    for (int i = 0; i < kPausesPerClockRead && now == old; ++i) {
      cpu_relax();
      now = value.load(std::memory_order_acquire);
    }
    if (now == old && SteadyClock::now() - start > kSpin) break;
  }
  while (now == old && SteadyClock::now() - start < kYield) {
    sched_yield();
    now = value.load(std::memory_order_acquire);
  }
  while (now == old) {
    value.wait(old, std::memory_order_acquire);
    now = value.load(std::memory_order_acquire);
  }
  return now;
}

struct FreeDeleter {
  void operator()(std::byte* memory) const { std::free(memory); }
};

}  // namespace

struct ThreadTeam::State {
  // Each counter has a cache line of its own: workers read `epoch` while the others count `unfinished` down.
  alignas(64) std::atomic<std::uint32_t> epoch{0};
  alignas(64) std::atomic<std::uint32_t> unfinished{0};
  alignas(64) const TeamBody* body = nullptr;
  bool stop = false;
  bool may_spin = true;
  bool running = false;
  std::vector<std::thread> threads;
  std::unique_ptr<std::byte, FreeDeleter> scratch;
  std::size_t scratch_bytes = 0;

  void work(int thread) {
    std::uint32_t seen = 0;
    while (true) {
      seen = wait_change(epoch, seen, may_spin);
      if (stop) return;
      (*body)(thread);
      if (unfinished.fetch_sub(1, std::memory_order_acq_rel) == 1) unfinished.notify_one();
    }
  }

  void start_round() {
    epoch.fetch_add(1, std::memory_order_release);
    epoch.notify_all();
  }
};

ThreadTeam::ThreadTeam(int num_threads, const std::vector<std::vector<int>>& cpus) : state_(std::make_unique<State>()) {
  TANDEM_ASSERT(num_threads >= 1, "a thread team needs a thread");
  TANDEM_ASSERT(cpus.empty() || cpus.size() == static_cast<std::size_t>(num_threads), "CPUs for each thread");
  // With more threads than CPUs a spinning thread would keep the one it waits for from running.
  state_->may_spin = static_cast<std::size_t>(num_threads) <= usable_cpus().size();
  if (!cpus.empty()) bind_this_thread(cpus[0]);
  for (int thread = 1; thread < num_threads; ++thread) {
    std::vector<int> own = cpus.empty() ? std::vector<int>() : cpus[static_cast<std::size_t>(thread)];
    state_->threads.emplace_back([state = state_.get(), thread, own = std::move(own)] {
      if (!own.empty()) bind_this_thread(own);
      state->work(thread);
    });
  }
}

ThreadTeam::~ThreadTeam() {
  state_->stop = true;
  state_->start_round();
  for (auto& thread : state_->threads) thread.join();
}

int ThreadTeam::size() const { return static_cast<int>(state_->threads.size()) + 1; }

void ThreadTeam::run(const TeamBody& body) {
  State& state = *state_;
  TANDEM_ASSERT(!state.running, "ThreadTeam::run is not reentrant");
  state.running = true;
  if (!state.threads.empty()) {
    state.body = &body;
    state.unfinished.store(static_cast<std::uint32_t>(state.threads.size()), std::memory_order_relaxed);
    state.start_round();
  }
  body(0);
  for (std::uint32_t left = state.unfinished.load(std::memory_order_acquire); left != 0;) {
    left = wait_change(state.unfinished, left, state.may_spin);
  }
  state.running = false;
}

std::byte* ThreadTeam::scratch(std::size_t bytes) {
  State& state = *state_;
  if (bytes > state.scratch_bytes) {
    const std::size_t rounded = (bytes + bytes / 4 + 4095) / 4096 * 4096;
    state.scratch.reset();
    state.scratch.reset(static_cast<std::byte*>(std::aligned_alloc(4096, rounded)));
    TANDEM_ASSERT(state.scratch != nullptr, "out of memory for kernel scratch");
    state.scratch_bytes = rounded;
  }
  return state.scratch.get();
}

std::vector<int> usable_cpus() {
  std::vector<int> cpus;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(static_cast<std::size_t>(cpu), &set)) cpus.push_back(cpu);
    }
  }
  if (cpus.empty()) cpus.push_back(0);
  return cpus;
}

}  // namespace tandem::kernels
