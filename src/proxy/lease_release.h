// SPDX-License-Identifier: Apache-2.0
// A prefiller's promise to keep a prompt's KV until a decoder took it. Whoever holds the PrefillLease when it becomes
// clear that no decoder will must say so to the prefiller, or its memory stays bound until the lease's term ends.
#pragma once

#include <memory>
#include <string>

#include "net/http_server.h"
#include "proxy/proxy_context.h"

namespace tandem::proxy {

class PrefillLease {
 public:
  PrefillLease() {}
  /// `params`: raw JSON of kv_transfer_params; empty if the answer that brings them was not awaited: the prefiller then
  /// knows by X-Request-Id what it handed over. `headers`: for the release request (authorisation, request id).
  PrefillLease(std::shared_ptr<ProxyContext> context, std::shared_ptr<Instance> prefiller, std::string params,
               net::Headers headers);
  PrefillLease(PrefillLease&& other) noexcept = default;
  PrefillLease& operator=(PrefillLease&& other) noexcept;
  ~PrefillLease() { release(); }

  /// A decoder has the KV: nothing is to be released any more.
  void taken() { prefiller_.reset(); }
  /// Tells the prefiller, in the background: POST /tandem/release {"kv_transfer_params": ...} (or {}), a few short
  /// tries. Instances that do not know the endpoint (404, 405, 501) are left to their own timeouts.
  void release();

 private:
  std::shared_ptr<ProxyContext> context_;
  std::shared_ptr<Instance> prefiller_;  ///< null: nothing held
  std::string params_;
  net::Headers headers_;
};

}  // namespace tandem::proxy
