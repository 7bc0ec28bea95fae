// SPDX-License-Identifier: Apache-2.0
// TLS of a command: what its own port shows, what it wants from servers that it asks, and what instances prove to each
// other. All files are PEM but the secret's.
#pragma once

#include <string>

namespace tandem::config {

struct ServerTls {
  std::string certfile;  ///< empty: plain HTTP
  std::string keyfile;
  std::string ca_certs;  ///< who may sign clients' certificates
  std::string ciphers;   ///< empty: the library's own choice
  int cert_reqs = 0;     ///< clients' certificates: 0 none, 1 checked if there, 2 required

  bool on() const { return !certfile.empty(); }
};

struct ClientTls {
  std::string ca_certs;  ///< who may sign servers' certificates; empty: whom the system trusts
  std::string certfile;  ///< for servers that ask for one; may be empty
  std::string keyfile;   ///< empty: in certfile
};

/// Of connections that are not HTTP: KV transfer, and between the processes of an instance. A secret, or certificates
/// of both sides, or neither.
struct PeerProof {
  std::string secret;       ///< TANDEM_CLUSTER_SECRET
  std::string secret_file;  ///< its first line is the secret; counts if that is not given itself
  std::string ca_certs;     ///< who may sign peers' certificates
  std::string certfile;
  std::string keyfile;  ///< empty: in certfile
};

}  // namespace tandem::config
