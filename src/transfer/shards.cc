// SPDX-License-Identifier: Apache-2.0
#include "transfer/shards.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>

namespace tandem::transfer {
namespace {

/// Far beyond any memory, far from overflow.
constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 56;
constexpr std::int32_t kMaxHeads = 1 << 20;

Status bad(std::string message) { return Status(Code::kInvalidArgument, std::move(message), Scope::kTransfer); }

/// nullopt if a size is not positive or the product is too large.
std::optional<std::uint64_t> checked_bytes(const kv::Layout& layout) {
  if (layout.head_dim <= 0) return std::nullopt;
  std::uint64_t bytes = 2 * layout.token_bytes();
  for (const std::int32_t factor : {layout.num_layers, layout.num_blocks, layout.block_size, layout.num_kv_heads}) {
    if (factor <= 0 || __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(factor), &bytes)) return std::nullopt;
  }
  return bytes <= kMaxBytes ? std::optional(bytes) : std::nullopt;
}

bool same_shape(const kv::Layout& a, const kv::Layout& b) {
  return a.num_layers == b.num_layers && a.num_blocks == b.num_blocks && a.block_size == b.block_size &&
         a.total_kv_heads == b.total_kv_heads && a.head_dim == b.head_dim && a.element == b.element &&
         a.fingerprint == b.fingerprint;
}

}  // namespace

Status check_ranks(std::span<const kv::Layout> ranks) {
  if (ranks.empty() || ranks.size() > kMaxRanks) {
    return bad(fmt::format("{} ranks, expected 1 to {}", ranks.size(), kMaxRanks));
  }
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const kv::Layout& layout = ranks[i];
    const std::optional<std::uint64_t> bytes = checked_bytes(layout);
    if (!bytes || layout.total_kv_heads > kMaxHeads || layout.first_kv_head < 0 ||
        layout.num_kv_heads > layout.total_kv_heads ||
        layout.first_kv_head > layout.total_kv_heads - layout.num_kv_heads) {
      return bad(fmt::format("rank {} has an impossible KV layout", i));
    }
    if (!same_shape(layout, ranks.front())) return bad(fmt::format("rank {} differs in shape from rank 0", i));
    if (layout.base < end || layout.base > kMaxBytes) {
      return bad(fmt::format("the memory of rank {} begins at {}, within another rank's", i, layout.base));
    }
    end = layout.base + *bytes;
  }
  std::vector<bool> held(static_cast<std::size_t>(ranks.front().total_kv_heads));
  for (const kv::Layout& layout : ranks) {
    for (std::int32_t i = 0; i < layout.num_kv_heads; ++i) {
      held[static_cast<std::size_t>(layout.first_kv_head + i)] = true;
    }
  }
  for (std::size_t head = 0; head < held.size(); ++head) {
    if (!held[head]) return bad(fmt::format("no rank holds KV head {} of {}", head, held.size()));
  }
  return {};
}

Shards::Shards(std::vector<kv::Layout> ranks) : ranks_(std::move(ranks)) {
  TANDEM_ASSERT(check_ranks(ranks_).ok(), "ranks are checked where they come from");
  std::vector<std::vector<Holder>> by_head(static_cast<std::size_t>(num_heads()));
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    for (std::int32_t head = 0; head < ranks_[rank].num_kv_heads; ++head) {
      by_head[static_cast<std::size_t>(ranks_[rank].first_kv_head + head)].push_back(
          {static_cast<std::uint32_t>(rank), head});
    }
  }
  for (const std::vector<Holder>& holders : by_head) {
    first_holder_.push_back(holders_.size());
    holders_.insert(holders_.end(), holders.begin(), holders.end());
  }
  first_holder_.push_back(holders_.size());
}

}  // namespace tandem::transfer
