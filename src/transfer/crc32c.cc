// SPDX-License-Identifier: Apache-2.0
// The crc32 instruction has a latency of three cycles and a throughput of one, so three independent streams run side by
// side and are joined afterwards: the CRC of AB is shift(crc(A), bytes of B) ^ crc(B), and a shift by a fixed number of
// zero bytes is linear, hence four table look-ups.
#include "transfer/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace tandem::transfer {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78U;  // reflected 0x1edc6f41

using Table = std::array<std::uint32_t, 256>;

constexpr std::array<Table, 8> make_byte_tables() {
  std::array<Table, 8> tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1U) != 0 ? kPolynomial : 0U);
    tables[0][byte] = crc;
  }
  for (std::size_t k = 1; k < 8; ++k)
    for (std::size_t byte = 0; byte < 256; ++byte)
      tables[k][byte] = (tables[k - 1][byte] >> 8) ^ tables[0][tables[k - 1][byte] & 0xffU];
  return tables;
}
constexpr std::array<Table, 8> kBytes = make_byte_tables();

/// The state after the eight bytes of `word` (slicing by eight).
std::uint32_t step_word(std::uint32_t state, std::uint64_t word) {
  word ^= state;
  return kBytes[7][word & 0xffU] ^ kBytes[6][(word >> 8) & 0xffU] ^ kBytes[5][(word >> 16) & 0xffU] ^
         kBytes[4][(word >> 24) & 0xffU] ^ kBytes[3][(word >> 32) & 0xffU] ^ kBytes[2][(word >> 40) & 0xffU] ^
         kBytes[1][(word >> 48) & 0xffU] ^ kBytes[0][word >> 56];
}

std::uint32_t portable_state(const std::byte* at, std::size_t size, std::uint32_t state) {
  for (; size >= 8; size -= 8, at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, at, 8);
    state = step_word(state, word);
  }
  for (; size > 0; --size, ++at) state = (state >> 8) ^ kBytes[0][(state ^ static_cast<std::uint32_t>(*at)) & 0xffU];
  return state;
}

#if defined(__x86_64__)

/// Moves a state past a fixed number of zero bytes.
struct Shift {
  std::array<Table, 4> tables{};

  explicit Shift(std::size_t zero_bytes) {
    std::array<std::uint32_t, 32> moved{};  // where each single bit of the state ends up
    for (std::size_t bit = 0; bit < 32; ++bit) {
      std::uint32_t state = 1U << bit;
      for (std::size_t i = 0; i < zero_bytes; i += 8) state = step_word(state, 0);
      moved[bit] = state;
    }
    for (std::size_t k = 0; k < 4; ++k)
      for (std::size_t byte = 0; byte < 256; ++byte)
        for (std::size_t bit = 0; bit < 8; ++bit)
          if (((byte >> bit) & 1U) != 0) tables[k][byte] ^= moved[8 * k + bit];
  }
  std::uint32_t operator()(std::uint32_t state) const {
    return tables[0][state & 0xffU] ^ tables[1][(state >> 8) & 0xffU] ^ tables[2][(state >> 16) & 0xffU] ^
           tables[3][state >> 24];
  }
};

constexpr std::size_t kLong = 1024;  // bytes a stream, three streams at once
constexpr std::size_t kShort = 128;

/// Three streams of Bytes each, while three fit.
template <std::size_t Bytes>
__attribute__((target("sse4.2"))) void three_streams(const std::byte*& at, std::size_t& size, std::uint64_t& state) {
  static const Shift shift(Bytes);
  while (size >= 3 * Bytes) {
    std::uint64_t second = 0;
    std::uint64_t third = 0;
    for (std::size_t i = 0; i < Bytes; i += 8) {
      std::uint64_t a = 0;
      std::uint64_t b = 0;
      std::uint64_t c = 0;
      std::memcpy(&a, at + i, 8);
      std::memcpy(&b, at + Bytes + i, 8);
      std::memcpy(&c, at + 2 * Bytes + i, 8);
      state = _mm_crc32_u64(state, a);
      second = _mm_crc32_u64(second, b);
      third = _mm_crc32_u64(third, c);
    }
    state = shift(static_cast<std::uint32_t>(state)) ^ second;
    state = shift(static_cast<std::uint32_t>(state)) ^ third;
    at += 3 * Bytes;
    size -= 3 * Bytes;
  }
}

__attribute__((target("sse4.2"))) std::uint32_t hardware_state(const std::byte* at, std::size_t size,
                                                               std::uint32_t initial) {
  std::uint64_t state = initial;
  three_streams<kLong>(at, size, state);
  three_streams<kShort>(at, size, state);
  for (; size >= 8; size -= 8, at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, at, 8);
    state = _mm_crc32_u64(state, word);
  }
  auto narrow = static_cast<std::uint32_t>(state);
  for (; size > 0; --size, ++at) narrow = _mm_crc32_u8(narrow, static_cast<std::uint8_t>(*at));
  return narrow;
}

bool has_hardware() {
  static const bool has = __builtin_cpu_supports("sse4.2") != 0;
  return has;
}

#endif

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t previous) {
#if defined(__x86_64__)
  if (has_hardware()) return ~hardware_state(data.data(), data.size(), ~previous);
#endif
  return crc32c_portable(data, previous);
}

std::uint32_t crc32c_portable(std::span<const std::byte> data, std::uint32_t previous) {
  return ~portable_state(data.data(), data.size(), ~previous);
}

}  // namespace tandem::transfer
