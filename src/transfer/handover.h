// SPDX-License-Identifier: Apache-2.0
// What a prefiller tells a decoder about a prompt's KV, carried through the proxy as `kv_transfer_params` (L1 of the
// protocol: pd_protocol.md 4.3, plus our own member "tandem", which foreign proxies pass on untouched).
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "kv/layout.h"

namespace tandem::transfer {

/// Names a lease across restarts: ids are random 64-bit numbers, the incarnation differs at every start of an instance.
struct LeaseId {
  std::uint64_t incarnation = 0;
  std::uint64_t id = 0;
  friend bool operator==(const LeaseId&, const LeaseId&) = default;
};

struct Handover {
  std::string engine_id;            ///< remote_engine_id
  std::string host;                 ///< remote_host
  std::uint16_t port = 0;           ///< remote_port: base port of that engine, which serves the KV of all its ranks
  std::vector<kv::BlockId> blocks;  ///< remote_block_ids: all blocks of the prompt in order
  std::int32_t last_token = -1;     ///< last_token_id; informational
  LeaseId lease;                    ///< tandem.lease
  std::int64_t num_tokens = 0;      ///< tandem.num_tokens: tokens whose KV the blocks hold
  /// tandem.prompt_hash: kv::token_hash() of those tokens. A decoder compares it with its own prompt, so that the KV of
  /// another prompt of the same length is an error and not a wrong answer.
  std::uint64_t prompt_hash = 0;
  std::int32_t block_size = 0;  ///< tandem.block_size
  std::int32_t tp_size = 1;     ///< tandem.tp_size
  friend bool operator==(const Handover&, const Handover&) = default;
};

boost::json::object to_json(const Handover& handover);
/// nullopt if the object is not a remote-prefill hand-over (flags false, or a foreign prefiller's without our member):
/// the caller then prefills locally. An error if our member is there but malformed.
Result<std::optional<Handover>> handover_from_json(const boost::json::object& params);

}  // namespace tandem::transfer
