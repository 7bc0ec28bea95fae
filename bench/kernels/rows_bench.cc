// SPDX-License-Identifier: Apache-2.0
// The small change of a forward pass: fork and join of the team, and the row-wise operations for 1 and 512 rows.
#include <benchmark/benchmark.h>

#include <functional>
#include <string>
#include <vector>

#include "kernel_bench.h"
#include "kernels/kernels.h"

namespace tandem::bench {
namespace {

constexpr std::int64_t kCols = 1024;

void fork_join(benchmark::State& state) {
  kernels::ThreadTeam team(static_cast<int>(state.range(0)));
  const std::function<void(int)> nothing = [](int) {};
  for (auto _ : state) team.run(nothing);
}
BENCHMARK(fork_join)->Arg(1)->Arg(2)->UseRealTime();

enum class Kind { kRmsNorm, kRope, kSiluMul };

void rows(benchmark::State& state, Kind kind, std::int64_t num_rows) {
  const kernels::Ops& ops = **kernels::ops_for(kernels::detect_isa());
  kernels::ThreadTeam team(1);
  std::vector<float> x(static_cast<std::size_t>(num_rows * 2 * kCols), 0.5F);
  std::vector<float> y(static_cast<std::size_t>(num_rows * kCols));
  const std::vector<float> table(static_cast<std::size_t>(kCols), 0.5F);
  const std::vector<std::int32_t> positions(static_cast<std::size_t>(num_rows), 0);
  for (auto _ : state) {
    switch (kind) {
      case Kind::kRmsNorm:
        ops.rms_norm(team, x.data(), kCols, table.data(), nullptr, 1e-6F, num_rows, kCols, y.data(), kCols);
        break;
      case Kind::kRope:
        ops.rope(team, y.data(), kCols, num_rows, kCols / 128, 128, positions.data(), table.data(), table.data());
        break;
      case Kind::kSiluMul:
        ops.silu_mul(team, x.data(), num_rows, kCols, y.data());
        break;
    }
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * num_rows * kCols);
}

}  // namespace

void add_benchmarks() {
  const std::pair<Kind, const char*> kinds[] = {
      {Kind::kRmsNorm, "rms_norm"}, {Kind::kRope, "rope"}, {Kind::kSiluMul, "silu_mul"}};
  for (const auto& [kind, name] : kinds) {
    for (const std::int64_t num_rows : {1, 512}) {
      benchmark::RegisterBenchmark((std::string(name) + "/rows:" + std::to_string(num_rows)).c_str(),
                                   [which = kind, num_rows](benchmark::State& state) { rows(state, which, num_rows); });
    }
  }
}

}  // namespace tandem::bench
