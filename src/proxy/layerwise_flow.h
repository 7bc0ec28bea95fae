// SPDX-License-Identifier: Apache-2.0
// One round in layerwise mode (pd_protocol.md 7.1): the decoder is asked first and told where the metaserver is; it
// posts there what it has room for (metaserver.h); a prefiller computes the prompt and pushes its KV layer by layer
// (deliveries.h); the decoder's answer goes to the client. Decides what is tried again and what is not:
//
//   decoder unreachable, broken, 429, 5xx
//     before the first byte    its prefills are aborted, then all again with a new id, up to max_retries; the same
//                              decoder only if it was unreachable or overloaded (429, 503)
//     afterwards               a stream: the same, max_stream_resumes times, and the client gets what it has not got
//                              yet (stream_trail.h); else the broken end is made visible
//   decoder 4xx                passed on
//   no prefiller could do it   the decoder learns it by status 502. One of ours may then compute the prompt itself
//                              (kv_load_failure_policy) or ends; others are cut off. The client gets the reasons
//   prefiller 4xx              passed on; the decoder is cut off
//   decoder never posts        its answer is awaited until its timeout (a cached prompt needs no prefill)
//   client leaves              the connections to the decoder and to the prefillers are closed at once
#pragma once

#include <memory>

#include "proxy/completion.h"

namespace tandem::proxy {

class LayerwiseFlow {
 public:
  LayerwiseFlow(std::shared_ptr<Completion> completion, Tried& tried_decoders)
      : completion_(std::move(completion)), tried_decoders_(tried_decoders) {}

  /// kAgain: another decoder may be tried.
  net::Task<Next> round();

 private:
  net::Task<std::string> metaserver_url(std::shared_ptr<Instance> decoder);
  /// What a post of this attempt will be found by: the parent id as the decoder will write it. Where the client's id
  /// cannot be that (two requests have it at once, or it may not come back as it went), a name that is put into `url`,
  /// and for a foreign decoder, which needs an id of its own for each request, a fresh id.
  std::string name_attempt(const Instance& decoder, std::string& url);

  std::shared_ptr<Completion> completion_;
  Tried& tried_decoders_;
};

}  // namespace tandem::proxy
