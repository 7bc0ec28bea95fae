// SPDX-License-Identifier: Apache-2.0
// What the connections between instances (KV transfer), and between the processes of one instance, are protected with:
// TLS 1.3 in which both sides prove who they are. Either both know one secret (an external pre-shared key, RFC 8446
// 4.2.11, with a Diffie-Hellman exchange, so that who learns it later cannot read what went by), or both show a
// certificate that one authority signed. HTTP has its own contexts in src/net/tls.h.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

struct ssl_ctx_st;

namespace tandem {

/// A secret, or certificates (all of PEM files), or nothing.
struct PeerCredentials {
  std::string secret;
  std::string certificates;  ///< ours, then those that signed it
  std::string key;           ///< empty: in `certificates`
  /// Who may sign peers' certificates. Whoever it signs for may connect: names are not compared, because peers are
  /// known by the addresses of the moment.
  std::string ca;
};

/// Immutable and thread-safe; must outlive the channels that use it (they hold on to it).
class PeerTls {
 public:
  enum class Way { kSecret, kCertificates };
  /// AES-GCM may encrypt 2^24.5 records with one key (RFC 8446 5.5); then a sender must take a new one.
  static constexpr std::uint64_t kRecordsPerKey = std::uint64_t{1} << 23;

  /// nullptr if nothing is given: plain connections. An error names the file and what is wrong with it.
  static Result<std::shared_ptr<const PeerTls>> make(const PeerCredentials& credentials,
                                                     std::uint64_t records_per_key = kRecordsPerKey);
  ~PeerTls();
  PeerTls(const PeerTls&) = delete;
  PeerTls& operator=(const PeerTls&) = delete;

  Way way() const { return way_; }
  std::string_view name() const { return way_ == Way::kSecret ? "TLS by the secret" : "TLS by certificates"; }
  std::uint64_t records_per_key() const { return records_per_key_; }
  ssl_ctx_st* context() const { return context_; }
  const std::array<unsigned char, 32>& shared_key() const { return shared_key_; }  ///< kSecret: derived from it

 private:
  PeerTls(Way way, std::uint64_t records_per_key);
  Result<void> use_secret(const std::string& secret);
  Result<void> use_certificates(const PeerCredentials& credentials);

  const Way way_;
  const std::uint64_t records_per_key_;
  ssl_ctx_st* context_;
  std::array<unsigned char, 32> shared_key_{};
};

}  // namespace tandem
