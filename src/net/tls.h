// SPDX-License-Identifier: Apache-2.0
// TLS for the HTTP server and client: files of keys and certificates as one context.
#pragma once

#include <boost/asio/ssl/context.hpp>
#include <memory>
#include <string>

#include "base/status.h"

namespace tandem::net {

struct TlsFiles {
  std::string certificates;     ///< PEM: the server's, then those that signed it
  std::string key;              ///< PEM
  std::string client_ca;        ///< PEM: who may sign clients' certificates; empty: clients need none
  bool require_client = false;  ///< clients without a certificate are refused; else one is only checked if it comes
  std::string ciphers = {};     ///< OpenSSL's list for TLS 1.2; empty: the library's own choice
};

/// A server is always checked: who signed it, and that it is the host that was asked for.
struct TlsClientFiles {
  std::string server_ca;    ///< PEM: who may sign servers' certificates; empty: whom this machine trusts
  std::string certificate;  ///< PEM: our own, for servers that want one; may be empty
  std::string key;          ///< PEM; empty: in `certificate`
};

/// TLS 1.2 and newer. An error names the file and what is wrong with it.
Result<std::shared_ptr<boost::asio::ssl::context>> make_tls_context(const TlsFiles& files);
Result<std::shared_ptr<boost::asio::ssl::context>> make_tls_client_context(const TlsClientFiles& files);

}  // namespace tandem::net
