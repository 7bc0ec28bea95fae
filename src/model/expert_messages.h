// SPDX-License-Identifier: Apache-2.0
// What the processes of an instance say to each other in a layer with experts. In the dispatch round a process sends
// each other one the inputs of the tokens that take experts there, each token's once, and which experts they take; in
// the combine round it gets back one result row for each (token, expert). Rows are float32, so that it changes no bit
// where an expert is. Numbers are little-endian, as on both machines we build for.
//
//   header   u64 model, u32 round, u32 state (0 good, 1 failed), u32 rows, u32 pairs
//   dispatch header; pairs * {u32 row, u32 expert}, ascending; rows * hidden floats
//   combine  header with rows = pairs; rows * hidden floats, in the order of the pairs asked for
//   failed   (either round) header with rows = pairs = 0; why, as text
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "comm/group.h"
#include "model/expert_placement.h"

namespace tandem::model {

/// What must be equal on both sides. Processes that run different models, placements or steps find it out here.
struct RoundId {
  std::uint64_t model = 0;
  std::uint32_t round = 0;  ///< 2 * layer, and 1 more for combine
};

struct TokenExpert {
  std::uint32_t row = 0;  ///< of the message
  std::uint32_t expert = 0;
  bool operator==(const TokenExpert&) const = default;
};

/// A dispatch as it came. `values` is rows * hidden floats, perhaps unaligned, and lives as long as the message.
struct Dispatch {
  std::int64_t rows = 0;
  std::vector<TokenExpert> pairs;
  comm::Bytes values;
};

using Message = std::vector<std::byte>;

/// Both write the head of a message whose floats the caller appends with append_row().
void write_dispatch_head(const RoundId& id, std::uint32_t rows, std::span<const TokenExpert> pairs, Message& out);
void write_combine_head(const RoundId& id, std::uint32_t rows, Message& out);
void append_row(const float* row, std::int64_t hidden, Message& out);
void write_failure(const RoundId& id, std::string_view why, Message& out);

/// A message is what another process sent: every number is checked. `own`: the experts that may be asked for.
Result<Dispatch> read_dispatch(comm::Bytes message, const RoundId& id, std::int64_t hidden, const ExpertRange& own);
/// The floats of `rows` rows, perhaps unaligned. An error may be the sender's own.
Result<comm::Bytes> read_combine(comm::Bytes message, const RoundId& id, std::int64_t hidden, std::size_t rows);

}  // namespace tandem::model
