// SPDX-License-Identifier: Apache-2.0
#include "transfer/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace tandem::transfer {
namespace {

Status bad(std::string message) { return Status(Code::kInvalidArgument, std::move(message), Scope::kTransfer); }

/// Consecutive heads that one source rank gives.
struct HeadRun {
  std::int32_t rank = 0;
  std::int32_t source_head = 0;       // on the source rank
  std::int32_t destination_head = 0;  // on the destination rank
  std::int32_t count = 0;
};

Result<void> check_ids(std::span<const kv::BlockId> blocks, std::int32_t num_blocks, std::string_view side) {
  for (const kv::BlockId block : blocks) {
    if (block < 0 || block >= num_blocks) {
      return bad(fmt::format("{} block id {} is outside of 0..{}", side, block, num_blocks - 1));
    }
  }
  return {};
}

Result<void> check(const PlanInput& input) {
  const kv::Layout& to = input.destination;
  if (input.sources.empty()) return bad("a copy plan needs at least one source rank");
  for (const kv::Layout& from : input.sources) {
    if (from.num_layers != to.num_layers || from.head_dim != to.head_dim || from.total_kv_heads != to.total_kv_heads) {
      return bad(fmt::format("source has {} layers, {} KV heads, head dim {}; destination has {}, {}, {}",
                             from.num_layers, from.total_kv_heads, from.head_dim, to.num_layers, to.total_kv_heads,
                             to.head_dim));
    }
    if (from.block_size != input.sources[0].block_size || from.element != input.sources[0].element) {
      return bad("source ranks differ in block size or element type");
    }
    TANDEM_TRY(check_ids(input.source_blocks, from.num_blocks, "source"));
  }
  TANDEM_TRY(check_ids(input.destination_blocks, to.num_blocks, "destination"));
  if (input.first_token < 0 || input.end_token < input.first_token) {
    return bad(fmt::format("token range [{}, {}) is not a range", input.first_token, input.end_token));
  }
  const std::int64_t held = static_cast<std::int64_t>(input.source_blocks.size()) * input.sources[0].block_size;
  if (input.end_token > held) {
    return bad(fmt::format("token range ends at {}, but the source blocks hold {} tokens", input.end_token, held));
  }
  const std::int64_t base = input.first_token / to.block_size;
  const std::int64_t room = (base + static_cast<std::int64_t>(input.destination_blocks.size())) * to.block_size;
  if (input.end_token > room) {
    return bad(fmt::format("token range ends at {}, but the destination blocks end at {}", input.end_token, room));
  }
  return {};
}

/// Each destination head from the first source rank that has it, neighbours of one rank together.
Result<std::vector<HeadRun>> assign_heads(const PlanInput& input) {
  std::vector<HeadRun> runs;
  for (std::int32_t local = 0; local < input.destination.num_kv_heads; ++local) {
    const std::int32_t head = input.destination.first_kv_head + local;
    const auto owner = std::find_if(input.sources.begin(), input.sources.end(), [head](const kv::Layout& from) {
      return head >= from.first_kv_head && head < from.first_kv_head + from.num_kv_heads;
    });
    if (owner == input.sources.end()) return bad(fmt::format("no source rank holds KV head {}", head));
    const auto rank = static_cast<std::int32_t>(owner - input.sources.begin());
    const std::int32_t source_head = head - owner->first_kv_head;
    if (!runs.empty() && runs.back().rank == rank && runs.back().source_head + runs.back().count == source_head) {
      ++runs.back().count;
    } else {
      runs.push_back({rank, source_head, local, 1});
    }
  }
  return runs;
}

/// Tokens that lie in one block on both sides.
struct Segment {
  kv::BlockId source_block = 0;
  kv::BlockId destination_block = 0;
  std::int32_t source_token = 0;  // within the block
  std::int32_t destination_token = 0;
  std::int32_t count = 0;
};

std::vector<Segment> cut_tokens(const PlanInput& input) {
  const std::int64_t from_size = input.sources[0].block_size;
  const std::int64_t to_size = input.destination.block_size;
  const std::int64_t base = input.first_token / to_size;
  std::vector<Segment> segments;
  for (std::int64_t token = input.first_token; token < input.end_token;) {
    const std::int64_t next =
        std::min({input.end_token, (token / from_size + 1) * from_size, (token / to_size + 1) * to_size});
    segments.push_back({input.source_blocks[static_cast<std::size_t>(token / from_size)],
                        input.destination_blocks[static_cast<std::size_t>(token / to_size - base)],
                        static_cast<std::int32_t>(token % from_size), static_cast<std::int32_t>(token % to_size),
                        static_cast<std::int32_t>(next - token)});
    token = next;
  }
  return segments;
}

/// Appends runs, joining those that touch on both sides.
class Builder {
 public:
  explicit Builder(const PlanInput& input)
      : from_vector_(input.sources[0].token_bytes()), to_vector_(input.destination.token_bytes()) {}

  void add(const Copy& copy) {
    plan_.source_bytes += copy.length;
    if (!plan_.copies.empty()) {
      Copy& last = plan_.copies.back();
      if (last.source_rank == copy.source_rank && last.source_offset + last.length == copy.source_offset &&
          last.destination_offset + last.length / from_vector_ * to_vector_ == copy.destination_offset) {
        last.length += copy.length;
        return;
      }
    }
    plan_.copies.push_back(copy);
  }
  Plan take() {
    plan_.convert = from_vector_ != to_vector_;
    return std::move(plan_);
  }

 private:
  std::size_t from_vector_;  // bytes of one token of one head
  std::size_t to_vector_;
  Plan plan_;
};

}  // namespace

Result<Plan> make_plan(const PlanInput& input) {
  TANDEM_TRY(check(input));
  TANDEM_ASSIGN(const std::vector<HeadRun> heads, assign_heads(input));
  const std::vector<Segment> segments = cut_tokens(input);
  const kv::Layout& to = input.destination;
  Builder builder(input);
  for (std::int32_t layer = 0; layer < to.num_layers; ++layer) {
    for (const Segment& segment : segments) {
      for (int k_or_v = 0; k_or_v < 2; ++k_or_v) {
        for (const HeadRun& run : heads) {
          const kv::Layout& from = input.sources[static_cast<std::size_t>(run.rank)];
          for (std::int32_t head = 0; head < run.count; ++head) {
            builder.add({run.rank, layer, k_or_v,
                         from.offset(layer, segment.source_block, k_or_v, run.source_head + head, segment.source_token),
                         to.offset(layer, segment.destination_block, k_or_v, run.destination_head + head,
                                   segment.destination_token),
                         static_cast<std::size_t>(segment.count) * from.token_bytes()});
          }
        }
      }
    }
  }
  return builder.take();
}

}  // namespace tandem::transfer
