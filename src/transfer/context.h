// SPDX-License-Identifier: Apache-2.0
// What the parts of one transfer engine share: options, memory, identity, metrics, and small helpers of the protocol.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/status.h"
#include "kv/cache_memory.h"
#include "obs/metrics.h"
#include "transfer/event_loop.h"
#include "transfer/shards.h"
#include "transfer/transfer_engine.h"
#include "transfer/wire.h"
#include "transfer/work_pool.h"

namespace tandem::transfer {

/// Series of a transfer engine; all exist with value 0 from the start.
struct TransferMetrics {
  explicit TransferMetrics(obs::Registry& registry);

  void count_failure(Code code);
  void count_end(LeaseEnd end);

  obs::Counter bytes_shm;
  obs::Counter bytes_tcp;
  obs::Counter copies;
  obs::Counter ignored_messages;
  obs::Histogram seconds;
  obs::Histogram request_bytes;
  obs::Histogram request_copies;
  obs::Gauge leases_open;

 private:
  std::map<Code, obs::Counter> failures_;
  std::map<LeaseEnd, obs::Counter> ends_;
};

struct Context {
  TransferOptions options;
  kv::CacheMemory& memory;
  Shards shards;  ///< of memory
  wire::Identity identity;
  TransferMetrics& metrics;
  EventLoop& loop;
  WorkPool& pool;      ///< copies and checksums
  WorkPool& blocking;  ///< name resolution and the shared-memory handshake: bounded, but not instant
};

/// ok, or every difference that forbids exchange, naming both values. Ranks, block sizes and element types may differ.
Status check_compatible(const wire::Identity& ours, const wire::Identity& peer);

std::uint64_t random_id();        ///< never 0
std::uint64_t new_incarnation();  ///< grows from start to start, and differs even between starts in one millisecond
std::string kernel_boot_id();     ///< empty if unknown

}  // namespace tandem::transfer
