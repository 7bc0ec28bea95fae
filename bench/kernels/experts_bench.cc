// SPDX-License-Identifier: Apache-2.0
// A layer with experts of Qwen3-30B-A3B's shape (with 32 experts instead of 128, which is enough to read them from
// memory): router, grouped linear layers, weighted sum. Beside each, "dense" is an MLP with as many products for each
// row: what the layer would cost if all rows took the same experts. Gop/s counts the experts' products only.
#include <benchmark/benchmark.h>

#include <functional>
#include <string>
#include <vector>

#include "kernel_bench.h"
#include "kernels/kernels.h"
#include "model/expert_layer.h"

namespace tandem::bench {
namespace {

using kernels::WeightType;

constexpr std::int64_t kHidden = 2048;
constexpr std::int32_t kInner = 768;
constexpr std::int32_t kExperts = 32;

std::vector<float> numbers(std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * 7919 % 1000) / 500.0F - 1.0F;
  return values;
}

std::unique_ptr<kernels::PackedLinear> pack(const kernels::Ops& ops, kernels::ThreadTeam& team, WeightType type,
                                            std::int64_t n, std::int64_t k, std::int64_t seed) {
  const auto read = [&](std::int64_t row, float* out) {
    for (std::int64_t i = 0; i < k; ++i)
      out[i] = static_cast<float>((row * 31 + i * 17 + row * i * seed) % 255 - 127) / 4000.0F;
  };
  return ops.pack_linear(team, type, n, k, read, nullptr);
}

void set_counters(benchmark::State& state, std::int64_t rows, std::int64_t top_k) {
  const auto products = static_cast<double>(rows * top_k * 3 * kHidden * kInner);
  state.counters["Gop/s"] =
      benchmark::Counter(2e-9 * products * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

void experts(benchmark::State& state, WeightType type, std::int64_t rows, std::int32_t top_k, int threads) {
  const kernels::Ops& ops = **kernels::ops_for(kernels::detect_isa());
  kernels::ThreadTeam team(threads);
  model::ModelConfig config;
  config.hidden_size = kHidden;
  config.num_experts = kExperts;
  config.experts_per_token = top_k;
  config.moe_intermediate_size = kInner;
  config.norm_topk_prob = true;
  model::LayerWeights weights;
  weights.router = pack(ops, team, WeightType::kF32, kExperts, kHidden, 5);
  for (std::int32_t expert = 0; expert < kExperts; ++expert) {
    weights.experts.push_back(
        {pack(ops, team, type, 2 * kInner, kHidden, expert + 1), pack(ops, team, type, kHidden, kInner, expert + 2)});
  }
  model::ExpertLayer layer(config, {}, ops, team, 0);
  const std::vector<float> normed = numbers(rows * kHidden);
  std::vector<float> x(normed.size(), 0.0F);
  for (auto _ : state) {
    if (!layer.run(0, weights, normed.data(), rows, x.data())) state.SkipWithError("the layer failed");
    benchmark::ClobberMemory();
  }
  set_counters(state, rows, top_k);
}

void dense(benchmark::State& state, WeightType type, std::int64_t rows, std::int64_t top_k, int threads) {
  const kernels::Ops& ops = **kernels::ops_for(kernels::detect_isa());
  kernels::ThreadTeam team(threads);
  const std::int64_t inner = top_k * kInner;
  // Copies in turn, so that few rows read the weights from memory, as they do in a model.
  struct Mlp {
    std::unique_ptr<kernels::PackedLinear> gate_up;
    std::unique_ptr<kernels::PackedLinear> down;
  };
  std::vector<Mlp> copies(static_cast<std::size_t>(rows > 16 ? 1 : kExperts / top_k));
  for (Mlp& copy : copies)
    copy = {pack(ops, team, type, 2 * inner, kHidden, 1), pack(ops, team, type, kHidden, inner, 2)};
  const std::vector<float> normed = numbers(rows * kHidden);
  std::vector<float> gate_up(static_cast<std::size_t>(rows * 2 * inner));
  std::vector<float> activated(static_cast<std::size_t>(rows * inner));
  std::vector<float> x(normed.size(), 0.0F);
  std::size_t turn = 0;
  for (auto _ : state) {
    const Mlp& mlp = copies[turn++ % copies.size()];
    ops.linear(team, *mlp.gate_up, normed.data(), kHidden, rows, gate_up.data(), 2 * inner, kernels::Epilogue::kStore);
    ops.silu_mul(team, gate_up.data(), rows, inner, activated.data());
    ops.linear(team, *mlp.down, activated.data(), inner, rows, x.data(), kHidden, kernels::Epilogue::kAdd);
    benchmark::ClobberMemory();
  }
  set_counters(state, rows, top_k);
}

/// One thread is measured by its CPU time, which other processes disturb less; several by the wall clock.
void add(const std::string& name, int threads, const std::function<void(benchmark::State&)>& body) {
  auto* bench = benchmark::RegisterBenchmark(name.c_str(), body);
  if (threads > 1) bench->UseRealTime();
}

}  // namespace

void add_benchmarks() {
  const std::pair<WeightType, const char*> types[] = {{WeightType::kInt8, "int8"}, {WeightType::kBf16, "bf16"}};
  const int all = static_cast<int>(kernels::usable_cpus().size());
  for (const int threads : all == 1 ? std::vector<int>{1} : std::vector<int>{1, all})
    for (const auto& [type, name] : types)
      for (const std::int64_t rows : {1, 8, 64, 512})
        for (const std::int32_t top_k : {1, 2, 8}) {
          const std::string suffix = std::string("/") + name + "/rows:" + std::to_string(rows) +
                                     "/chosen:" + std::to_string(top_k) + "/threads:" + std::to_string(threads);
          add("experts" + suffix, threads,
              [=, kind = type](benchmark::State& state) { experts(state, kind, rows, top_k, threads); });
          add("dense" + suffix, threads,
              [=, kind = type](benchmark::State& state) { dense(state, kind, rows, top_k, threads); });
        }
}

}  // namespace tandem::bench
