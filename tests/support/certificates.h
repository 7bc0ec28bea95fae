// SPDX-License-Identifier: Apache-2.0
// Certificates for tests of TLS.
#pragma once

#include <string>

namespace tandem::test {

struct Pem {
  std::string certificate, key;  ///< files
};

/// A certificate for these hosts that signs itself, valid for an hour; files in the test's folder.
Pem make_certificate(const std::string& name, const std::string& hosts = "DNS:localhost,IP:127.0.0.1");

}  // namespace tandem::test
