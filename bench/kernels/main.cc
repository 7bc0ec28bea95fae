// SPDX-License-Identifier: Apache-2.0
// The main function of the kernel benchmarks.
#include <benchmark/benchmark.h>

#include "kernel_bench.h"

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  tandem::bench::add_benchmarks();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
