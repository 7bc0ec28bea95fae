// SPDX-License-Identifier: Apache-2.0
// One round in pull mode (pd_protocol.md 4.1): a prefiller computes the prompt, its kv_transfer_params go to a decoder,
// the decoder's answer goes to the client. Decides what is tried again and what is not:
//
//   prefiller broken, 5xx                 another prefiller, up to max_retries; never the same one again
//   prefiller unreachable, 429, 503       another prefiller, up to max_retries; the same one if there is no other
//   prefiller 4xx                         passed on; no backend is asked again
//   decoder fails in one of these ways
//     before the first byte               lease released, then all again with a new prefill, up to max_retries
//     afterwards                          a stream: the same, max_stream_resumes times, and the client gets what it has
//                                         not got yet (stream_trail.h); else the broken end is made visible
//   decoder 4xx                           passed on; lease released
//   client leaves                         the backend's connection is closed at once; lease released
#pragma once

#include <memory>
#include <string>

#include "proxy/completion.h"
#include "proxy/lease_release.h"

namespace tandem::proxy {

class PullFlow {
 public:
  PullFlow(std::shared_ptr<Completion> completion, Tried& tried_decoders)
      : completion_(std::move(completion)), tried_decoders_(tried_decoders) {}

  /// Everything taken (scores, lease) is given back when it ends. kAgain: another decoder may be tried.
  net::Task<Next> round();

 private:
  net::Task<Next> prefill();
  net::Task<Next> ask_prefiller(std::shared_ptr<Instance> prefiller);
  net::Task<Next> decode();

  std::shared_ptr<Completion> completion_;
  Tried& tried_decoders_;
  LoadShare share_;
  PrefillLease lease_;
  std::string kv_params_;  ///< raw JSON from the prefiller; empty: none
  StageTime prefill_time_;
};

}  // namespace tandem::proxy
