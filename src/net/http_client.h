// SPDX-License-Identifier: Apache-2.0
// HTTP/1.1 client for one peer: a pool of kept connections, a deadline for every wait, bodies in pieces exactly as they
// arrive, and cancellation at any moment. Closing a connection is how a peer learns that its answer is not wanted.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <chrono>
#include <memory>
#include <string>

#include "base/status.h"
#include "net/cancel.h"
#include "net/http_server.h"

namespace boost::asio::ssl {
class context;
}

namespace tandem::net {

struct Endpoint {
  Endpoint() {}
  Endpoint(std::string name, std::uint16_t number) : host(std::move(name)), port(number) {}
  std::string host;  ///< a name, an IPv4 or an IPv6 literal (with or without brackets)
  std::uint16_t port = 0;
  bool tls = false;  ///< https; the client's creator then has a context for it
  /// "host:port", IPv6 in brackets.
  std::string to_string() const;
};

struct ClientTimeouts {
  std::chrono::milliseconds connect{3'000};  ///< name lookup and connection
  std::chrono::milliseconds head{60'000};    ///< sending the request until the head of the answer is here
  std::chrono::milliseconds idle{60'000};    ///< between two pieces of the body
  std::chrono::milliseconds total{0};        ///< from send() to the last byte; 0: no limit
};

struct ClientRequest {
  ClientRequest() {}
  ClientRequest(std::string verb, std::string path_and_query)
      : method(std::move(verb)), target(std::move(path_and_query)) {}
  std::string method;
  std::string target;  ///< "/v1/models?x=y", sent as it is
  Headers headers;     ///< Host, Content-Length and Connection are set by the client
  std::string body;
};

struct ClientLimits {
  std::size_t max_header_bytes = 64U << 10;
  std::size_t max_idle_connections = 256;
  std::chrono::seconds max_idle_time{30};  ///< shorter than servers' keep-alive, so that they rarely close first
};

/// An answer whose head is here and whose body is still to be read. Destroying it before the end closes the connection.
class ClientResponse {
 public:
  virtual ~ClientResponse() = default;
  virtual int status() const = 0;
  virtual const Headers& headers() const = 0;
  /// What arrived next; empty at the proper end of the body. An error if the peer broke off, was silent for too long
  /// or the request was cancelled.
  virtual Task<Result<std::string>> read_piece() = 0;
  /// The rest of the body; an error if it is longer than max_bytes.
  virtual Task<Result<std::string>> read_all(std::size_t max_bytes) = 0;
};

class HttpClient {
 public:
  /// `tls` (tls.h): what an endpoint with TLS is talked to with; not looked at without.
  static std::shared_ptr<HttpClient> create(boost::asio::any_io_executor executor, Endpoint endpoint,
                                            ClientLimits limits,
                                            std::shared_ptr<boost::asio::ssl::context> tls = nullptr);
  virtual ~HttpClient() = default;

  /// Sends and waits for the head. A kept connection that the peer has closed meanwhile is replaced by a fresh one,
  /// if not a single byte of an answer came; nothing else is ever sent twice. Errors: kUnavailable (cannot connect,
  /// broke off, not HTTP), kDeadlineExceeded, kCancelled; each names the peer and the step. The scope is kPeer if no
  /// connection came about and kTransfer afterwards; kResourceExhausted with kProcess: we have no file descriptor left,
  /// which says nothing about the peer.
  virtual Task<Result<std::unique_ptr<ClientResponse>>> send(ClientRequest request, ClientTimeouts timeouts,
                                                             Cancel cancel) = 0;
  virtual const Endpoint& endpoint() const = 0;
  /// Address of this machine on the connection made last ("192.0.0.5"): where the peer can reach us, if nothing
  /// translates addresses in between. Empty before the first connection.
  virtual std::string local_address() const = 0;
  virtual std::size_t num_idle() const = 0;
  /// Closes kept connections; those in use go on.
  virtual void close_idle() = 0;
};

}  // namespace tandem::net
