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

}  // namespace

Result<std::shared_ptr<ssl::context>> make_tls_context(const TlsFiles& files) {
  auto context = std::make_shared<ssl::context>(ssl::context::tls_server);
  error_code error;
  context->set_options(ssl::context::default_workarounds | ssl::context::no_sslv2 | ssl::context::no_sslv3 |
                           ssl::context::no_tlsv1 | ssl::context::no_tlsv1_1 | ssl::context::no_compression,
                       error);
  context->use_certificate_chain_file(files.certificates, error);
  if (error) return file_error("TLS certificate", files.certificates, error);
  context->use_private_key_file(files.key, ssl::context::pem, error);
  if (error) return file_error("TLS key", files.key, error);  // also if it is not the certificate's
  if (files.client_ca.empty()) return context;
  context->load_verify_file(files.client_ca, error);
  if (error) return file_error("TLS client CA", files.client_ca, error);
  const auto mode = files.require_client ? ssl::verify_peer | ssl::verify_fail_if_no_peer_cert : ssl::verify_peer;
  context->set_verify_mode(mode, error);
  return context;
}

}  // namespace tandem::net
