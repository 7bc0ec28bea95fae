// SPDX-License-Identifier: Apache-2.0
// Layerwise push: where a decoder waits for the KV of one prompt. Travels from the decoder through the proxy's
// metaserver to the prefiller that the proxy picks (L1 of the protocol: pd_protocol.md 7.2, plus our member "tandem").
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "kv/layout.h"

namespace tandem::transfer {

struct Delivery {
  std::string engine_id;            ///< remote_engine_id, the decoder's
  std::string host;                 ///< remote_host
  std::uint16_t port = 0;           ///< remote_port: the decoder's base port
  std::vector<kv::BlockId> blocks;  ///< remote_block_ids; informational: the decoder places what it gets
  std::uint64_t incarnation = 0;    ///< tandem.incarnation, the decoder's
  std::uint64_t reception = 0;      ///< tandem.reception: names the wait at the decoder; random, never reused
  std::int64_t first_token = 0;     ///< tandem.first_token: KV before it is there already (the decoder's prefix hit)
  std::int64_t num_tokens = 0;      ///< tandem.num_tokens: tokens whose KV is wanted, [first_token, num_tokens)
  std::uint64_t prompt_hash = 0;    ///< tandem.prompt_hash: kv::token_hash() of the first num_tokens ids
};

/// The members of a metaserver request's object that describe where the KV goes; the caller adds request_id and flags.
boost::json::object to_json(const Delivery& delivery);
/// nullopt if the object does not ask for a push (do_remote_decode false), or is a foreign decoder's without our
/// member. An error if our member is there but malformed.
Result<std::optional<Delivery>> delivery_from_json(const boost::json::object& params);

}  // namespace tandem::transfer
