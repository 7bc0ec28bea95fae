// SPDX-License-Identifier: Apache-2.0
#include "support/certificates.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <memory>

namespace tandem::test {
namespace {

using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;

/// Without key, issuer and signature.
Certificate make_body(const std::string& name, long serial, long seconds) {
  Certificate certificate(X509_new(), X509_free);
  X509_set_version(certificate.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), serial);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), std::min(-60L, seconds - 60));
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), seconds);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  return certificate;
}

void add_extension(X509* certificate, int what, const std::string& value) {
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, what, value.c_str());
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

Pem write(const std::string& name, X509* certificate, EVP_PKEY* key) {
  const Pem pem{testing::TempDir() + name + ".crt", testing::TempDir() + name + ".key"};
  FILE* file = std::fopen(pem.certificate.c_str(), "w");
  PEM_write_X509(file, certificate);
  std::fclose(file);
  file = std::fopen(pem.key.c_str(), "w");
  PEM_write_PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr);
  std::fclose(file);
  return pem;
}

}  // namespace

Pem make_certificate(const std::string& name, const std::string& hosts) {
  const Key key(EVP_RSA_gen(2048U), EVP_PKEY_free);
  const Certificate certificate = make_body(name, 1, 3600);
  X509_set_pubkey(certificate.get(), key.get());
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(certificate.get()));
  add_extension(certificate.get(), NID_subject_alt_name, hosts);
  X509_sign(certificate.get(), key.get(), EVP_sha256());
  return write(name, certificate.get(), key.get());
}

Authority::Authority(const std::string& name)
    : key_(EVP_EC_gen("P-256")), certificate_(make_body(name, 1, 3600).release()) {
  X509_set_pubkey(certificate_, key_);
  X509_set_issuer_name(certificate_, X509_get_subject_name(certificate_));
  add_extension(certificate_, NID_basic_constraints, "critical,CA:TRUE");
  X509_sign(certificate_, key_, EVP_sha256());
  file_ = write(name, certificate_, key_).certificate;
}

Authority::~Authority() {
  X509_free(certificate_);
  EVP_PKEY_free(key_);
}

Pem Authority::sign(const std::string& name, long seconds) {
  const Key key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  const Certificate certificate = make_body(name, ++serial_, seconds);
  X509_set_pubkey(certificate.get(), key.get());
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(certificate_));
  X509_sign(certificate.get(), key_, EVP_sha256());
  return write(name, certificate.get(), key.get());
}

}  // namespace tandem::test
