// SPDX-License-Identifier: Apache-2.0
#include "transfer/context.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string_view>

namespace tandem::transfer {
namespace {

constexpr Code kFailureCodes[] = {Code::kInvalidArgument,    Code::kNotFound,          Code::kAlreadyExists,
                                  Code::kFailedPrecondition, Code::kResourceExhausted, Code::kUnavailable,
                                  Code::kDeadlineExceeded,   Code::kCancelled,         Code::kDataLoss,
                                  Code::kUnsupported,        Code::kInternal};
constexpr LeaseEnd kEnds[] = {LeaseEnd::kDone, LeaseEnd::kDropped, LeaseEnd::kExpired, LeaseEnd::kPeerDied,
                              LeaseEnd::kRevoked};

obs::Counter bytes_counter(obs::Registry& registry, const char* transport) {
  return registry.counter("tandem:kv_transfer_bytes_total", "KV bytes fetched and verified.",
                          {{"transport", transport}}, false);
}

template <class A, class B>
void compare(std::string& differences, std::string_view what, const A& peer, const B& ours) {
  if (peer == ours) return;
  fmt::format_to(std::back_inserter(differences), "{}peer's {} is {}, ours is {}", differences.empty() ? "" : "; ",
                 what, peer, ours);
}

}  // namespace

std::string_view lease_end_name(LeaseEnd end) {
  switch (end) {
    case LeaseEnd::kDone:
      return "done";
    case LeaseEnd::kDropped:
      return "dropped";
    case LeaseEnd::kExpired:
      return "expired";
    case LeaseEnd::kPeerDied:
      return "peer_died";
    case LeaseEnd::kRevoked:
      return "revoked";
  }
  TANDEM_ASSERT(false, "unknown lease end");
  return "";
}

TransferMetrics::TransferMetrics(obs::Registry& registry)
    : bytes_shm(bytes_counter(registry, "shm")),
      bytes_tcp(bytes_counter(registry, "tcp")),
      copies(registry.counter("tandem:kv_transfer_copies_total", "Contiguous runs fetched, after merging.", {}, false)),
      ignored_messages(registry.counter("tandem:kv_lease_messages_ignored_total",
                                        "Messages about leases that are unknown or had ended.", {}, false)),
      seconds(registry.histogram("tandem:kv_transfer_seconds", "From the start of a fetch to verified KV.",
                                 {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0},
                                 {}, false)),
      request_bytes(registry.histogram("tandem:kv_transfer_request_bytes", "KV bytes fetched for one request.",
                                       {1e5, 1e6, 4e6, 1.6e7, 6.4e7, 2.56e8, 1e9, 4e9}, {}, false)),
      request_copies(registry.histogram("tandem:kv_transfer_request_copies",
                                        "Contiguous runs fetched for one request, after merging.",
                                        {16, 64, 256, 1024, 4096, 16384, 65536, 262144}, {}, false)),
      leases_open(registry.gauge("tandem:kv_leases_open", "Leases on this instance's blocks.", {}, false)) {
  for (const Code code : kFailureCodes) {
    failures_[code] = registry.counter("tandem:kv_transfer_failures_total", "Fetches that failed.",
                                       {{"reason", std::string(code_name(code))}}, false);
  }
  for (const LeaseEnd end : kEnds) {
    ends_[end] = registry.counter("tandem:kv_lease_ends_total", "Leases that ended.",
                                  {{"reason", std::string(lease_end_name(end))}}, false);
  }
}

void TransferMetrics::count_failure(Code code) { failures_.at(code).add(); }
void TransferMetrics::count_end(LeaseEnd end) { ends_.at(end).add(); }

Status check_compatible(const wire::Identity& ours, const wire::Identity& peer) {
  std::string differences;
  const kv::Layout& a = peer.ranks.front();
  const kv::Layout& b = ours.ranks.front();
  compare(differences, "model fingerprint", a.fingerprint, b.fingerprint);
  compare(differences, "num_layers", a.num_layers, b.num_layers);
  compare(differences, "total_kv_heads", a.total_kv_heads, b.total_kv_heads);
  compare(differences, "head_dim", a.head_dim, b.head_dim);
  if (differences.empty()) return {};
  return Status(Code::kFailedPrecondition,
                fmt::format("KV layouts of '{}' and '{}' do not fit: {}; start both with the same model",
                            peer.engine_id, ours.engine_id, differences),
                Scope::kPeer);
}

std::uint64_t random_id() {
  std::uint64_t id = 0;
  while (id == 0) TANDEM_ASSERT(getrandom(&id, sizeof id, 0) == sizeof id, "the kernel gives no random numbers");
  return id;
}

std::uint64_t new_incarnation() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto ms = static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(now).count());
  return (ms << 20) | (random_id() & 0xfffffU);
}

std::string kernel_boot_id() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

}  // namespace tandem::transfer
