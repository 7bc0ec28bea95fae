// SPDX-License-Identifier: Apache-2.0
#include "transfer/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

namespace tandem::transfer {
namespace {

Status bad(std::string message) { return Status(Code::kInvalidArgument, std::move(message), Scope::kTransfer); }

Result<void> check_blocks(std::span<const kv::BlockId> blocks, const kv::Layout& layout, const Extent& extent,
                          std::string_view side) {
  const BlockSpan needed = blocks_of(extent, layout.block_size);
  if (std::ssize(blocks) < needed.count) {
    return bad(fmt::format("{} {} blocks of {} tokens for tokens [{}, {}), {} are needed", blocks.size(), side,
                           layout.block_size, extent.first_token, extent.end_token, needed.count));
  }
  for (const kv::BlockId block : blocks) {
    if (block < 0 || block >= layout.num_blocks) {
      return bad(fmt::format("{} block id {} is outside of 0..{}", side, block, layout.num_blocks - 1));
    }
  }
  return {};
}

Result<void> check(const PlanInput& input) {
  const kv::Layout& from = input.source.common();
  const kv::Layout& to = input.destination.common();
  const Extent& extent = input.extent;
  if (from.head_dim != to.head_dim || from.total_kv_heads != to.total_kv_heads || from.element != to.element) {
    return bad(fmt::format("source has {} KV heads of {} x {}; destination has {} of {} x {}", from.total_kv_heads,
                           from.head_dim, kv::element_name(from.element), to.total_kv_heads, to.head_dim,
                           kv::element_name(to.element)));
  }
  if (extent.first_token < 0 || extent.end_token < extent.first_token) {
    return bad(fmt::format("token range [{}, {}) is not a range", extent.first_token, extent.end_token));
  }
  if (extent.first_layer < input.destination_first_layer || input.destination_first_layer < 0 ||
      extent.end_layer < extent.first_layer || extent.end_layer > from.num_layers ||
      extent.end_layer - input.destination_first_layer > to.num_layers) {
    return bad(fmt::format("layers [{}, {}) do not fit: the source has {}, the destination {} from {} on",
                           extent.first_layer, extent.end_layer, from.num_layers, to.num_layers,
                           input.destination_first_layer));
  }
  TANDEM_TRY(check_blocks(input.source_blocks, from, extent, "source"));
  return check_blocks(input.destination_blocks, to, extent, "destination");
}

/// Tokens that lie in one block on both sides.
struct Segment {
  std::int64_t owner_index = 0;  ///< of the source's block in the prompt
  kv::BlockId source_block = 0;
  kv::BlockId destination_block = 0;
  std::int32_t source_token = 0;  // within the block
  std::int32_t destination_token = 0;
  std::int32_t count = 0;
};

std::vector<Segment> cut_tokens(const PlanInput& input) {
  const std::int64_t from_size = input.source.common().block_size;
  const std::int64_t to_size = input.destination.common().block_size;
  const std::int64_t from_base = input.extent.first_token / from_size;
  const std::int64_t to_base = input.extent.first_token / to_size;
  std::vector<Segment> segments;
  for (std::int64_t token = input.extent.first_token; token < input.extent.end_token;) {
    const std::int64_t next =
        std::min({input.extent.end_token, (token / from_size + 1) * from_size, (token / to_size + 1) * to_size});
    segments.push_back({token / from_size, input.source_blocks[static_cast<std::size_t>(token / from_size - from_base)],
                        input.destination_blocks[static_cast<std::size_t>(token / to_size - to_base)],
                        static_cast<std::int32_t>(token % from_size), static_cast<std::int32_t>(token % to_size),
                        static_cast<std::int32_t>(next - token)});
    token = next;
  }
  return segments;
}

/// Appends a run, joining it to the last one if they touch on both sides.
void add(Plan& plan, const Copy& copy) {
  plan.bytes += copy.length;
  if (!plan.copies.empty()) {
    Copy& last = plan.copies.back();
    if (last.source_offset + last.length == copy.source_offset &&
        last.destination_offset + last.length == copy.destination_offset) {
      last.length += copy.length;
      return;
    }
  }
  plan.copies.push_back(copy);
}

}  // namespace

BlockSpan blocks_of(const Extent& extent, std::int32_t block_size) {
  if (extent.end_token <= extent.first_token) return {extent.first_token / block_size, 0};
  const std::int64_t first = extent.first_token / block_size;
  return {first, (extent.end_token - 1) / block_size - first + 1};
}

Result<Plan> make_plan(const PlanInput& input) {
  TANDEM_TRY(check(input));
  const std::vector<Segment> segments = cut_tokens(input);
  const std::size_t token_bytes = input.source.common().token_bytes();
  Plan plan;
  for (std::int32_t layer = input.extent.first_layer; layer < input.extent.end_layer; ++layer) {
    const std::int32_t to_layer = layer - input.destination_first_layer;
    for (auto first = segments.begin(); first != segments.end();) {
      const auto end = std::find_if(first, segments.end(),
                                    [&](const Segment& segment) { return segment.owner_index != first->owner_index; });
      for (int k_or_v = 0; k_or_v < 2; ++k_or_v) {
        for (std::int32_t head = 0; head < input.source.num_heads(); ++head) {
          for (auto segment = first; segment != end; ++segment) {
            add(plan, {input.source.offset(input.source.holders(head).front(), layer, segment->source_block, k_or_v,
                                           segment->source_token),
                       input.destination.offset(input.destination.holders(head).front(), to_layer,
                                                segment->destination_block, k_or_v, segment->destination_token),
                       static_cast<std::size_t>(segment->count) * token_bytes});
          }
          plan.piece_ends.push_back(plan.bytes);
        }
      }
      first = end;
    }
  }
  return plan;
}

}  // namespace tandem::transfer
