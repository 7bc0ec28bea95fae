// SPDX-License-Identifier: Apache-2.0
// What this process proves to other instances and to the other processes of its own: files read, once.
#pragma once

#include <memory>

#include "base/peer_tls.h"
#include "base/status.h"
#include "config/tls_config.h"

namespace tandem::app {

/// nullptr: connections are plain. An error names the flag or file.
Result<std::shared_ptr<const PeerTls>> make_peer_tls(const config::PeerProof& proof);

}  // namespace tandem::app
