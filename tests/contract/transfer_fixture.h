// SPDX-License-Identifier: Apache-2.0
// A prefiller and a decoder in one process, each with its own KV memory and transfer engine, and what tests ask of
// them.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kv/cache_memory.h"
#include "obs/metrics.h"
#include "transfer/fault_transport.h"
#include "transfer/transfer_engine.h"

namespace tandem::transfer::test {

using namespace std::chrono_literals;

/// Every wait of the tests ends by this.
inline constexpr auto kPatience = 20s;

kv::Layout small_layout();

/// The end of one fetch, waited for by the test.
class Outcome {
 public:
  void set(FetchId id, Result<FetchStats> result);
  /// Fails the test if it does not come.
  const Result<FetchStats>& wait(std::chrono::milliseconds patience = kPatience);
  bool finished();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Result<FetchStats>> result_;
  int times_ = 0;
};

/// One instance.
class Node {
 public:
  Node(TransferOptions wanted, std::vector<kv::Layout> ranks);
  Node(TransferOptions wanted, const kv::Layout& layout) : Node(std::move(wanted), std::vector{layout}) {}
  ~Node();

  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  /// Fills all blocks with bytes that depend on `seed` and the place.
  void fill(std::uint32_t seed);
  Handover lease(std::vector<kv::BlockId> blocks, std::int64_t num_tokens);
  std::shared_ptr<Outcome> fetch(const Handover& source, std::vector<kv::BlockId> destination, std::int64_t first,
                                 std::int64_t end);
  /// How the lease ended, waiting for it; nullopt if it did not within the patience.
  std::optional<LeaseEnd> lease_end(LeaseId lease, std::chrono::milliseconds patience = kPatience);
  /// Times that any lease end was reported.
  int num_lease_ends();
  double metric(const std::string& series) const;
  /// Ends the engine as a crash would look to peers (its sockets close), and starts it again on the same port.
  void restart();
  void kill() { engine.reset(); }

  TransferOptions options;
  std::unique_ptr<kv::CacheMemory> memory;
  /// The same memory, mapped a second time: what tests read and write while transfers are under way, as another process
  /// would (and as ThreadSanitizer should see it).
  std::byte* alias = nullptr;
  obs::Registry registry;
  std::shared_ptr<FaultScript> faults = std::make_shared<FaultScript>();
  std::unique_ptr<TransferEngine> engine;
  FetchId last_fetch = 0;

 private:
  void start();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, LeaseEnd> ends_;  ///< guarded by mutex_
  int num_ends_ = 0;                        ///< guarded by mutex_
};

/// Whether token `token` of the prompt is in both memories the same, for all layers, K, V and heads.
::testing::AssertionResult same_tokens(const Node& p, const std::vector<kv::BlockId>& from, const Node& d,
                                       const std::vector<kv::BlockId>& to, std::int64_t first, std::int64_t end);
/// All bytes of the blocks are zero.
bool untouched(const Node& node, const std::vector<kv::BlockId>& blocks);
std::vector<std::byte> block_bytes(const Node& node, const std::vector<kv::BlockId>& blocks);

/// Polls a condition until it holds; fails the test after the patience.
bool eventually(const std::function<bool()>& condition, std::chrono::milliseconds patience = kPatience);

/// How bytes move in a suite over all transports: TCP with TLS counts as one of its own.
enum class Way { kShm, kTcp, kTls };
inline TransportChoice transport_of(Way way) {
  return way == Way::kShm ? TransportChoice::kShm : TransportChoice::kTcp;
}
std::string_view way_name(Way way);
/// What all sides prove; nullptr but for kTls.
std::shared_ptr<const PeerTls> tls_of(Way way);
std::shared_ptr<const PeerTls> by_secret(const std::string& secret);

TransferOptions prefiller_options(TransportChoice transport);
TransferOptions decoder_options(TransportChoice transport);

}  // namespace tandem::transfer::test
