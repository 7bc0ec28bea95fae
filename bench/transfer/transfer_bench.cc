// SPDX-License-Identifier: Apache-2.0
// How fast KV moves between two engines of one process, pulled and pushed layer by layer, over both transports and over
// TCP with TLS, next to what the machine does at best. Usage: transfer_bench [rounds]. The shape is that of Qwen3-0.6B.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "base/log.h"
#include "machine_limits.h"
#include "transfer/transfer_engine.h"

namespace {

using namespace tandem;
using namespace tandem::bench;
using namespace tandem::transfer;

constexpr std::int32_t kNumBlocks = 96;
constexpr std::int32_t kBlockSize = 16;
constexpr std::int32_t kPromptBlocks = 64;
constexpr std::int64_t kPromptTokens = kPromptBlocks * kBlockSize;  // 117 MB
constexpr std::int32_t kLayers = 28;
constexpr auto kLayerTime = std::chrono::milliseconds(20);  // to compute one layer of the prompt: a fast prefiller

template <class T>
T or_exit(Result<T> result, const char* what) {
  if (result) return std::move(*result);
  fmt::print(stderr, "{}: {}\n", what, result.error().to_string());
  std::exit(1);
}

std::unique_ptr<kv::CacheMemory> filled_memory(int value, kv::ElementType element = kv::ElementType::kBf16) {
  kv::Layout layout;
  layout.num_layers = kLayers;
  layout.num_blocks = kNumBlocks;
  layout.block_size = kBlockSize;
  layout.total_kv_heads = layout.num_kv_heads = 8;
  layout.head_dim = 128;
  layout.element = element;
  layout.fingerprint = "bench";
  auto memory = or_exit(kv::CacheMemory::create(layout), "memory");
  std::memset(memory->data(), value, memory->layout().total_bytes());
  return memory;
}

std::vector<kv::BlockId> prompt_blocks(bool scattered) {
  std::vector<kv::BlockId> blocks(kNumBlocks);
  std::iota(blocks.begin(), blocks.end(), 0);
  if (scattered) std::shuffle(blocks.begin(), blocks.end(), std::mt19937(1));
  blocks.resize(kPromptBlocks);
  return blocks;
}

struct Way {
  std::string_view name;
  TransportChoice transport;
  std::shared_ptr<const PeerTls> tls;
};

/// A prefiller and a decoder.
struct Pair {
  Pair(const Way& way, kv::CacheMemory& from, kv::CacheMemory& to, bool verify = true) {
    TransferOptions options;
    options.bind_host = "127.0.0.1";
    options.transport = way.transport;
    options.tls = way.tls;
    options.engine_id = "p";
    options.producer = true;
    p = or_exit(TransferEngine::start(options, from, p_metrics), "prefiller");
    options.engine_id = "d";
    options.producer = false;
    options.consumer = options.receiver = true;
    options.hooks.verify = verify;
    d = or_exit(TransferEngine::start(options, to, d_metrics), "decoder");
  }
  obs::Registry p_metrics;
  obs::Registry d_metrics;
  std::unique_ptr<TransferEngine> p;
  std::unique_ptr<TransferEngine> d;
};

/// What a fetch or reception ends with, and when.
struct End {
  struct Value {
    FetchStats stats;
    double at = 0.0;
  };
  std::shared_ptr<std::promise<Value>> promise = std::make_shared<std::promise<Value>>();

  FetchDone done() const {
    return [promise = promise](FetchId, Result<FetchStats> result) {
      promise->set_value({or_exit(std::move(result), "transfer"), now_seconds()});
    };
  }
  Value wait() const {
    auto future = promise->get_future();
    if (future.wait_for(std::chrono::seconds(60)) == std::future_status::ready) return future.get();
    fmt::print(stderr, "transfer: no answer\n");
    std::exit(1);
  }
};

/// GB/s from the call to the end, handshakes and all.
double bench_fetch(const Way& way, bool scattered, bool verify, int rounds, kv::CacheMemory& from,
                   kv::CacheMemory& to) {
  Pair pair(way, from, to, verify);
  const std::vector<kv::BlockId> blocks = prompt_blocks(scattered);
  double best = 0.0;
  for (int i = 0; i <= rounds; ++i) {
    const Handover handover = pair.p->open_lease(blocks, kPromptTokens, 0);
    const double start = now_seconds();
    const End end;
    pair.d->fetch({handover, blocks, 0, kPromptTokens}, end.done());
    const End::Value value = end.wait();
    // The first one connects, and sums the prefiller's blocks.
    if (i > 0) best = std::max(best, static_cast<double>(value.stats.bytes) / (value.at - start) / 1e9);
  }
  return best;
}

/// A prompt that is computed layer by layer while it is pushed: what is left to wait for when the last layer is there.
void bench_layerwise(const Way& way, int rounds, kv::CacheMemory& from, kv::CacheMemory& to) {
  Pair pair(way, from, to);
  const std::vector<kv::BlockId> blocks = prompt_blocks(true);
  double best = 1e9;
  for (int i = 0; i <= rounds; ++i) {
    const End end;
    const auto [id, delivery] = pair.d->receive({blocks, 0, kPromptTokens, kPromptTokens, 1}, end.done());
    const Handover source = pair.p->open_growing_lease(kPromptTokens, 1);
    pair.p->extend(source.lease, blocks);
    pair.p->offer(delivery, source,
                  [](const Status& told) { or_exit(Result<int>(told.ok() ? Result<int>(0) : told), "offer"); });
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      std::this_thread::sleep_for(kLayerTime);
      pair.p->publish(source.lease, layer, layer + 1, kPromptTokens);
    }
    const double published = now_seconds();
    const End::Value value = end.wait();
    if (i > 0) best = std::min(best, value.at - published);
  }
  fmt::print("{:<4} layerwise: done {:.2f} ms after the last of {} layers was published\n", way.name, best * 1e3,
             kLayers);
}

/// One block of one layer at a time: what a piece costs beside its bytes.
void bench_piece(const Way& way, int rounds, kv::CacheMemory& from, kv::CacheMemory& to) {
  Pair pair(way, from, to);
  std::vector<double> seconds;
  for (int i = 0; i <= rounds * 20; ++i) {
    const End end;
    const auto [id, delivery] = pair.d->receive({{3}, 0, kBlockSize, kBlockSize, 1}, end.done());
    const Handover source = pair.p->open_growing_lease(kBlockSize, 1);
    pair.p->extend(source.lease, {5});
    std::promise<void> told;
    pair.p->offer(delivery, source, [&](const Status&) { told.set_value(); });
    told.get_future().wait();
    pair.p->publish(source.lease, 0, kLayers - 1, kBlockSize);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // all but the last layer are there
    const double published = now_seconds();
    pair.p->publish(source.lease, kLayers - 1, kLayers, kBlockSize);
    const End::Value value = end.wait();
    if (i > 0) seconds.push_back(value.at - published);
  }
  std::sort(seconds.begin(), seconds.end());
  fmt::print("{:<4} one piece of 64 KiB: published to done in {:.0f} us (median), {:.0f} us (best)\n", way.name,
             seconds[seconds.size() / 2] * 1e6, seconds.front() * 1e6);
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 10;
  log::configure(log::Level::kWarning, "");
  const auto from = filled_memory(0x11);
  const auto to = filled_memory(0x22);
  const std::size_t bytes = std::size_t{kPromptBlocks} * kLayers * from->layout().block_bytes();
  const std::span<const std::byte> source(from->data(), bytes);
  const std::span<std::byte> target(to->data(), bytes);
  fmt::print("{} blocks of {} tokens, {:.0f} MB, best of {} rounds\n", kPromptBlocks, kBlockSize,
             static_cast<double>(bytes) / 1e6, rounds);
  const double copies[] = {memcpy_rate(rounds, source, target, 1), memcpy_rate(rounds, source, target, 2)};
  fmt::print("memcpy: {:.2f} GB/s by one thread, {:.2f} GB/s by two\n", copies[0], copies[1]);
  fmt::print("crc32c, 4 KiB pieces, one thread: {:.2f} GB/s; portable: {:.2f} GB/s\n", crc_rate(rounds, source, false),
             crc_rate(2, source.first(8'000'000), true));
  const double plain = plain_tcp_rate(rounds, source, target);
  const std::optional<double> iperf3 = iperf3_rate();
  fmt::print("one TCP stream: {:.2f} GB/s by plain sockets, iperf3 {}\n", plain,
             iperf3 ? fmt::format("{:.2f} GB/s", *iperf3) : "is not installed");
  const auto secret =
      or_exit(PeerTls::make({.secret = "a secret", .certificates = {}, .key = {}, .ca = {}}), "a secret");
  const Way ways[] = {{"shm", TransportChoice::kShm, nullptr},
                      {"tcp", TransportChoice::kTcp, nullptr},
                      {"tls", TransportChoice::kTcp, secret}};
  for (const Way& way : ways) {
    const bool shm = way.transport == TransportChoice::kShm;
    const double limit = shm ? std::max(copies[0], copies[1]) : iperf3.value_or(plain);
    const char* of = shm ? "memcpy" : (iperf3 ? "iperf3" : "plain sockets");
    for (const bool scattered : {false, true}) {
      const double with = bench_fetch(way, scattered, true, rounds, *from, *to);
      fmt::print("{} {:<10} {:6.2f} GB/s with CRC ({:.0f} % of {})", way.name, scattered ? "scattered" : "contiguous",
                 with, with / limit * 100, of);
      if (shm) {
        fmt::print("; there is no way without: the sum is made while the bytes pass\n");
        continue;
      }
      const double without = bench_fetch(way, scattered, false, rounds, *from, *to);
      fmt::print(", {:6.2f} GB/s without ({:.0f} %)\n", without, without / limit * 100);
    }
    bench_layerwise(way, std::min(rounds, 3), *from, *to);
    bench_piece(way, rounds, *from, *to);
  }
  const auto int8 = filled_memory(0x22, kv::ElementType::kInt8);
  fmt::print("shm scattered, bfloat16 into int8: {:.2f} GB/s\n",
             bench_fetch(ways[0], true, true, std::min(rounds, 3), *from, *int8));
  return 0;
}
