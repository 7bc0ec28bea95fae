// SPDX-License-Identifier: Apache-2.0
#include "config/tls_options.h"

namespace tandem::config {
namespace {

Status invalid(std::string message) { return Status(Code::kInvalidArgument, std::move(message)); }

}  // namespace

void add_server_tls(FlagList& flags, ServerTls& tls) {
  flags.one("--ssl-certfile", "FILE", "PEM file of the server's certificates: TLS", "none", text_into(tls.certfile))
      .nullable();
  flags.one("--ssl-keyfile", "FILE", "PEM file of its key", "that of --ssl-certfile", text_into(tls.keyfile))
      .nullable();
  flags.one("--ssl-ca-certs", "FILE", "PEM file of who may sign clients' certificates", "none", text_into(tls.ca_certs))
      .nullable();
  flags.one("--ssl-cert-reqs", "N", "clients' certificates: 0 none, 1 checked if there, 2 required", "0",
            integer_into(tls.cert_reqs, 0, 2));
  flags
      .one("--ssl-ciphers", "LIST", "ciphers of TLS 1.2, by OpenSSL's names", "the library's choice",
           text_into(tls.ciphers))
      .nullable();
}

Result<void> finish_server_tls(ServerTls& tls) {
  if (!tls.on() && !(tls.keyfile.empty() && tls.ca_certs.empty() && tls.ciphers.empty() && tls.cert_reqs == 0))
    return invalid("--ssl-keyfile, --ssl-ca-certs, --ssl-cert-reqs and --ssl-ciphers need --ssl-certfile");
  if (tls.keyfile.empty()) tls.keyfile = tls.certfile;
  if (tls.cert_reqs > 0 && tls.ca_certs.empty())
    return invalid("--ssl-cert-reqs needs --ssl-ca-certs: who may sign clients' certificates");
  return {};
}

void add_client_tls(FlagList& flags, const std::string& prefix, const std::string& whom, ClientTls& tls) {
  flags
      .one(prefix + "-ca-certs", "FILE", "PEM file of who may sign the certificates of " + whom,
           "whom this machine trusts", text_into(tls.ca_certs))
      .nullable();
  flags
      .one(prefix + "-certfile", "FILE", "PEM file of the certificate that " + whom + " are shown", "none",
           text_into(tls.certfile))
      .nullable();
  flags.one(prefix + "-keyfile", "FILE", "PEM file of its key", "that of the certificate", text_into(tls.keyfile))
      .nullable();
}

void add_peer_proof(FlagList& flags, PeerProof& proof) {
  flags.one("--cluster-secret-file", "FILE",
            "holds the secret that instances, and the processes of one, prove to each other: TLS (or "
            "TANDEM_CLUSTER_SECRET)",
            "none", text_into(proof.secret_file));
  flags
      .one("--peer-ca-certs", "FILE", "PEM file of who may sign the certificates of other instances and processes",
           "none", text_into(proof.ca_certs))
      .nullable();
  flags
      .one("--peer-certfile", "FILE", "PEM file of the certificate that they are shown: TLS, instead of a secret",
           "none", text_into(proof.certfile))
      .nullable();
  flags.one("--peer-keyfile", "FILE", "PEM file of its key", "that of --peer-certfile", text_into(proof.keyfile))
      .nullable();
}

Result<void> finish_peer_proof(PeerProof& proof, const Variables& environment) {
  proof.secret = environment("TANDEM_CLUSTER_SECRET").value_or("");
  if (proof.secret_file.empty()) proof.secret_file = environment("TANDEM_CLUSTER_SECRET_FILE").value_or("");
  const bool files = !proof.ca_certs.empty() || !proof.certfile.empty() || !proof.keyfile.empty();
  if (files && (proof.ca_certs.empty() || proof.certfile.empty()))
    return invalid("--peer-certfile and --peer-ca-certs need each other: both sides show a certificate and check one");
  if (files && !(proof.secret.empty() && proof.secret_file.empty()))
    return invalid(
        "--peer-certfile and a secret (TANDEM_CLUSTER_SECRET, --cluster-secret-file): peers prove one or the other; "
        "leave one out, everywhere");
  return {};
}

}  // namespace tandem::config
