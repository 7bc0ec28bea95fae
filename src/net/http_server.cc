// SPDX-License-Identifier: Apache-2.0
// Accepting, routing and stopping. A connection's life is in server_connection.cc, an answer's in server_exchange.cc.
#include "net/http_server.h"

#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/json.hpp>
#include <cstring>
#include <filesystem>

#include "base/log.h"
#include "net/server_connection.h"
#include "net/tls.h"

namespace tandem::net {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);

/// Of either kind of socket.
using Acceptor = asio::basic_socket_acceptor<asio::generic::stream_protocol>;

std::string default_error_text(int status, std::string_view message) {
  boost::json::object error;
  error["message"] = message;
  error["type"] = status >= 500 ? "InternalServerError" : "BadRequestError";
  error["param"] = nullptr;
  error["code"] = status;
  boost::json::object body;
  body["error"] = std::move(error);
  return boost::json::serialize(body);
}

Result<std::vector<tcp::endpoint>> addresses_of(const std::string& host, std::uint16_t port,
                                                const asio::any_io_executor& executor) {
  const std::string name = host.empty() ? "0.0.0.0" : host;
  error_code error;
  if (const auto literal = asio::ip::make_address(name, error); !error) {
    return std::vector<tcp::endpoint>{tcp::endpoint(literal, port)};
  }
  tcp::resolver resolver(executor);
  const auto found = resolver.resolve(name, std::to_string(port), tcp::resolver::passive, error);
  if (error) return Status(Code::kInvalidArgument, fmt::format("cannot resolve host '{}': {}", host, error.message()));
  std::vector<tcp::endpoint> endpoints;
  for (const bool v4 : {true, false}) {  // IPv4 first: with port 0 it is the one that decides the port
    for (const auto& entry : found) {
      const tcp::endpoint endpoint = entry.endpoint();
      const bool known = std::find(endpoints.begin(), endpoints.end(), endpoint) != endpoints.end();
      if (endpoint.address().is_v4() == v4 && !known) endpoints.push_back(endpoint);
    }
  }
  return endpoints;
}

std::uint16_t port_of(const asio::generic::stream_protocol::endpoint& endpoint) {
  tcp::endpoint address;
  if (endpoint.size() > address.capacity()) return 0;
  std::memcpy(address.data(), endpoint.data(), endpoint.size());
  address.resize(endpoint.size());
  return address.port();
}

error_code bind_one(Acceptor& acceptor, const tcp::endpoint& endpoint) {
  error_code error;
  acceptor.open(endpoint.protocol(), error);
  if (error) return error;
  acceptor.set_option(asio::socket_base::reuse_address(true), error);
  if (endpoint.address().is_v6()) {
    error_code ignored;
    acceptor.set_option(asio::ip::v6_only(!endpoint.address().is_unspecified()), ignored);
  }
  acceptor.bind(endpoint, error);
  if (error) return error;
  acceptor.listen(asio::socket_base::max_listen_connections, error);
  return error;
}

struct ServerState : ServerShared {
  using ServerShared::ServerShared;
  std::vector<std::unique_ptr<Acceptor>> acceptors;
  std::string unix_path;  ///< the file of a Unix socket that is ours; "" if there is none
};

Task<void> accept_loop(std::shared_ptr<ServerState> state, Acceptor* acceptor) {
  asio::steady_timer pause(state->executor);
  while (!state->stopping) {
    auto [error, socket] = co_await acceptor->async_accept(kAwait);
    if (state->stopping || error == asio::error::operation_aborted) co_return;
    if (error) {
      // Out of descriptors, mostly: waiting lets other connections end; a busy loop would not.
      log::warning("accepting a connection failed: {}", error.message());
      pause.expires_after(std::chrono::milliseconds(100));
      co_await pause.async_wait(kAwait);
      continue;
    }
    const bool busy = state->connections.size() >= state->limits.max_connections;
    auto connection = std::make_shared<ServerConnection>(std::move(socket), state);
    state->connections.emplace(connection.get(), connection);
    state->num_connections = state->connections.size();
    connection->start(busy);
  }
}

std::vector<std::shared_ptr<ServerConnection>> open_connections(const ServerState& state) {
  std::vector<std::shared_ptr<ServerConnection>> list;
  for (const auto& [raw, weak] : state.connections) {
    if (auto connection = weak.lock()) list.push_back(std::move(connection));
  }
  return list;
}

Task<void> wait_until_empty(std::shared_ptr<ServerState> state, TimePoint deadline) {
  while (!state->connections.empty() && std::chrono::steady_clock::now() < deadline) {
    state->connections_changed.expires_at(deadline);
    co_await state->connections_changed.async_wait(kAwait);
  }
}

void close_acceptors(ServerState& state) {
  error_code ignored;
  for (auto& acceptor : state.acceptors) acceptor->close(ignored);
  if (!state.unix_path.empty()) ::unlink(state.unix_path.c_str());
  state.unix_path.clear();
}

/// Makes room for a socket file, if what is there is one that nobody listens on.
Result<void> remove_dead_socket(const std::string& path, const asio::any_io_executor& executor) {
  std::error_code missing;
  const auto status = std::filesystem::symlink_status(path, missing);
  if (!std::filesystem::exists(status)) return {};
  if (status.type() != std::filesystem::file_type::socket)
    return Status(Code::kAlreadyExists, fmt::format("cannot listen on {}: it is there and no socket", path),
                  Scope::kProcess);
  asio::local::stream_protocol::socket probe(executor);
  error_code error;
  probe.connect(asio::local::stream_protocol::endpoint(path), error);
  if (error != asio::error::connection_refused)
    return Status(Code::kAlreadyExists,
                  fmt::format("cannot listen on {}: {}; choose another path with --uds", path,
                              error ? error.message() : "another server listens there"),
                  Scope::kProcess);
  ::unlink(path.c_str());
  return {};
}

Task<void> stop_server(std::shared_ptr<ServerState> state, std::chrono::milliseconds drain) {
  constexpr std::chrono::seconds kHandlersEnd{5};
  state->stopping = true;
  close_acceptors(*state);
  for (const auto& connection : open_connections(*state)) {
    if (connection->idle()) connection->close();
  }
  co_await wait_until_empty(state, std::chrono::steady_clock::now() + drain);
  for (const auto& connection : open_connections(*state)) connection->close();
  // Handlers see their client gone now and end by themselves.
  co_await wait_until_empty(state, std::chrono::steady_clock::now() + kHandlersEnd);
  if (!state->connections.empty()) {
    log::warning("{} HTTP handlers did not end after their connections were closed", state->connections.size());
  }
}

class AsioHttpServer final : public HttpServer {
 public:
  AsioHttpServer(const asio::any_io_executor& executor, const ServerLimits& limits)
      : state_(std::make_shared<ServerState>(executor, limits)) {}

  ~AsioHttpServer() override {
    state_->stopping = true;
    close_acceptors(*state_);
    for (const auto& connection : open_connections(*state_)) connection->close();
  }

  void route(std::string method, std::string path, Handler handler) override {
    state_->routes[std::move(path)][std::move(method)] = std::move(handler);
  }

  void gate(std::function<std::optional<HttpResponse>(const HttpRequest&)> check) override {
    state_->gate = std::move(check);
  }

  void stamp(std::function<void(const HttpRequest&, Headers&)> add) override { state_->stamp = std::move(add); }

  void error_body(std::function<std::string(int, std::string_view)> make) override {
    state_->make_error = std::move(make);
  }

  void observe(ServerObserver observer) override { state_->observer = std::move(observer); }

  Result<std::uint16_t> listen(const std::string& host, std::uint16_t port) override {
    TANDEM_ASSIGN(auto endpoints, addresses_of(host, port, state_->executor));
    constexpr int kTries = 8;  // port 0 and several addresses: the port free on the first may be taken on the next
    Status problem(Code::kUnavailable, fmt::format("host '{}' has no address", host));
    for (int attempt = 0; attempt < (port == 0 ? kTries : 1); ++attempt) {
      auto bound = listen_all(host, port, endpoints);
      if (bound) {
        for (auto& acceptor : state_->acceptors) {
          asio::co_spawn(state_->executor, accept_loop(state_, acceptor.get()), asio::detached);
        }
        return bound;
      }
      problem = bound.error();
    }
    return problem;
  }

  Result<void> listen_unix(const std::string& path) override {
    constexpr std::size_t kMostPathBytes = sizeof(sockaddr_un::sun_path) - 1;
    if (path.empty() || path.size() > kMostPathBytes)
      return Status(
          Code::kInvalidArgument,
          fmt::format("the path of a Unix socket has 1 to {} bytes, '{}' has {}", kMostPathBytes, path, path.size()),
          Scope::kProcess);
    TANDEM_TRY(remove_dead_socket(path, state_->executor));
    const asio::local::stream_protocol::endpoint endpoint(path);
    auto acceptor = std::make_unique<Acceptor>(state_->executor);
    error_code error;
    acceptor->open(endpoint.protocol(), error);
    if (!error) acceptor->bind(endpoint, error);
    if (!error) acceptor->listen(asio::socket_base::max_listen_connections, error);
    if (error)
      return Status(Code::kUnavailable, fmt::format("cannot listen on {}: {}", path, error.message()), Scope::kProcess);
    state_->unix_path = path;
    asio::co_spawn(state_->executor, accept_loop(state_, acceptor.get()), asio::detached);
    state_->acceptors.push_back(std::move(acceptor));
    return {};
  }

  Result<void> use_tls(const TlsFiles& files) override {
    TANDEM_ASSIGN(state_->tls, make_tls_context(files));
    return {};
  }

  Task<void> stop(std::chrono::milliseconds drain) override { return stop_server(state_, drain); }
  std::size_t num_connections() const override { return state_->num_connections; }

 private:
  Result<std::uint16_t> listen_all(const std::string& host, std::uint16_t port,
                                   const std::vector<tcp::endpoint>& endpoints) {
    std::vector<std::unique_ptr<Acceptor>> acceptors;
    std::uint16_t chosen = port;
    Status problem(Code::kUnavailable, fmt::format("host '{}' has no address", host));
    for (tcp::endpoint endpoint : endpoints) {
      endpoint.port(chosen);
      auto acceptor = std::make_unique<Acceptor>(state_->executor);
      if (const auto error = bind_one(*acceptor, endpoint)) {
        problem = Status(Code::kUnavailable,
                         fmt::format("cannot listen on {} port {}: {}{}", host, chosen, error.message(),
                                     error == asio::error::address_in_use ? "; choose another port with --port" : ""),
                         Scope::kProcess);
        const bool address_missing =
            error == asio::error::address_family_not_supported || error.value() == EADDRNOTAVAIL;
        if (address_missing && endpoints.size() > 1) continue;  // IPv6 switched off on this machine
        return problem;
      }
      error_code error;
      chosen = port_of(acceptor->local_endpoint(error));
      acceptors.push_back(std::move(acceptor));
    }
    if (acceptors.empty()) return problem;
    std::move(acceptors.begin(), acceptors.end(), std::back_inserter(state_->acceptors));
    return chosen;
  }

  std::shared_ptr<ServerState> state_;
};

}  // namespace

std::string ServerShared::error_text(int status, std::string_view message) const {
  return make_error ? make_error(status, message) : default_error_text(status, message);
}

Found ServerShared::find(const HttpRequest& request, HttpResponse& refusal) const {
  const auto path = routes.find(request.path);
  const std::string_view route = path == routes.end() ? std::string_view() : std::string_view(path->first);
  if (gate) {
    if (auto answer = gate(request)) {
      refusal = std::move(*answer);
      return {nullptr, route};
    }
  }
  if (path == routes.end()) {
    refusal = HttpResponse(404, "application/json", R"({"detail":"Not Found"})");
    return {};
  }
  auto method = path->second.find(request.method);
  if (method == path->second.end() && request.method == "HEAD") method = path->second.find("GET");
  if (method != path->second.end()) return {&method->second, route};
  refusal = HttpResponse(405, "application/json", R"({"detail":"Method Not Allowed"})");
  std::string allowed;
  for (const auto& [name, handler] : path->second) allowed += (allowed.empty() ? "" : ", ") + name;
  refusal.headers.add("allow", std::move(allowed));
  return {nullptr, route};
}

std::unique_ptr<HttpServer> HttpServer::create(asio::any_io_executor executor, ServerLimits limits) {
  return std::make_unique<AsioHttpServer>(executor, limits);
}

}  // namespace tandem::net
