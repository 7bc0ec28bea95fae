// SPDX-License-Identifier: Apache-2.0
// The crc32 instruction (of SSE4.2 and of arm64) has a latency of three cycles and a throughput of one, so three
// independent streams run side by side and are joined afterwards: the CRC of AB is shift(crc(A), bytes of B) ^ crc(B),
// and a shift by a fixed number of zero bytes is linear, hence four table look-ups.
//
// With AVX-512 and VPCLMULQDQ the message is folded instead (Gopal et al., "Fast CRC Computation for Generic
// Polynomials Using PCLMULQDQ Instruction", 2009): 256 bytes at a time are multiplied by x^2048 modulo the polynomial
// and added to the next 256. The last 16 bytes go through the crc32 instruction, which makes a final reduction
// needless.
#include "transfer/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
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
#define TANDEM_CRC __attribute__((target("sse4.2")))
using State = std::uint64_t;  // what the instruction keeps it in
TANDEM_CRC inline State add_word(State state, std::uint64_t word) { return _mm_crc32_u64(state, word); }
TANDEM_CRC inline std::uint32_t add_byte(std::uint32_t state, std::byte byte) {
  return _mm_crc32_u8(state, static_cast<std::uint8_t>(byte));
}
bool has_hardware() {
  static const bool has = __builtin_cpu_supports("sse4.2") != 0;
  return has;
}
#elif defined(__aarch64__)
#define TANDEM_CRC __attribute__((target("+crc")))
using State = std::uint32_t;
TANDEM_CRC inline State add_word(State state, std::uint64_t word) { return __crc32cd(state, word); }
TANDEM_CRC inline State add_byte(State state, std::byte byte) {
  return __crc32cb(state, static_cast<std::uint8_t>(byte));
}
bool has_hardware() {
  static const bool has = (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
  return has;
}
#endif

#if defined(TANDEM_CRC)

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
TANDEM_CRC void three_streams(const std::byte*& at, std::size_t& size, State& state) {
  static const Shift shift(Bytes);
  while (size >= 3 * Bytes) {
    State second = 0;
    State third = 0;
    for (std::size_t i = 0; i < Bytes; i += 8) {
      std::uint64_t a = 0;
      std::uint64_t b = 0;
      std::uint64_t c = 0;
      std::memcpy(&a, at + i, 8);
      std::memcpy(&b, at + Bytes + i, 8);
      std::memcpy(&c, at + 2 * Bytes + i, 8);
      state = add_word(state, a);
      second = add_word(second, b);
      third = add_word(third, c);
    }
    state = shift(static_cast<std::uint32_t>(state)) ^ second;
    state = shift(static_cast<std::uint32_t>(state)) ^ third;
    at += 3 * Bytes;
    size -= 3 * Bytes;
  }
}

TANDEM_CRC std::uint32_t hardware_state(const std::byte* at, std::size_t size, std::uint32_t initial) {
  State state = initial;
  three_streams<kLong>(at, size, state);
  three_streams<kShort>(at, size, state);
  for (; size >= 8; size -= 8, at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, at, 8);
    state = add_word(state, word);
  }
  auto narrow = static_cast<std::uint32_t>(state);
  for (; size > 0; --size, ++at) narrow = add_byte(narrow, *at);
  return narrow;
}

#endif

#if defined(__x86_64__)

/// x^n modulo the polynomial, reflected, where a 64-bit operand of clmul wants it.
constexpr std::int64_t power_of_x(int n) {
  std::uint32_t value = 0x80000000U;
  for (; n > 0; --n) value = (value >> 1) ^ ((value & 1U) != 0 ? kPolynomial : 0U);
  return static_cast<std::int64_t>(std::uint64_t{value} << 32);
}

#define TANDEM_FOLDS __attribute__((target("avx512f,vpclmulqdq,pclmul,sse4.2")))

/// Moves each 128-bit lane of `from` `Bits` further on and adds it to `to`. The product of two reflected operands
/// stands one bit too low, hence the - 1.
template <int Bits>
TANDEM_FOLDS inline __m512i fold(__m512i from, __m512i to) {
  constexpr std::int64_t kLow = power_of_x(Bits + 64 - 1);
  constexpr std::int64_t kHigh = power_of_x(Bits - 1);
  const __m512i by = _mm512_set4_epi64(kHigh, kLow, kHigh, kLow);
  const __m512i low = _mm512_clmulepi64_epi128(from, by, 0x00);
  const __m512i high = _mm512_clmulepi64_epi128(from, by, 0x11);
  constexpr int kXorOfThree = 0x96;
  return _mm512_ternarylogic_epi64(low, high, to, kXorOfThree);
}

template <int Bits>
TANDEM_FOLDS inline __m128i fold(__m128i from, __m128i to) {
  const __m128i by = _mm_set_epi64x(power_of_x(Bits - 1), power_of_x(Bits + 64 - 1));
  return _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(from, by, 0x00), _mm_clmulepi64_si128(from, by, 0x11)), to);
}

constexpr std::size_t kFold = 256;  // bytes under way: enough to hide the latency of clmul

/// At least kFold bytes; takes a multiple of it. If Copies, stores them at `to`, which is aligned to 64 bytes.
template <bool Copies>
TANDEM_FOLDS void folded(const std::byte*& at, std::size_t& size, std::uint32_t& state, std::byte* to = nullptr) {
  const auto load = [&](std::size_t lane) TANDEM_FOLDS {
    const __m512i bytes = _mm512_loadu_si512(at + 64 * lane);
    if constexpr (Copies) _mm512_stream_si512(reinterpret_cast<__m512i*>(to + 64 * lane), bytes);
    return bytes;
  };
  const auto next = [&] {
    at += kFold;
    size -= kFold;
    if constexpr (Copies) to += kFold;
  };
  // The state is added to the first four bytes.
  __m512i a = _mm512_xor_si512(load(0), _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(state))));
  __m512i b = load(1);
  __m512i c = load(2);
  __m512i d = load(3);
  for (next(); size >= kFold; next()) {
    a = fold<8 * kFold>(a, load(0));
    b = fold<8 * kFold>(b, load(1));
    c = fold<8 * kFold>(c, load(2));
    d = fold<8 * kFold>(d, load(3));
  }
  a = fold<512>(fold<512>(fold<512>(a, b), c), d);
  alignas(64) __m128i lanes[4];
  _mm512_store_si512(lanes, a);
  const __m128i rest = fold<128>(fold<128>(fold<128>(lanes[0], lanes[1]), lanes[2]), lanes[3]);
  const std::uint64_t low = _mm_crc32_u64(0, static_cast<std::uint64_t>(_mm_extract_epi64(rest, 0)));
  state = static_cast<std::uint32_t>(_mm_crc32_u64(low, static_cast<std::uint64_t>(_mm_extract_epi64(rest, 1))));
}

bool has_folds() {
  static const bool has =
      has_hardware() && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("vpclmulqdq") != 0;
  return has;
}

#endif

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t previous) {
#if defined(TANDEM_CRC)
  if (has_hardware()) {
    const std::byte* at = data.data();
    std::size_t size = data.size();
    std::uint32_t state = ~previous;
#if defined(__x86_64__)
    if (size >= kFold && has_folds()) folded<false>(at, size, state);
#endif
    return ~hardware_state(at, size, state);
  }
#endif
  return crc32c_portable(data, previous);
}

std::uint32_t copy_crc32c(std::byte* to, std::span<const std::byte> from, std::uint32_t previous) {
  std::uint32_t crc = previous;
#if defined(__x86_64__)
  if (from.size() >= kFold && reinterpret_cast<std::uintptr_t>(to) % 64 == 0 && has_folds()) {
    const std::byte* at = from.data();
    std::size_t left = from.size();
    std::uint32_t state = ~previous;
    folded<true>(at, left, state, to);
    crc = ~state;
    to += from.size() - left;
    from = from.last(left);
  }
#endif
  // What was stored is summed, not what was read: the source may change under a reader whose lease has ended.
  if (!from.empty()) std::memcpy(to, from.data(), from.size());
  return crc32c({to, from.size()}, crc);
}

void copies_visible() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

std::uint32_t crc32c_portable(std::span<const std::byte> data, std::uint32_t previous) {
  return ~portable_state(data.data(), data.size(), ~previous);
}

}  // namespace tandem::transfer
