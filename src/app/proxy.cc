// SPDX-License-Identifier: Apache-2.0
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <chrono>
#include <csignal>

#include "app/commands.h"
#include "base/log.h"
#include "net/tls.h"
#include "obs/metrics.h"
#include "obs/process_metrics.h"
#include "proxy/proxy_server.h"

namespace tandem::app {
Result<void> run_proxy(const config::ProxyConfig& config) {
  boost::asio::io_context io(1);
  boost::asio::signal_set signals(io, SIGINT, SIGTERM);
  obs::Registry registry;
  obs::add_process_metrics(registry);
  TANDEM_ASSIGN(const auto instance_tls,
                net::make_tls_client_context(
                    {config.instance_tls.ca_certs, config.instance_tls.certfile, config.instance_tls.keyfile}));
  proxy::ProxyServer server(config, registry, instance_tls);
  TANDEM_ASSIGN(const std::uint16_t port, server.start());
  log::info("Starting Tandem proxy on {}://{}:{}", config.tls.on() ? "https" : "http", config.host, port);
  log::info("Application startup complete.");
  signals.async_wait([](const boost::system::error_code&, int) {});
  io.run();
  signals.clear();  // who asks twice does not want to wait: the next signal ends the process
  log::info("stopping; running requests have {} s to finish, a second signal ends them",
            std::chrono::duration_cast<std::chrono::seconds>(config.shutdown_timeout).count());
  server.stop(config.shutdown_timeout);
  return {};
}

}  // namespace tandem::app
