// SPDX-License-Identifier: Apache-2.0
// What happens to KV once its checksums were found right: it goes where it is not yet, to the other ranks that hold the
// same head, and, if our element type is another one, out of the buffer it arrived in. A pure function; pool threads
// run it.
#pragma once

#include "transfer/checksum.h"

namespace tandem::transfer {

/// Copies or converts `extent` from where it arrived to every rank of `home` that holds a head of it. Both may be the
/// same memory: the first holders then have theirs already.
void spread(const KvView& arrived, const MutableKvView& home, const Extent& extent);

}  // namespace tandem::transfer
