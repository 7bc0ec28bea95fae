// SPDX-License-Identifier: Apache-2.0
// CRC32C (Castagnoli, reflected, as iSCSI and ext4 use it): guards every piece of KV from the rank that wrote it to the
// rank that reads it. VPCLMULQDQ, SSE4.2 or arm64's CRC32 where the CPU has it, tables elsewhere; all give the same
// numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tandem::transfer {

/// CRC of `data` following bytes whose CRC is `previous` (0: none): crc32c(b, crc32c(a)) == crc32c(ab). Thread-safe.
std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t previous = 0);

/// Copies `from` to `to` and gives the CRC of what it stored, as crc32c(from, previous). Past the caches where the CPU
/// can (AVX-512, `to` aligned to 64 bytes): KV is more than they hold, and memory need not be read before it is
/// overwritten. Then other threads must not read `to` before the writer has called copies_visible().
std::uint32_t copy_crc32c(std::byte* to, std::span<const std::byte> from, std::uint32_t previous = 0);
void copies_visible();

/// The table-driven form that other CPUs get; tests compare it with crc32c().
std::uint32_t crc32c_portable(std::span<const std::byte> data, std::uint32_t previous = 0);

}  // namespace tandem::transfer
