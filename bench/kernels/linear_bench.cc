// SPDX-License-Identifier: Apache-2.0
// Linear layers: Gop/s and weight bytes/s of our kernels and of oneDNN on the same shapes. Run with
// --benchmark_filter=int8/.*K1024 and the like; tandem-limits prints the machine's limits to compare with.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "kernel_bench.h"
#include "kernels/kernels.h"
#ifdef TANDEM_BENCH_ONEDNN
#include "onednn_peer.h"
#endif

namespace tandem::bench {
namespace {

using kernels::Isa;
using kernels::WeightType;

struct Shape {
  std::int64_t k;
  std::int64_t n;
};

/// Copies of the weights, used in turn, so that one row reads them from memory as a whole model would.
constexpr std::int64_t kCycleBytes = std::int64_t{96} << 20;

std::int64_t copies_of(std::int64_t bytes, std::int64_t rows) {
  return rows > 16 ? 1 : std::max<std::int64_t>(1, kCycleBytes / bytes);
}

void set_counters(benchmark::State& state, std::int64_t rows, const Shape& shape, std::int64_t weight_bytes) {
  const auto iterations = static_cast<double>(state.iterations());
  state.counters["Gop/s"] = benchmark::Counter(2e-9 * static_cast<double>(rows * shape.k * shape.n) * iterations,
                                               benchmark::Counter::kIsRate);
  state.counters["GB/s"] =
      benchmark::Counter(1e-9 * static_cast<double>(weight_bytes) * iterations, benchmark::Counter::kIsRate);
}

void own(benchmark::State& state, Isa isa, WeightType type, const Shape& shape, std::int64_t rows, int threads) {
  const kernels::Ops& ops = **kernels::ops_for(isa);
  kernels::ThreadTeam team(threads);
  const auto read = [&](std::int64_t row, float* out) {
    for (std::int64_t k = 0; k < shape.k; ++k) out[k] = static_cast<float>((row * 31 + k * 17) % 255 - 127);
  };
  std::vector<std::unique_ptr<kernels::PackedLinear>> weights;
  do {
    weights.push_back(ops.pack_linear(team, type, shape.n, shape.k, read, nullptr));
  } while (static_cast<std::int64_t>(weights.size()) < copies_of(static_cast<std::int64_t>(weights[0]->bytes()), rows));
  std::vector<float> x(static_cast<std::size_t>(rows * shape.k));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 7919 % 1000) - 500.0F;
  std::vector<float> y(static_cast<std::size_t>(rows * shape.n));
  std::size_t turn = 0;
  for (auto _ : state) {
    ops.linear(team, *weights[turn], x.data(), shape.k, rows, y.data(), shape.n, kernels::Epilogue::kStore);
    turn = turn + 1 == weights.size() ? 0 : turn + 1;
    benchmark::ClobberMemory();
  }
  set_counters(state, rows, shape, static_cast<std::int64_t>(weights[0]->bytes()));
}

#ifdef TANDEM_BENCH_ONEDNN
void peer(benchmark::State& state, PeerType type, const Shape& shape, std::int64_t rows, int threads) {
  const std::int64_t bytes = shape.k * shape.n * (type == PeerType::kF32 ? 4 : (type == PeerType::kBf16 ? 2 : 1));
  std::vector<std::unique_ptr<OneDnnMatmul>> matmuls;
  for (std::int64_t i = 0; i < copies_of(bytes, rows); ++i) {
    matmuls.push_back(std::make_unique<OneDnnMatmul>(type, rows, shape.k, shape.n, threads));
  }
  std::size_t turn = 0;
  for (auto _ : state) {
    matmuls[turn]->run();
    turn = turn + 1 == matmuls.size() ? 0 : turn + 1;
  }
  set_counters(state, rows, shape, bytes);
}
#endif

/// One thread is measured by its CPU time, which other processes disturb less; several by the wall clock.
void add(const std::string& name, int threads, const std::function<void(benchmark::State&)>& body) {
  auto* bench = benchmark::RegisterBenchmark(name.c_str(), body);
  if (threads > 1) bench->UseRealTime();
}

void add_shape(WeightType type, const std::string& type_name, const Shape& shape, std::int64_t rows, int threads) {
  const std::string suffix = type_name + "/K" + std::to_string(shape.k) + "/N" + std::to_string(shape.n) +
                             "/rows:" + std::to_string(rows) + "/threads:" + std::to_string(threads);
  for (const Isa isa : kernels::kAllIsas) {
    if (!kernels::ops_for(isa)) continue;
    add(std::string(kernels::isa_name(isa)) + "/" + suffix, threads,
        [=](benchmark::State& state) { own(state, isa, type, shape, rows, threads); });
  }
#ifdef TANDEM_BENCH_ONEDNN
  const PeerType peer_type = type == WeightType::kF32    ? PeerType::kF32
                             : type == WeightType::kBf16 ? PeerType::kBf16
                                                         : PeerType::kInt8;
  add("onednn/" + suffix, threads, [=](benchmark::State& state) { peer(state, peer_type, shape, rows, threads); });
#endif
}

}  // namespace

void add_benchmarks() {
  constexpr Shape kShapes[] = {{1024, 3072}, {2048, 2048}, {576, 1536}};
  const std::pair<WeightType, const char*> types[] = {
      {WeightType::kInt8, "int8"}, {WeightType::kBf16, "bf16"}, {WeightType::kF32, "f32"}};
  const int all = static_cast<int>(kernels::usable_cpus().size());
  for (const int threads : all == 1 ? std::vector<int>{1} : std::vector<int>{1, all}) {
    for (const auto& [type, name] : types) {
      for (const Shape& shape : kShapes) {
        for (const std::int64_t rows : {1, 8, 64, 512}) add_shape(type, name, shape, rows, threads);
      }
    }
  }
}

}  // namespace tandem::bench
