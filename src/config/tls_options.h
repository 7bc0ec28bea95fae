// SPDX-License-Identifier: Apache-2.0
// Flags of tls_config.h.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "base/status.h"
#include "config/flag_list.h"
#include "config/tls_config.h"

namespace tandem::config {

/// --ssl-certfile, --ssl-keyfile, --ssl-ca-certs, --ssl-cert-reqs, --ssl-ciphers, as uvicorn has them.
void add_server_tls(FlagList& flags, ServerTls& tls);
/// Whether they fit together; the key is the certificate's file if it is not given.
Result<void> finish_server_tls(ServerTls& tls);

/// <prefix>-ca-certs, <prefix>-certfile, <prefix>-keyfile. `whom` is asked: "instances".
void add_client_tls(FlagList& flags, const std::string& prefix, const std::string& whom, ClientTls& tls);

/// --cluster-secret-file; --peer-ca-certs, --peer-certfile, --peer-keyfile.
void add_peer_proof(FlagList& flags, PeerProof& proof);
/// TANDEM_CLUSTER_SECRET and TANDEM_CLUSTER_SECRET_FILE; whether what is given fits together.
using Variables = std::function<std::optional<std::string>(const std::string& name)>;
Result<void> finish_peer_proof(PeerProof& proof, const Variables& environment);

}  // namespace tandem::config
