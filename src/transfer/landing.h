// SPDX-License-Identifier: Apache-2.0
// What happens to KV between its arrival and its use: every checksum is compared over the bytes as they were on the
// owner, and only then they go where they are not yet: to the other ranks that hold the same head, and, if our element
// type is another one, out of the buffer they arrived in. Pure functions; pool threads run them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "transfer/checksum.h"

namespace tandem::transfer {

/// The first (layer, K|V, head) of `extent`, as an index in the order of piece_checksums(), whose sum is not the
/// expected one.
std::optional<std::size_t> first_mismatch(const KvView& arrived, const Extent& extent,
                                          std::span<const std::uint32_t> expected);

/// Copies or converts `extent` from where it arrived to every rank of `home` that holds a head of it. Both may be the
/// same memory: the first holders then have theirs already.
void spread(const KvView& arrived, const MutableKvView& home, const Extent& extent);

}  // namespace tandem::transfer
