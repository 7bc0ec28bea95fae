// SPDX-License-Identifier: Apache-2.0
// Which bytes go where: a pure function of two processes' ranks, two block lists and a range of layers and tokens.
// Tensor-parallel sizes need not divide each other, heads may be replicated on either side, and block sizes may differ.
// Each head moves once, between the first ranks that hold it; the transports only ever see the resulting list.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "kv/layout.h"
#include "transfer/shards.h"

namespace tandem::transfer {

/// One contiguous run. Offsets are bytes into the memory of the owner's and of the reader's process.
struct Copy {
  std::uint64_t source_offset = 0;
  std::uint64_t destination_offset = 0;
  std::uint64_t length = 0;
  friend bool operator==(const Copy&, const Copy&) = default;
};

/// A part of a prompt's KV.
struct Extent {
  std::int32_t first_layer = 0;
  std::int32_t end_layer = 0;  ///< one past the last
  std::int64_t first_token = 0;
  std::int64_t end_token = 0;  ///< one past the last
  std::int32_t num_layers() const { return end_layer - first_layer; }
  std::int64_t num_tokens() const { return end_token - first_token; }
  friend bool operator==(const Extent&, const Extent&) = default;
};

/// Blocks of `block_size` tokens that an extent touches: it begins in block `first` of the prompt and needs `count`.
struct BlockSpan {
  std::int64_t first = 0;
  std::int64_t count = 0;
};
BlockSpan blocks_of(const Extent& extent, std::int32_t block_size);

struct PlanInput {
  const Shards& source;
  const Shards& destination;  ///< of the same element type
  /// The blocks that the extent touches on each side, in token order; the same ids on every rank.
  std::span<const kv::BlockId> source_blocks;
  std::span<const kv::BlockId> destination_blocks;
  Extent extent;
  /// The layer of the model that the destination's first one is: other than 0 for a buffer of a few layers.
  std::int32_t destination_first_layer = 0;
};

struct Plan {
  /// In order of layer, then block of the source, K before V, then head, then token; neighbours that touch on both
  /// sides are one run.
  std::vector<Copy> copies;
  /// The bytes of one piece that has a checksum (checksum.h) stand together: here is where each ends, in bytes of the
  /// copies laid end to end.
  std::vector<std::uint64_t> piece_ends;
  std::uint64_t bytes = 0;
};

/// An error if the two describe different models or element types, a block id is outside of its memory, or a list is
/// too short for the extent.
Result<Plan> make_plan(const PlanInput& input);

}  // namespace tandem::transfer
