// SPDX-License-Identifier: Apache-2.0
// One coroutine for each endpoint. service.cc makes routes of them.
#pragma once

#include <memory>

#include "api/context.h"
#include "net/http_server.h"

namespace tandem::api {

using ContextPtr = std::shared_ptr<Context>;
using ExchangePtr = std::shared_ptr<net::Exchange>;

enum class GenerationKind {
  kCompletion,  ///< /v1/completions
  kChat,        ///< /v1/chat/completions
  kByShape,     ///< /invocations: messages make a chat, a prompt makes a completion
};
net::Task<void> handle_generation(ContextPtr context, ExchangePtr exchange, GenerationKind kind);

net::Task<void> handle_models(ContextPtr context, ExchangePtr exchange);
net::Task<void> handle_tokenize(ContextPtr context, ExchangePtr exchange);
net::Task<void> handle_detokenize(ContextPtr context, ExchangePtr exchange);
net::Task<void> handle_health(ContextPtr context, ExchangePtr exchange);
net::Task<void> handle_version(ContextPtr context, ExchangePtr exchange);
net::Task<void> handle_load(ContextPtr context, ExchangePtr exchange);
net::Task<void> handle_metrics(ContextPtr context, ExchangePtr exchange);
net::Task<void> handle_reset_prefix_cache(ContextPtr context, ExchangePtr exchange);
/// POST /tandem/release {"kv_transfer_params":{...}}: the proxy gives a hand-over up that no decoder will fetch.
net::Task<void> handle_release(ContextPtr context, ExchangePtr exchange);

/// GET /tandem/info: which connector this instance runs, for proxies that pair instances.
net::Task<void> handle_info(ContextPtr context, ExchangePtr exchange);

// What the server tells of itself (server_info_handlers.cc).
net::Task<void> handle_server_info(ContextPtr context, ExchangePtr exchange);
net::Task<void> handle_is_sleeping(ContextPtr context, ExchangePtr exchange);
net::Task<void> handle_is_scaling(ContextPtr context, ExchangePtr exchange);
net::Task<void> handle_tokenizer_info(ContextPtr context, ExchangePtr exchange);
net::Task<void> handle_openapi(ContextPtr context, ExchangePtr exchange);
net::Task<void> handle_docs(ContextPtr context, ExchangePtr exchange);

}  // namespace tandem::api
