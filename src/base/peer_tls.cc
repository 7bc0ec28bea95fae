// SPDX-License-Identifier: Apache-2.0
#include "base/peer_tls.h"

#include <fmt/format.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/kdf.h>
#include <openssl/ssl.h>

#include <cstring>
#include <string_view>

namespace tandem {
namespace {

/// What a pre-shared key is called on the wire. There is one.
constexpr std::string_view kIdentity = "tandem";
const auto* const kIdentityBytes = reinterpret_cast<const unsigned char*>(kIdentity.data());
constexpr std::string_view kSalt = "tandem peers";
constexpr std::string_view kPurpose = "tls 1.3 pre-shared key";
/// The one cipher of both sides; a pre-shared key goes with a hash, here SHA-256.
constexpr const char* kCipher = "TLS_AES_128_GCM_SHA256";
constexpr unsigned char kCipherId[] = {0x13, 0x01};  // its number in TLS
/// Several records at a read.
constexpr std::size_t kReadAhead = std::size_t{64} << 10;

/// The pre-shared key as OpenSSL wants it; nullptr if there is no memory.
SSL_SESSION* make_session(SSL* ssl) {
  const auto* tls = static_cast<const PeerTls*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl)));
  SSL_SESSION* session = SSL_SESSION_new();
  const SSL_CIPHER* cipher = SSL_CIPHER_find(ssl, kCipherId);
  const auto& key = tls->shared_key();
  if (session != nullptr && cipher != nullptr && SSL_SESSION_set1_master_key(session, key.data(), key.size()) == 1 &&
      SSL_SESSION_set_cipher(session, cipher) == 1 && SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1 &&
      SSL_SESSION_set1_id_context(session, kIdentityBytes, kIdentity.size()) ==
          1) {  // the context's, or it is no match
    return session;
  }
  SSL_SESSION_free(session);
  return nullptr;
}

int offer_key(SSL* ssl, const EVP_MD*, const unsigned char** identity, std::size_t* size, SSL_SESSION** session) {
  *session = make_session(ssl);
  *identity = kIdentityBytes;
  *size = kIdentity.size();
  return *session != nullptr ? 1 : 0;
}

int find_key(SSL* ssl, const unsigned char* identity, std::size_t size, SSL_SESSION** session) {
  const bool ours = size == kIdentity.size() && std::memcmp(identity, kIdentity.data(), size) == 0;
  *session = ours ? make_session(ssl) : nullptr;
  return 1;
}

/// HKDF-SHA256 (RFC 5869).
bool derive(std::string_view secret, std::array<unsigned char, 32>& key) {
  const auto octets = [](const char* name, std::string_view text) {
    return OSSL_PARAM_construct_octet_string(name, const_cast<char*>(text.data()), text.size());
  };
  char hash[] = "SHA256";
  const OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, hash, 0),
                               octets(OSSL_KDF_PARAM_KEY, secret), octets(OSSL_KDF_PARAM_SALT, kSalt),
                               octets(OSSL_KDF_PARAM_INFO, kPurpose), OSSL_PARAM_construct_end()};
  EVP_KDF* kdf = EVP_KDF_fetch(nullptr, "HKDF", nullptr);
  EVP_KDF_CTX* context = EVP_KDF_CTX_new(kdf);
  EVP_KDF_free(kdf);
  const bool done = context != nullptr && EVP_KDF_derive(context, key.data(), key.size(), params) == 1;
  EVP_KDF_CTX_free(context);
  return done;
}

Status file_error(std::string_view what, const std::string& file) {
  const unsigned long error = ERR_peek_error();  // the first one says most
  const char* reason = ERR_SYSTEM_ERROR(error) ? std::strerror(ERR_GET_REASON(error)) : ERR_reason_error_string(error);
  Status status(Code::kInvalidArgument,
                fmt::format("{} {}: {}; expected a PEM file", what, file, reason != nullptr ? reason : "unreadable"),
                Scope::kProcess);
  ERR_clear_error();
  return status;
}

}  // namespace

PeerTls::PeerTls(Way way, std::uint64_t records_per_key)
    : way_(way), records_per_key_(records_per_key), context_(SSL_CTX_new(TLS_method())) {
  TANDEM_ASSERT(context_ != nullptr, "the TLS library makes a context");
  SSL_CTX_set_app_data(context_, this);
  const bool set = SSL_CTX_set_min_proto_version(context_, TLS1_3_VERSION) == 1 &&
                   SSL_CTX_set_ciphersuites(context_, kCipher) == 1 && SSL_CTX_set_num_tickets(context_, 0) == 1;
  TANDEM_ASSERT(set, "the TLS library knows TLS 1.3 and its cipher");
  SSL_CTX_set_session_cache_mode(context_, SSL_SESS_CACHE_OFF);
  const bool named = SSL_CTX_set_session_id_context(context_, kIdentityBytes, kIdentity.size()) == 1;
  TANDEM_ASSERT(named, "the name is short");
  // Our frames say where they end: a stream that is cut short is noticed with and without a last TLS message.
  SSL_CTX_set_options(context_, SSL_OP_IGNORE_UNEXPECTED_EOF | SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_mode(context_, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                 SSL_MODE_RELEASE_BUFFERS);  // whoever only connects costs little
  SSL_CTX_set_read_ahead(context_, 1);
  SSL_CTX_set_default_read_buffer_len(context_, kReadAhead);
}

PeerTls::~PeerTls() {
  SSL_CTX_free(context_);
  OPENSSL_cleanse(shared_key_.data(), shared_key_.size());
}

Result<std::shared_ptr<const PeerTls>> PeerTls::make(const PeerCredentials& credentials,
                                                     std::uint64_t records_per_key) {
  const bool certificates = !credentials.certificates.empty();
  if (credentials.secret.empty() && !certificates) return std::shared_ptr<const PeerTls>();
  const std::shared_ptr<PeerTls> tls(new PeerTls(certificates ? Way::kCertificates : Way::kSecret, records_per_key));
  if (certificates)
    TANDEM_TRY(tls->use_certificates(credentials));
  else
    TANDEM_TRY(tls->use_secret(credentials.secret));
  return std::shared_ptr<const PeerTls>(tls);
}

Result<void> PeerTls::use_secret(const std::string& secret) {
  if (!derive(secret, shared_key_))
    return Status(Code::kInternal, "the TLS library derives no key from the secret", Scope::kProcess);
  SSL_CTX_set_psk_use_session_callback(context_, offer_key);
  SSL_CTX_set_psk_find_session_callback(context_, find_key);
  // A connecting side takes no certificate instead of the secret; a listening one has none to show.
  SSL_CTX_set_verify(context_, SSL_VERIFY_PEER, nullptr);
  return {};
}

Result<void> PeerTls::use_certificates(const PeerCredentials& credentials) {
  ERR_clear_error();
  const std::string& key = credentials.key.empty() ? credentials.certificates : credentials.key;
  if (SSL_CTX_use_certificate_chain_file(context_, credentials.certificates.c_str()) != 1)
    return file_error("peer certificate", credentials.certificates);
  if (SSL_CTX_use_PrivateKey_file(context_, key.c_str(), SSL_FILETYPE_PEM) != 1)
    return file_error("peer key", key);  // also if it is not the certificate's
  if (SSL_CTX_load_verify_file(context_, credentials.ca.c_str()) != 1) return file_error("peer CA", credentials.ca);
  SSL_CTX_set_verify(context_, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  return {};
}

}  // namespace tandem
