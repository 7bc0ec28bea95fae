// SPDX-License-Identifier: Apache-2.0
// What every request of a proxy shares. Owned jointly by the server and the requests in flight; io thread only.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <string>

#include "config/proxy_config.h"
#include "proxy/forwarding.h"
#include "proxy/instance_board.h"
#include "proxy/instance_watch.h"
#include "proxy/metaserver.h"
#include "proxy/proxy_metrics.h"

namespace tandem::proxy {

struct ProxyContext {
  /// `tls`: for https instances; nullptr if there are none.
  ProxyContext(boost::asio::any_io_executor io, config::ProxyConfig options, obs::Registry& registry,
               std::shared_ptr<boost::asio::ssl::context> tls)
      : executor(std::move(io)),
        config(std::move(options)),
        metrics(registry),
        board(executor, config, registry, std::move(tls)),
        watch(executor, config, board),
        metaserver_token(random_secret()) {}

  boost::asio::any_io_executor executor;
  config::ProxyConfig config;
  ProxyMetrics metrics;
  InstanceBoard board;
  InstanceWatch watch;
  OpenRequests open_requests;
  std::uint16_t port = 0;  ///< where the proxy listens
  /// In the metaserver URL that decoders get, if clients need keys: whoever has it may post there.
  std::string metaserver_token;
  int inflight = 0;
  int releases_in_flight = 0;
  bool stopping = false;
};

}  // namespace tandem::proxy
