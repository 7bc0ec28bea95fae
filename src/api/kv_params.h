// SPDX-License-Identifier: Apache-2.0
// `kv_transfer_params` of requests and answers (pd_protocol.md 2.2, 4.2 to 4.4). A prefiller that got several prompts
// puts the hand-overs of all but the first into the first one's member "tandem_prompts"; foreign proxies pass it on.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "api/fields.h"
#include "transfer/handover.h"

namespace tandem::api {

struct KvParams {
  bool remote_decode = false;  ///< P: keep the KV for a decoder
  /// D: where each prompt's KV is; empty if there is no hand-over at all.
  std::vector<std::optional<transfer::Handover>> remote_prefill;
};

/// Absent, null, {} and objects without a true do_remote flag are a plain local request. An object that is ours but
/// malformed is refused.
Outcome<KvParams> read_kv_params(const Fields& body);

/// The member of an answer: "null" if the first prompt has no hand-over.
std::string kv_params_json(std::span<const std::optional<transfer::Handover>> handovers);

}  // namespace tandem::api
