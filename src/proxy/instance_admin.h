// SPDX-License-Identifier: Apache-2.0
// Instances that come and go at run time, as with vLLM-Ascend's proxy (pd_protocol.md 9.7):
// POST /instances/add and /instances/remove, body {"type": "prefill"|"decode", "instances": "host:port" |
// ["host:port"]}. An added instance is asked for /v1/models until it answers (max_waiting_retries times,
// waiting_retry_interval apart) and takes part from then on, unless it was removed meanwhile. A removed one gets no new
// requests; those it has go on.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "net/http_client.h"
#include "net/http_server.h"
#include "proxy/proxy_context.h"

namespace tandem::proxy {

struct InstanceChange {
  Role role = Role::kPrefill;
  std::vector<net::Endpoint> endpoints;

  /// The error names the member.
  static Result<InstanceChange> parse(std::string_view body);
};

void add_instance_admin(net::HttpServer& server, const std::shared_ptr<ProxyContext>& context);

}  // namespace tandem::proxy
