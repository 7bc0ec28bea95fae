// SPDX-License-Identifier: Apache-2.0
#include "proxy/proxy_server.h"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/use_future.hpp>
#include <future>
#include <thread>

#include "base/log.h"
#include "net/access_log.h"
#include "net/bearer.h"
#include "net/http_server.h"
#include "net/tls.h"
#include "proxy/completion.h"
#include "proxy/endpoints.h"
#include "proxy/forwarding.h"
#include "proxy/instance_admin.h"

namespace tandem::proxy {
namespace {

namespace asio = boost::asio;

/// The metaserver of a request in flight is for decoders, which have no key but the URL that they were given.
bool may_enter(const ProxyContext& context, const net::HttpRequest& request) {
  static constexpr std::string_view kLocked[] = {"/instances/add", "/instances/remove", "/reset_prefix_cache",
                                                 "/invocations"};
  const bool locked = request.path.starts_with("/v1") ||
                      std::find(std::begin(kLocked), std::end(kLocked), request.path) != std::end(kLocked);
  if (!locked || request.method == "OPTIONS" || net::has_bearer(request, context.config.api_keys)) return true;
  return request.path == "/v1/metaserver" &&
         net::equal_in_constant_time(request.query.substr(0, request.query.find('&')),
                                     "key=" + context.metaserver_token);
}

net::Task<void> complete(std::shared_ptr<ProxyContext> context, std::shared_ptr<net::Exchange> exchange) {
  auto completion = std::make_shared<Completion>(std::move(context), std::move(exchange));
  co_await completion->run();
}

bool is_loopback(std::string_view host) {
  return host == "localhost" || host.starts_with("127.") || host == "::1" || host == "[::1]";
}

/// Decoders on other machines cannot post to an address that means themselves.
void warn_of_local_address(const config::ProxyConfig& config) {
  if (config.connector == config::ProxyConnector::kPull || !is_loopback(config.host) || !config.metaserver_url.empty())
    return;
  for (const auto& decoder : config.decoders) {
    if (is_loopback(decoder.host)) continue;
    log::warning(
        "decoder {}: if it is on another machine and its connector is layerwise, it cannot reach the "
        "metaserver at --host {}; give an address of this machine, or --metaserver-url",
        decoder.host, config.host);
  }
}

net::Task<void> wait_while(std::shared_ptr<ProxyContext> context, std::chrono::milliseconds limit,
                           bool (*busy)(const ProxyContext&)) {
  constexpr std::chrono::milliseconds kLook{5};
  asio::steady_timer timer(context->executor);
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (busy(*context) && std::chrono::steady_clock::now() < deadline) {
    timer.expires_after(kLook);
    co_await timer.async_wait(asio::use_awaitable);
  }
}

bool requests_run(const ProxyContext& context) { return context.inflight > 0; }
/// A request that was ended still has to tell its instances.
bool words_remain(const ProxyContext& context) {
  return requests_run(context) || context.releases_in_flight > 0 || context.watch.active();
}

/// From here on the proxy is not ready and takes no request, but it still listens while those that it has may finish:
/// who asks is told so, and decoders can post where their KV shall go. Then it ends what is left, which tells its
/// clients, and gives it a moment to close its connections and to release its leases.
net::Task<void> shut_down(std::shared_ptr<ProxyContext> context, net::HttpServer* server,
                          std::chrono::milliseconds drain) {
  constexpr std::chrono::seconds kLastWords{4};
  constexpr std::chrono::milliseconds kLastBytes{100};
  context->stopping = true;
  co_await wait_while(context, drain, requests_run);
  context->end_all.cancel();
  co_await wait_while(context, kLastBytes, requests_run);
  context->watch.stop();
  co_await server->stop(kLastBytes);
  co_await wait_while(context, kLastWords, words_remain);
}

}  // namespace

struct ProxyServer::Impl {
  Impl(config::ProxyConfig options, obs::Registry& registry, std::shared_ptr<asio::ssl::context> tls)
      : context(std::make_shared<ProxyContext>(io.get_executor(), std::move(options), registry, std::move(tls))),
        work(asio::make_work_guard(io)) {}

  asio::io_context io{1};
  std::shared_ptr<ProxyContext> context;
  asio::executor_work_guard<asio::io_context::executor_type> work;
  std::unique_ptr<net::HttpServer> server;
  std::thread thread;
};

ProxyServer::ProxyServer(config::ProxyConfig config, obs::Registry& registry,
                         std::shared_ptr<asio::ssl::context> instance_tls)
    : impl_(std::make_unique<Impl>(std::move(config), registry, std::move(instance_tls))) {}

ProxyServer::~ProxyServer() { stop(std::chrono::milliseconds(0)); }

Result<std::uint16_t> ProxyServer::start() {
  TANDEM_ASSERT(!impl_->server, "a proxy starts once");
  net::ServerLimits limits;
  // Room for every request in flight, for health probes and for clients that learn by a 503 that there is none.
  limits.max_connections = static_cast<std::size_t>(std::max(impl_->context->config.max_inflight, 1)) * 2 + 1024;
  impl_->server = net::HttpServer::create(impl_->io.get_executor(), limits);
  impl_->server->error_body([](int status, std::string_view message) { return error_body(status, message); });
  impl_->server->gate([context = impl_->context](const net::HttpRequest& request) -> std::optional<net::HttpResponse> {
    if (may_enter(*context, request)) return std::nullopt;
    return net::HttpResponse(401, "application/json", R"({"error":"Unauthorized"})");
  });
  if (impl_->context->config.access_log) {
    net::ServerObserver observer;
    // The query of a decoder's post may be its key.
    observer.answered = [](const net::HttpRequest& request, std::string_view version, int status) {
      net::log_answered(request, version, status, request.path != "/v1/metaserver");
    };
    impl_->server->observe(std::move(observer));
  }
  add_endpoints(*impl_->server, impl_->context);
  add_instance_admin(*impl_->server, impl_->context);
  add_metaserver(*impl_->server, impl_->context);
  for (const char* path : {"/v1/completions", "/v1/chat/completions", "/invocations"}) {
    impl_->server->route("POST", path, [context = impl_->context](std::shared_ptr<net::Exchange> exchange) {
      return complete(context, std::move(exchange));
    });
  }
  const auto& config = impl_->context->config;
  const config::ServerTls& tls = config.tls;
  if (tls.on()) {
    TANDEM_TRY(impl_->server->use_tls(
        {tls.certfile, tls.keyfile, tls.cert_reqs > 0 ? tls.ca_certs : "", tls.cert_reqs == 2, tls.ciphers}));
  }
  auto port = impl_->server->listen(config.host, config.port);
  if (!port) {
    impl_->server.reset();
    return port.error();
  }
  impl_->context->port = *port;
  impl_->context->watch.start();
  impl_->thread = std::thread([impl = impl_.get()] { impl->io.run(); });
  log::info("proxy on {} with {} prefillers and {} decoders", net::Endpoint(config.host, *port).to_string(),
            config.prefillers.size(), config.decoders.size());
  warn_of_local_address(config);
  return port;
}

void ProxyServer::stop(std::chrono::milliseconds drain) {
  if (!impl_->thread.joinable()) return;
  auto done = asio::co_spawn(impl_->io, shut_down(impl_->context, impl_->server.get(), drain), asio::use_future);
  // Every wait in there has a deadline; this one only guards against a stuck handler.
  (void)done.wait_for(drain + std::chrono::seconds(30));
  impl_->io.stop();
  impl_->thread.join();
  impl_->server.reset();
}

}  // namespace tandem::proxy
