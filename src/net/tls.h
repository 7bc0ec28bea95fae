// SPDX-License-Identifier: Apache-2.0
// TLS for the HTTP server: files of keys and certificates as one context.
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
};

/// TLS 1.2 and newer. An error names the file and what is wrong with it.
Result<std::shared_ptr<boost::asio::ssl::context>> make_tls_context(const TlsFiles& files);

}  // namespace tandem::net
