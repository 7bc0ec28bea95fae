// SPDX-License-Identifier: Apache-2.0
// Attention over paged KV: prefill of a whole prompt and decode of one token per sequence, in the head shapes of
// Qwen3-0.6B (16:8 heads of 128) and SmolLM2-135M (9:3 heads of 64), BF16 and int8 KV in blocks of 16 tokens.
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "kernel_bench.h"
#include "kernels/kernels.h"

namespace tandem::bench {
namespace {

using kernels::Isa;

struct Heads {
  std::int32_t num_heads;
  std::int32_t num_kv_heads;
  std::int32_t head_dim;
};
constexpr std::int32_t kBlockSize = 16;

/// `sequences` sequences that have `context` tokens in the cache and get `tokens` more.
void attend(benchmark::State& state, Isa isa, kernels::KvType type, const Heads& heads, std::int64_t sequences,
            std::int64_t context, std::int64_t tokens, int threads) {
  const kernels::Ops& ops = **kernels::ops_for(isa);
  kernels::ThreadTeam team(threads);
  const std::int64_t blocks = (context + tokens + kBlockSize - 1) / kBlockSize;
  kernels::PagedKv kv;
  kv.block_size = kBlockSize;
  kv.num_kv_heads = heads.num_kv_heads;
  kv.num_heads = heads.num_heads;
  kv.head_dim = heads.head_dim;
  kv.type = type;
  kv.head_stride = static_cast<std::size_t>(kBlockSize) * kv.vector_bytes();
  kv.kv_stride = kv.head_stride * static_cast<std::size_t>(heads.num_kv_heads);
  kv.block_stride = 2 * kv.kv_stride;
  // Numbers near 1 / 64 as BF16, and as the scales of int8 vectors, so that no score overflows.
  const std::size_t words = kv.block_stride / 2 * static_cast<std::size_t>(blocks * sequences);
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  const std::size_t bytes_held = (words * 2 + kHugePage - 1) / kHugePage * kHugePage;
  const std::unique_ptr<std::uint16_t, decltype(&std::free)> memory(
      static_cast<std::uint16_t*>(std::aligned_alloc(kHugePage, bytes_held)), &std::free);
  (void)madvise(memory.get(), bytes_held, MADV_HUGEPAGE);
  for (std::size_t i = 0; i < words; ++i) memory.get()[i] = static_cast<std::uint16_t>(0x3c80U + i * 37 % 128);
  kv.data = reinterpret_cast<std::byte*>(memory.get());
  std::vector<std::int32_t> table(static_cast<std::size_t>(blocks * sequences));
  std::iota(table.begin(), table.end(), 0);
  std::vector<kernels::AttentionSequence> batch;
  for (std::int64_t i = 0; i < sequences; ++i) {
    batch.push_back({i * tokens, tokens, context, {table.data() + i * blocks, static_cast<std::size_t>(blocks)}});
  }
  const std::int64_t width = std::int64_t{heads.num_heads} * heads.head_dim;
  std::vector<float> q(static_cast<std::size_t>(sequences * tokens * width), 0.125F);
  std::vector<float> out(q.size());
  for (auto _ : state) {
    ops.attention(team, batch, q.data(), width, heads.num_heads / heads.num_kv_heads, 0.1F, {&kv, 1}, out.data(),
                  width);
    benchmark::ClobberMemory();
  }
  const auto iterations = static_cast<double>(state.iterations());
  const double scores = static_cast<double>(sequences * heads.num_heads) *
                        static_cast<double>(tokens * context + tokens * (tokens + 1) / 2);
  state.counters["Gop/s"] =
      benchmark::Counter(4e-9 * scores * heads.head_dim * iterations, benchmark::Counter::kIsRate);
  const double bytes = static_cast<double>(sequences * (context + tokens)) * static_cast<double>(heads.num_kv_heads) *
                       2 * static_cast<double>(kv.vector_bytes());
  state.counters["GB/s"] = benchmark::Counter(1e-9 * bytes * iterations, benchmark::Counter::kIsRate);
}

void add(const std::string& name, const Heads& heads, std::int64_t sequences, std::int64_t context, std::int64_t tokens,
         int threads) {
  for (const Isa isa : kernels::kAllIsas) {
    if (!kernels::ops_for(isa)) continue;
    for (const bool int8 : {false, true}) {
      const kernels::KvType type = int8 ? kernels::KvType::kInt8 : kernels::KvType::kBf16;
      const std::string full = std::string(kernels::isa_name(isa)) + "/" + name + (int8 ? "/int8" : "/bfloat16") +
                               "/heads:" + std::to_string(heads.num_heads) + "x" + std::to_string(heads.head_dim) +
                               "/kv_heads:" + std::to_string(heads.num_kv_heads) +
                               "/sequences:" + std::to_string(sequences) + "/context:" + std::to_string(context) +
                               "/tokens:" + std::to_string(tokens) + "/threads:" + std::to_string(threads);
      auto* bench = benchmark::RegisterBenchmark(full.c_str(), [=](benchmark::State& state) {
        attend(state, isa, type, heads, sequences, context, tokens, threads);
      });
      if (threads > 1) bench->UseRealTime();
    }
  }
}

}  // namespace

void add_benchmarks() {
  const int all = static_cast<int>(kernels::usable_cpus().size());
  for (const Heads& heads : {Heads{16, 8, 128}, Heads{9, 3, 64}}) {
    for (const int threads : all == 1 ? std::vector<int>{1} : std::vector<int>{1, all}) {
      add("prefill", heads, 1, 0, 512, threads);
      add("prefill", heads, 1, 4096, 512, threads);
      add("decode", heads, 1, 1024, 1, threads);
      add("decode", heads, 1, 32768, 1, threads);
      add("decode", heads, 16, 4096, 1, threads);
    }
  }
}

}  // namespace tandem::bench
