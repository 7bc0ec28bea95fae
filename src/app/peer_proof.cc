// SPDX-License-Identifier: Apache-2.0
#include "app/peer_proof.h"

#include <fmt/format.h>

#include <fstream>
#include <string>

namespace tandem::app {
namespace {

constexpr std::size_t kMaxSecretBytes = 4096;

/// TANDEM_CLUSTER_SECRET, or the file's first line; "" if neither is given.
Result<std::string> read_secret(const config::PeerProof& proof) {
  if (!proof.secret.empty() || proof.secret_file.empty()) return proof.secret;
  std::ifstream file(proof.secret_file);
  std::string line;
  if (!std::getline(file, line) || line.empty() || line.size() > kMaxSecretBytes)
    return Status(
        Code::kInvalidArgument,
        fmt::format("--cluster-secret-file {}: expected a file whose first line is the secret, of 1 to {} bytes",
                    proof.secret_file, kMaxSecretBytes),
        Scope::kProcess);
  return line;
}

}  // namespace

Result<std::shared_ptr<const PeerTls>> make_peer_tls(const config::PeerProof& proof) {
  PeerCredentials credentials{.secret = {}, .certificates = proof.certfile, .key = proof.keyfile, .ca = proof.ca_certs};
  TANDEM_ASSIGN(credentials.secret, read_secret(proof));
  auto tls = PeerTls::make(credentials);
  if (!tls) return tls.error().context("--peer-certfile, --peer-keyfile, --peer-ca-certs");
  return tls;
}

}  // namespace tandem::app
