// SPDX-License-Identifier: Apache-2.0
// One element type of KV into another: what an instance that stores another type would have written, had it been given
// the stored values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kv/layout.h"

namespace tandem::kv {

/// Converts `count` K or V vectors of `head_dim` elements that lie one behind the other (vector_bytes() apart on each
/// side; no alignment is needed). BF16 and int8 to FP32 are exact products; to BF16 rounds to nearest even; to int8 has
/// one scale a vector (base/quantise.h). The ranges must not overlap.
void convert_vectors(ElementType from, const std::byte* source, ElementType to, std::byte* destination,
                     std::size_t count, std::int32_t head_dim);

}  // namespace tandem::kv
