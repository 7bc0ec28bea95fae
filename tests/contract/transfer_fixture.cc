// SPDX-License-Identifier: Apache-2.0
#include "contract/transfer_fixture.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <sstream>
#include <thread>

namespace tandem::transfer::test {

kv::Layout small_layout() {
  kv::Layout layout;
  layout.num_layers = 3;
  layout.num_blocks = 64;
  layout.block_size = 8;
  layout.total_kv_heads = 2;
  layout.num_kv_heads = 2;
  layout.head_dim = 16;
  layout.fingerprint = "test-model";
  return layout;
}

void Outcome::set(FetchId, Result<FetchStats> result) {
  const std::lock_guard lock(mutex_);
  ++times_;
  EXPECT_EQ(times_, 1) << "done must be called exactly once";
  result_ = std::move(result);
  changed_.notify_all();
}

const Result<FetchStats>& Outcome::wait(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, patience, [this] { return result_.has_value(); })) {
    ADD_FAILURE() << "the fetch did not end";
    result_ = Result<FetchStats>(Status(Code::kInternal, "the fetch did not end"));
  }
  return *result_;
}

bool Outcome::finished() {
  const std::lock_guard lock(mutex_);
  return result_.has_value();
}

Node::Node(TransferOptions wanted, std::vector<kv::Layout> ranks) : options(std::move(wanted)) {
  auto made = kv::CacheMemory::create(std::move(ranks));
  EXPECT_TRUE(made) << made.error().to_string();
  memory = std::move(*made);
  void* mapped = mmap(nullptr, memory->mapped_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, memory->fd(), 0);
  EXPECT_NE(mapped, MAP_FAILED);
  alias = static_cast<std::byte*>(mapped);
  options.hooks.wrap_transport = [script = faults](EventLoop& loop, std::shared_ptr<Transport> inner) {
    return make_fault_transport(loop, std::move(inner), script);
  };
  start();
}

Node::~Node() {
  engine.reset();
  munmap(alias, memory->mapped_bytes());
}

void Node::start() {
  auto started = TransferEngine::start(options, *memory, registry);
  ASSERT_TRUE(started) << started.error().to_string();
  engine = std::move(*started);
  options.port = engine->port();  // a restart takes the same one
  if (!options.producer) return;
  engine->on_lease_end([this](LeaseId lease, LeaseEnd end) {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(ends_.contains(lease.id)) << "a lease end must be reported once";
    ends_[lease.id] = end;
    ++num_ends_;
    changed_.notify_all();
  });
}

void Node::restart() {
  engine.reset();
  start();
}

void Node::fill(std::uint32_t seed) {
  const std::size_t bytes = memory->layout().total_bytes();
  std::uint32_t state = seed * 2654435761U + 1;
  for (std::size_t i = 0; i + 4 <= bytes; i += 4) {
    state = state * 1664525U + 1013904223U;
    std::memcpy(alias + i, &state, 4);
  }
}

Handover Node::lease(std::vector<kv::BlockId> blocks, std::int64_t num_tokens) {
  return engine->open_lease(std::move(blocks), num_tokens, 7);
}

std::shared_ptr<Outcome> Node::fetch(const Handover& source, std::vector<kv::BlockId> destination, std::int64_t first,
                                     std::int64_t end) {
  auto outcome = std::make_shared<Outcome>();
  last_fetch = engine->fetch({source, std::move(destination), first, end},
                             [outcome](FetchId id, Result<FetchStats> result) { outcome->set(id, std::move(result)); });
  return outcome;
}

std::optional<LeaseEnd> Node::lease_end(LeaseId lease, std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, patience, [&] { return ends_.contains(lease.id); })) return std::nullopt;
  return ends_.at(lease.id);
}

int Node::num_lease_ends() {
  const std::lock_guard lock(mutex_);
  return num_ends_;
}

double Node::metric(const std::string& series) const {
  std::istringstream lines(registry.expose());
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(series + " ", 0) == 0) return std::stod(line.substr(series.size() + 1));
  }
  ADD_FAILURE() << "no series " << series << " in\n" << registry.expose();
  return -1;
}

::testing::AssertionResult same_tokens(const Node& p, const std::vector<kv::BlockId>& from, const Node& d,
                                       const std::vector<kv::BlockId>& to, std::int64_t first, std::int64_t end) {
  const kv::Layout& layout = p.memory->layout();
  const std::int64_t base = first / layout.block_size;
  for (std::int32_t layer = 0; layer < layout.num_layers; ++layer) {
    for (int k_or_v = 0; k_or_v < 2; ++k_or_v) {
      for (std::int32_t head = 0; head < layout.num_kv_heads; ++head) {
        for (std::int64_t token = first; token < end; ++token) {
          const auto place = static_cast<std::int32_t>(token % layout.block_size);
          const auto index = static_cast<std::size_t>(token / layout.block_size);
          const std::size_t a = layout.offset(layer, from[index], k_or_v, head, place);
          const std::size_t b = layout.offset(layer, to[index - static_cast<std::size_t>(base)], k_or_v, head, place);
          if (std::memcmp(p.alias + a, d.alias + b, layout.token_bytes()) != 0) {
            return ::testing::AssertionFailure() << "layer " << layer << (k_or_v == 0 ? " K" : " V") << " head " << head
                                                 << " token " << token << " differs";
          }
        }
      }
    }
  }
  return ::testing::AssertionSuccess();
}

std::vector<std::byte> block_bytes(const Node& node, const std::vector<kv::BlockId>& blocks) {
  const kv::Layout& layout = node.memory->layout();
  std::vector<std::byte> bytes;
  for (std::int32_t layer = 0; layer < layout.num_layers; ++layer) {
    for (const kv::BlockId block : blocks) {
      const std::byte* start = node.alias + layout.offset(layer, block, 0, 0, 0);
      bytes.insert(bytes.end(), start, start + layout.block_bytes());
    }
  }
  return bytes;
}

bool untouched(const Node& node, const std::vector<kv::BlockId>& blocks) {
  const std::vector<std::byte> bytes = block_bytes(node, blocks);
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

bool eventually(const std::function<bool()>& condition, std::chrono::milliseconds patience) {
  const auto until = std::chrono::steady_clock::now() + patience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(2ms);
  }
  return true;
}

std::string_view way_name(Way way) { return way == Way::kShm ? "shm" : way == Way::kTcp ? "tcp" : "tls"; }

std::shared_ptr<const PeerTls> tls_of(Way way) { return way == Way::kTls ? by_secret("a test's") : nullptr; }

std::shared_ptr<const PeerTls> by_secret(const std::string& secret) {
  return *PeerTls::make({.secret = secret, .certificates = {}, .key = {}, .ca = {}});
}

TransferOptions prefiller_options(TransportChoice transport) {
  TransferOptions options;
  options.engine_id = "prefiller-0";
  options.producer = true;
  options.bind_host = "127.0.0.1";
  options.transport = transport == TransportChoice::kTcp ? TransportChoice::kTcp : TransportChoice::kAuto;
  return options;
}

TransferOptions decoder_options(TransportChoice transport) {
  TransferOptions options;
  options.engine_id = "decoder-0";
  options.consumer = true;
  options.transport = transport;
  return options;
}

}  // namespace tandem::transfer::test
