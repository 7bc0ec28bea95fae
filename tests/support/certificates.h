// SPDX-License-Identifier: Apache-2.0
// Certificates for tests of TLS.
#pragma once

#include <string>

struct evp_pkey_st;
struct x509_st;

namespace tandem::test {

struct Pem {
  std::string certificate, key;  ///< files
};

/// A certificate for these hosts that signs itself, valid for an hour; files in the test's folder.
Pem make_certificate(const std::string& name, const std::string& hosts = "DNS:localhost,IP:127.0.0.1");

/// Signs others' certificates, as the CA of a cluster does.
class Authority {
 public:
  explicit Authority(const std::string& name);
  ~Authority();
  Authority(const Authority&) = delete;
  Authority& operator=(const Authority&) = delete;

  const std::string& file() const { return file_; }  ///< its own certificate
  /// Valid for so long from now; one that is not positive has expired.
  Pem sign(const std::string& name, long seconds = 3600);

 private:
  evp_pkey_st* key_;
  x509_st* certificate_;
  long serial_ = 1;
  std::string file_;
};

}  // namespace tandem::test
