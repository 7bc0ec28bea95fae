// SPDX-License-Identifier: Apache-2.0
#include "net/tls.h"

#include <fmt/format.h>

#include <string_view>

namespace tandem::net {
namespace {

namespace ssl = boost::asio::ssl;
using boost::system::error_code;

Status file_error(std::string_view what, const std::string& file, const error_code& error) {
  return {Code::kInvalidArgument, fmt::format("{} {}: {}; expected a PEM file", what, file, error.message())};
}

/// TLS 1.2 and newer.
void allow_new_versions_only(ssl::context& context) {
  error_code ignored;
  context.set_options(ssl::context::default_workarounds | ssl::context::no_sslv2 | ssl::context::no_sslv3 |
                          ssl::context::no_tlsv1 | ssl::context::no_tlsv1_1 | ssl::context::no_compression,
                      ignored);
}

Result<void> load_identity(ssl::context& context, const std::string& certificates, const std::string& key) {
  error_code error;
  context.use_certificate_chain_file(certificates, error);
  if (error) return file_error("TLS certificate", certificates, error);
  context.use_private_key_file(key, ssl::context::pem, error);
  if (error) return file_error("TLS key", key, error);  // also if it is not the certificate's
  return {};
}

}  // namespace

Result<std::shared_ptr<ssl::context>> make_tls_context(const TlsFiles& files) {
  auto context = std::make_shared<ssl::context>(ssl::context::tls_server);
  allow_new_versions_only(*context);
  TANDEM_TRY(load_identity(*context, files.certificates, files.key));
  if (!files.ciphers.empty() && SSL_CTX_set_cipher_list(context->native_handle(), files.ciphers.c_str()) != 1)
    return Status(Code::kInvalidArgument,
                  fmt::format("TLS ciphers '{}': the TLS library knows none of them; expected its own names, for "
                              "example ECDHE-RSA-AES128-GCM-SHA256",
                              files.ciphers));
  if (files.client_ca.empty()) return context;
  error_code error;
  context->load_verify_file(files.client_ca, error);
  if (error) return file_error("TLS client CA", files.client_ca, error);
  const auto mode = files.require_client ? ssl::verify_peer | ssl::verify_fail_if_no_peer_cert : ssl::verify_peer;
  context->set_verify_mode(mode, error);
  return context;
}

Result<std::shared_ptr<ssl::context>> make_tls_client_context(const TlsClientFiles& files) {
  auto context = std::make_shared<ssl::context>(ssl::context::tls_client);
  allow_new_versions_only(*context);
  if (!files.certificate.empty())
    TANDEM_TRY(load_identity(*context, files.certificate, files.key.empty() ? files.certificate : files.key));
  error_code error;
  if (files.server_ca.empty())
    context->set_default_verify_paths(error);
  else
    context->load_verify_file(files.server_ca, error);
  if (error) return file_error("TLS server CA", files.server_ca, error);
  context->set_verify_mode(ssl::verify_peer, error);
  return context;
}

}  // namespace tandem::net
