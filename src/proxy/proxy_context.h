// SPDX-License-Identifier: Apache-2.0
// What every request of a proxy shares. Owned jointly by the server and the requests in flight; io thread only.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <string>

#include "config/proxy_config.h"
#include "proxy/instance_board.h"
#include "proxy/instance_watch.h"
#include "proxy/metaserver.h"
#include "proxy/proxy_metrics.h"

namespace tandem::proxy {

struct ProxyContext {
  ProxyContext(boost::asio::any_io_executor io, config::ProxyConfig options, obs::Registry& registry, std::string key)
      : executor(std::move(io)),
        config(std::move(options)),
        metrics(registry),
        board(executor, config, registry),
        watch(executor, config, board),
        api_key(std::move(key)) {}

  boost::asio::any_io_executor executor;
  config::ProxyConfig config;
  ProxyMetrics metrics;
  InstanceBoard board;
  InstanceWatch watch;
  OpenRequests open_requests;
  std::uint16_t port = 0;  ///< where the proxy listens
  std::string api_key;     ///< for backends, when a client sends no Authorization of its own; may be empty
  int inflight = 0;
  int releases_in_flight = 0;
  bool stopping = false;
};

}  // namespace tandem::proxy
