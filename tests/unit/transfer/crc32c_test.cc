// SPDX-License-Identifier: Apache-2.0
// CRC32C against published values, and the fast form against the table form at all lengths and alignments.
#include "transfer/crc32c.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string_view>
#include <vector>

namespace tandem::transfer {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

std::vector<std::byte> random_bytes(std::size_t size) {
  std::mt19937 random(7);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST(Crc32cTest, PublishedValues) {
  EXPECT_EQ(crc32c(bytes_of("123456789")), 0xe3069283U);  // the check value of the catalogue
  EXPECT_EQ(crc32c({}), 0U);
  // RFC 3720, B.4
  std::vector<std::byte> block(32, std::byte{0});
  EXPECT_EQ(crc32c(block), 0x8a9136aaU);
  block.assign(32, std::byte{0xff});
  EXPECT_EQ(crc32c(block), 0x62a8ab43U);
  for (std::size_t i = 0; i < 32; ++i) block[i] = static_cast<std::byte>(i);
  EXPECT_EQ(crc32c(block), 0x46dd794eU);
}

TEST(Crc32cTest, FastAndPortableFormsAgree) {
  const std::vector<std::byte> bytes = random_bytes(20'000);
  for (std::size_t size = 0; size < 9'000; size += size < 800 ? 1 : 97) {
    for (const std::size_t start : {0, 1, 7}) {
      const std::span<const std::byte> part(bytes.data() + start, size);
      ASSERT_EQ(crc32c(part, 0x1234), crc32c_portable(part, 0x1234)) << size << " from " << start;
    }
  }
}

TEST(Crc32cTest, CopyingGivesTheSameSumAndTheBytes) {
  const std::vector<std::byte> bytes = random_bytes(20'000);
  for (std::size_t size = 0; size < 9'000; size += size < 800 ? 1 : 97) {
    for (const std::size_t shift : {0, 8, 64}) {
      alignas(64) std::byte room[10'000];
      std::memset(room, 0x55, sizeof room);
      const std::span<const std::byte> part(bytes.data() + shift + 3, size);
      ASSERT_EQ(copy_crc32c(room + shift, part, 0x1234), crc32c_portable(part, 0x1234)) << size << " to " << shift;
      copies_visible();
      ASSERT_EQ(std::memcmp(room + shift, part.data(), size), 0) << size << " to " << shift;
      ASSERT_TRUE(size + shift == sizeof room || room[shift + size] == std::byte{0x55}) << "wrote too much";
      ASSERT_TRUE(shift == 0 || room[shift - 1] == std::byte{0x55}) << "wrote before";
    }
  }
}

TEST(Crc32cTest, PartsChain) {
  const std::vector<std::byte> bytes = random_bytes(10'000);
  const std::uint32_t whole = crc32c(bytes);
  for (const std::size_t cut : {0, 1, 8, 383, 384, 3071, 3072, 9999, 10'000}) {
    const std::span<const std::byte> all(bytes);
    EXPECT_EQ(crc32c(all.subspan(cut), crc32c(all.first(cut))), whole) << cut;
  }
}

TEST(Crc32cTest, EverySingleBitFlipShows) {
  std::vector<std::byte> bytes = random_bytes(512);
  const std::uint32_t before = crc32c(bytes);
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    const auto mask = static_cast<std::byte>(1U << (bit % 8));
    bytes[bit / 8] ^= mask;
    ASSERT_NE(crc32c(bytes), before) << bit;
    bytes[bit / 8] ^= mask;
  }
}

}  // namespace
}  // namespace tandem::transfer
