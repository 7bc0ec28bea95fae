// SPDX-License-Identifier: Apache-2.0
// Static partition of work between the threads of a team; never by timing.
#pragma once

#include <cstdint>

#include "kernels/thread_team.h"

namespace tandem::kernels::cpu {

struct Range {
  std::int64_t begin;
  std::int64_t end;
};

/// Part `index` of [0, count) cut into `parts` pieces that differ by one at most.
inline Range part_of(std::int64_t count, int index, int parts) {
  const std::int64_t size = count / parts;
  const std::int64_t rest = count % parts;
  const std::int64_t begin = index * size + (index < rest ? index : rest);
  return {begin, begin + size + (index < rest ? 1 : 0)};
}

/// What one thread does of work that is cut by ranks first: part `member` of `members` of ranks [first, first + count).
struct RankShare {
  int first;
  int count;
  int member;
  int members;
};

/// Each rank has threads of its own (so that its memory is touched by them alone) if they divide evenly; otherwise all
/// threads share the work of all ranks.
inline RankShare share_of_ranks(int thread, int threads, int ranks) {
  if (threads % ranks != 0) return {0, ranks, thread, threads};
  const int each = threads / ranks;
  return {thread / each, 1, thread % each, each};
}

/// Below this many elements the fork and join cost more than the work.
inline constexpr std::int64_t kInlineElements = 16 * 1024;

/// Calls body(begin, end) over [0, rows) on as many threads as `elements_per_row` makes worth it.
template <class Body>
void for_rows(ThreadTeam& team, std::int64_t rows, std::int64_t elements_per_row, const Body& body) {
  if (rows <= 0) return;
  if (team.size() == 1 || rows == 1 || rows * elements_per_row < kInlineElements) {
    body(std::int64_t{0}, rows);
    return;
  }
  team.run([&](int thread) {
    const Range range = part_of(rows, thread, team.size());
    if (range.begin < range.end) body(range.begin, range.end);
  });
}

}  // namespace tandem::kernels::cpu
