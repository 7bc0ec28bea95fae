// SPDX-License-Identifier: Apache-2.0
// `kv_transfer_params` of requests and answers (pd_protocol.md 2.2, 4.2 to 4.4, 7.2). Pull: a prefiller that got
// several prompts puts the hand-overs of all but the first into the first one's member "tandem_prompts"; foreign
// proxies pass it on. Push: a decoder's message is about one prompt, which its request_id names ("cmpl-...-<index>").
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "api/fields.h"
#include "net/url.h"
#include "transfer/delivery.h"
#include "transfer/handover.h"

namespace tandem::api {

struct Context;

struct KvParams {
  bool remote_decode = false;  ///< P: keep the KV for a decoder
  /// D: where each prompt's KV is; empty if there is no hand-over at all.
  std::vector<std::optional<transfer::Handover>> remote_prefill;
  /// P: where each prompt's KV is to be pushed; may be shorter than the prompts, and empty if nothing is.
  std::vector<std::optional<transfer::Delivery>> push_to;
  std::optional<net::HttpUrl> metaserver;  ///< D: whom to tell where the KV is wanted
};

/// Absent, null, {} and objects without a true do_remote flag are a plain local request. An object that is ours but
/// malformed is refused, and so is a decoder's that is not ours: nothing could be pushed there.
Outcome<KvParams> read_kv_params(const Fields& body);

/// On a prefiller that `tandem proxy` asks for one token: the members of kv_transfer_params.tandem_client, which are
/// what the client asked for, take the place of the proxy's in `body`. What is wrong with them is so refused before
/// anything is computed. False if there is nothing of that.
bool restore_client_limits(const Context& context, boost::json::object& body);

/// Refuses partners that this instance may not have: a metaserver at a host that the operator does not allow, an engine
/// of the same name, one that is not in the rank table. Only for instances with a connector.
Outcome<void> check_partners(const Context& context, const KvParams& kv);

/// The member of an answer: "null" if the first prompt has no hand-over.
std::string kv_params_json(std::span<const std::optional<transfer::Handover>> handovers);

}  // namespace tandem::api
