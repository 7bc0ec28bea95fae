// SPDX-License-Identifier: Apache-2.0
// Random numbers as a pure function of (seed, position): no state moves with a request, so a token is the same wherever
// and whenever it is drawn (another batch, another decoder, after preemption). The generator is Philox4x32-10
// (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"): key = seed, counter = position.
#pragma once

#include <array>
#include <cstdint>

namespace tandem::worker {

/// Ten rounds over a 128-bit counter (little-endian words) with a 64-bit key.
constexpr std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter, std::uint64_t key) {
  auto key0 = static_cast<std::uint32_t>(key);
  auto key1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53U} * counter[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57U} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key0, static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key1, static_cast<std::uint32_t>(product0)};
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  return counter;
}

/// Uniform in [0, 1) with 53 bits, for output token number `position` of a request with this seed.
constexpr double uniform(std::uint64_t seed, std::uint64_t position) {
  const auto words =
      philox4x32({static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(position >> 32), 0, 0}, seed);
  const std::uint64_t bits = (std::uint64_t{words[1]} << 32) | words[0];
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

}  // namespace tandem::worker
