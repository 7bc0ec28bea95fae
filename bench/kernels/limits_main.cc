// SPDX-License-Identifier: Apache-2.0
// tandem-limits [threads]: prints what this machine can do as one line of JSON.
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "kernels/thread_team.h"
#include "machine_limits.h"

int main(int argc, char** argv) {
  const int usable = static_cast<int>(tandem::kernels::usable_cpus().size());
  int threads = usable;
  if (argc == 2) threads = std::atoi(argv[1]);
  if (argc > 2 || threads < 1 || threads > 4096) {
    std::fprintf(stderr, "usage: tandem-limits [threads, 1 to 4096; default: the %d usable CPUs]\n", usable);
    return 2;
  }
  // On a thread of its own, because pinning would stay with this one.
  std::thread([threads] { std::puts(tandem::bench::limits_json(threads).c_str()); }).join();
  return 0;
}
