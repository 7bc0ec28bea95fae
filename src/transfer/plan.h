// SPDX-License-Identifier: Apache-2.0
// Which bytes go where: a pure function of the owners' layouts, the reader's layout, two block lists and a token range.
// General on purpose: tensor-parallel sizes need not divide each other, heads may be replicated on the source side, and
// block sizes may differ. The transports only ever see the resulting list.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "kv/layout.h"

namespace tandem::transfer {

/// One contiguous run. Offsets are bytes into the rank's KV memory.
struct Copy {
  std::int32_t source_rank = 0;  ///< index into PlanInput::sources
  std::int32_t layer = 0;        ///< of the run's first byte
  std::int32_t k_or_v = 0;       ///< of the run's first byte; 0: K, 1: V
  std::uint64_t source_offset = 0;
  std::uint64_t destination_offset = 0;
  std::uint64_t length = 0;  ///< bytes on the source side
  friend bool operator==(const Copy&, const Copy&) = default;
};

struct PlanInput {
  /// Every rank of the owner; together they hold each of the reader's heads at least once.
  std::span<const kv::Layout> sources;
  kv::Layout destination;
  /// Block i holds tokens [i * source block size, ...): the whole prompt, the same ids on every source rank.
  std::span<const kv::BlockId> source_blocks;
  /// Block j holds tokens from (first_token / destination block size + j) * destination block size on.
  std::span<const kv::BlockId> destination_blocks;
  std::int64_t first_token = 0;
  std::int64_t end_token = 0;  ///< one past the last
};

struct Plan {
  /// In order of layer, then token, K before V, then head; neighbours that touch on both sides are one run.
  std::vector<Copy> copies;
  std::uint64_t source_bytes = 0;
  /// The element types differ: a run of length n lands on n * (destination size / source size) bytes, converted.
  bool convert = false;
};

/// An error if the layouts describe different models, a head is nowhere, a block id is outside of its memory, or a list
/// is too short for the range.
Result<Plan> make_plan(const PlanInput& input);

}  // namespace tandem::transfer
