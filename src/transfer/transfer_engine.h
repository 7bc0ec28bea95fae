// SPDX-License-Identifier: Apache-2.0
// Moves KV blocks between instances. A prefiller opens leases on blocks; a decoder holds a lease by heartbeats, fetches
// the blocks into its own memory and says when it is done. docs/architecture.md, "Leases", has the state table.
//
// Threads: all functions are thread-safe. Callbacks run on the transfer thread: they must only post to a queue.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/peer_tls.h"
#include "base/status.h"
#include "kv/cache_memory.h"
#include "obs/metrics.h"
#include "transfer/delivery.h"
#include "transfer/handover.h"

namespace tandem::transfer {

enum class TransportChoice {
  kAuto,  ///< shared memory if the peer is on this host, else TCP
  kShm,
  kTcp,
};

class EventLoop;
class Transport;

/// Seams for fault tests and benches; left alone in production.
struct TransferHooks {
  /// Wraps the transport that was chosen for a peer (fault_transport.h).
  std::function<std::shared_ptr<Transport>(EventLoop&, std::shared_ptr<Transport>)> wrap_transport;
  bool send_heartbeats = true;  ///< false: a consumer that holds leases but never renews them
  bool verify = true;           ///< false: a consumer that believes what it gets, to see what checksums cost
};

struct TransferOptions {
  std::string engine_id;
  bool producer = false;  ///< listens, opens leases
  bool consumer = false;  ///< fetches
  bool receiver = false;  ///< a consumer that layerwise pushes may be offered to: listens too, and may call receive()
  std::string bind_host = "0.0.0.0";
  std::string advertised_host = "127.0.0.1";  ///< what Handover::host says
  std::uint16_t port = 0;                     ///< kv_port, for all ranks; 0: any free one (tests)
  TransportChoice transport = TransportChoice::kAuto;
  /// How both sides of every TCP connection prove who they are, and encrypt; nullptr: plain. All peers need the same.
  std::shared_ptr<const PeerTls> tls;
  std::chrono::milliseconds lease_term{30'000};  ///< renewed by heartbeats every third of it
  std::chrono::milliseconds connect_timeout{5'000};
  std::chrono::milliseconds fetch_timeout{60'000};  ///< without any progress
  /// How long a reception waits for its prefiller. The decoder's HTTP call to the metaserver usually says sooner that
  /// none will come.
  std::chrono::milliseconds offer_timeout{480'000};
  TransferHooks hooks;
};

enum class LeaseEnd { kDone, kDropped, kExpired, kPeerDied, kRevoked };
std::string_view lease_end_name(LeaseEnd end);

/// What a finished fetch cost.
struct FetchStats {
  std::string_view transport;  ///< "shm", "tcp"
  std::uint64_t bytes = 0;
  std::uint64_t copies = 0;  ///< runs after merging, over all ranks
  // One after the other, these make up the time from the start of a fetch, or the acceptance of an offer, to the end.
  double wait_seconds = 0.0;    ///< until the owner granted the first blocks
  double copy_seconds = 0.0;    ///< until the last bytes were here; what came before was verified meanwhile
  double verify_seconds = 0.0;  ///< until they were verified, and converted or copied to ranks of the same heads
};

struct Fetch {
  Handover source;
  std::vector<kv::BlockId> destination;  ///< destination[i] receives token range of local block first_block + i
  /// First token to fetch, a multiple of the local block size (the local prefix hit), and one past the last.
  std::int64_t first_token = 0;
  std::int64_t end_token = 0;
};
/// Waits for a prefiller's offer and takes the prompt's KV as it is computed (layerwise push).
struct Reception {
  std::vector<kv::BlockId> destination;  ///< as in Fetch
  std::int64_t first_token = 0;
  std::int64_t end_token = 0;
  std::int64_t num_tokens = 0;  ///< of the prompt; prompt_hash is over them. What is offered must agree in both.
  std::uint64_t prompt_hash = 0;
  std::function<void()> offered{};  ///< called once an offer has been accepted, on the transfer thread; must only post
};
using FetchId = std::uint64_t;
/// Called exactly once. On any error, also after cancel(), nothing writes to the destination blocks any more.
using FetchDone = std::function<void(FetchId, Result<FetchStats>)>;

class TransferEngine {
 public:
  /// `memory` must outlive the engine. An error names the port that is in use.
  static Result<std::unique_ptr<TransferEngine>> start(const TransferOptions& options, kv::CacheMemory& memory,
                                                       obs::Registry& metrics);
  virtual ~TransferEngine() = default;

  virtual std::uint64_t incarnation() const = 0;
  virtual std::uint16_t port() const = 0;

  // Producer.
  /// Called exactly once a lease, also for kRevoked; the blocks may then be freed. Set before the first open_lease.
  virtual void on_lease_end(std::function<void(LeaseId, LeaseEnd)> callback) = 0;
  /// Promises `blocks` (already holding KV of num_tokens tokens) for one lease term. The owner must keep a reference to
  /// them until on_lease_end.
  virtual Handover open_lease(std::vector<kv::BlockId> blocks, std::int64_t num_tokens, std::int32_t last_token) = 0;
  /// A lease on a prompt that is still being computed: blocks come by extend(), their KV by publish(). One term begins
  /// now; on_lease_end comes for it as for any other. Blocks given to it must keep a reference until then.
  virtual Handover open_growing_lease(std::int64_t num_tokens, std::uint64_t prompt_hash) = 0;
  /// The next blocks of the prompt, in order.
  virtual void extend(LeaseId lease, std::vector<kv::BlockId> blocks) = 0;
  /// The KV of tokens [0, end_token) in layers [first_layer, end_layer) is computed and stays as it is. Layers advance
  /// one by one and in any interleaving of chunks that keeps end_token from falling within a layer. Also from the
  /// worker's thread.
  virtual void publish(LeaseId lease, std::int32_t first_layer, std::int32_t end_layer, std::int64_t end_token) = 0;
  /// Tells the decoder of `to` to take its KV from this lease. `told` (transfer thread) hears ok once the decoder has
  /// accepted, or why it did not within connect_timeout: unreachable, another incarnation, wait given up, or layouts
  /// that do not fit.
  virtual void offer(const Delivery& to, const Handover& source, std::function<void(Status)> told) = 0;

  /// Ends a lease from the owner's side. on_lease_end is called with kRevoked once no read of it is in flight.
  /// Unknown or ended leases are ignored.
  virtual void revoke(LeaseId lease) = 0;

  // Consumer.
  /// Starts heartbeats for a hand-over: P then keeps the blocks while we live. Counted: each hold() needs one drop() or
  /// one fetch() that ended. Never blocks.
  virtual void hold(const Handover& source) = 0;
  /// "No": the lease is not needed any more (rejected, aborted, or fully cached here).
  virtual void drop(const Handover& source) = 0;
  /// Fetches into the destination blocks, verifies checksums and generations, then releases the lease (its hold;
  /// without a hold() before, it holds by itself). At most kMaxFetches at a time, then resource_exhausted.
  virtual FetchId fetch(Fetch fetch, FetchDone done) = 0;
  /// The layerwise counterpart of fetch(): waits for an offer() that names the returned Delivery (at most
  /// offer_timeout), then holds that lease, moves every piece as it is published, verifies it, and releases the lease
  /// when all of [first_token, end_token) has come in all layers. Ends with an error if the lease ends first, the
  /// prefiller dies, or nothing moves for fetch_timeout.
  virtual std::pair<FetchId, Delivery> receive(Reception reception, FetchDone done) = 0;
  /// Of a fetch or reception. `done` is still called, with kCancelled unless it had finished.
  virtual void cancel(FetchId fetch) = 0;

  /// Ends all fetches (kCancelled) and leases (kRevoked), closes sockets, joins threads. Not from a callback.
  /// Afterwards fetch() calls `done` at once, on the caller's thread; the rest does nothing.
  virtual void stop() = 0;

  static constexpr std::size_t kMaxFetches = 4096;
};

}  // namespace tandem::transfer
