// SPDX-License-Identifier: Apache-2.0
// The hash chain of the prefix index: XXH3-128 for chains without a salt, SHA-256 for salted ones. The lowest bit of
// the second word names the kind, so that a salted chain and an unsalted one cannot meet whatever the tokens are.
#define XXH_INLINE_ALL
#include <openssl/evp.h>
#include <xxhash.h>

#include <bit>
#include <cstring>
#include <memory>

#include "kv/block_pool.h"

namespace tandem::kv {
namespace {

constexpr std::uint64_t kSaltedBit = 1;

BlockHash plain_hash(const BlockHash* parent, std::span<const std::int32_t> tokens) {
  // Both words of the parent come before the tokens: a block's hash depends on every token before it.
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  const BlockHash root{};
  XXH3_128bits_update(&state, (parent != nullptr ? *parent : root).bits.data(), sizeof(root.bits));
  XXH3_128bits_update(&state, tokens.data(), tokens.size_bytes());
  const XXH128_hash_t digest = XXH3_128bits_digest(&state);
  return BlockHash{{digest.low64, digest.high64 & ~kSaltedBit}};
}

BlockHash salted_hash(const BlockHash* parent, std::span<const std::int32_t> tokens, std::string_view salt) {
  struct Free {
    void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  };
  const std::unique_ptr<EVP_MD_CTX, Free> context(EVP_MD_CTX_new());
  const BlockHash root{};
  const std::uint64_t salt_bytes = salt.size();  // before the salt: no two inputs give the same byte string
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int digest_bytes = 0;
  const bool done =
      context != nullptr && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1 &&
      EVP_DigestUpdate(context.get(), &salt_bytes, sizeof(salt_bytes)) == 1 &&
      EVP_DigestUpdate(context.get(), salt.data(), salt.size()) == 1 &&
      EVP_DigestUpdate(context.get(), (parent != nullptr ? *parent : root).bits.data(), sizeof(root.bits)) == 1 &&
      EVP_DigestUpdate(context.get(), tokens.data(), tokens.size_bytes()) == 1 &&
      EVP_DigestFinal_ex(context.get(), digest.data(), &digest_bytes) == 1;
  TANDEM_ASSERT(done && digest_bytes >= sizeof(BlockHash::bits), "SHA-256 of the crypto library failed");
  BlockHash hash;
  std::memcpy(hash.bits.data(), digest.data(), sizeof(hash.bits));
  hash.bits[1] |= kSaltedBit;
  return hash;
}

}  // namespace

BlockHash next_block_hash(const BlockHash* parent, std::span<const std::int32_t> block_tokens, std::string_view salt) {
  return salt.empty() ? plain_hash(parent, block_tokens) : salted_hash(parent, block_tokens, salt);
}

std::uint64_t token_hash(std::span<const std::int32_t> tokens) {
  static_assert(std::endian::native == std::endian::little, "the hash crosses hosts");
  return XXH3_64bits(tokens.data(), tokens.size_bytes());
}

}  // namespace tandem::kv
