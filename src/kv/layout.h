// SPDX-License-Identifier: Apache-2.0
// Geometry of a rank's KV memory: [layer][block][K|V][kv head][token][dim]. A range of heads of a block is contiguous,
// so that ranks of different tensor-parallel sizes exchange runs, not elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tandem::kv {

using BlockId = std::int32_t;

enum class ElementType : std::uint8_t {
  kBf16,
  kF32,
  kInt8,  ///< one float32 scale a token and head, right behind its head_dim values
};
std::string_view element_name(ElementType type);  ///< "bfloat16", "float32", "int8"
/// Bytes of one token's K or V vector of one head, its scale included.
std::size_t vector_bytes(ElementType type, std::int32_t head_dim);

/// What a rank publishes of its KV memory. Plain values; two instances compare theirs in the handshake.
struct Layout {
  std::int32_t num_layers = 0;
  std::int32_t num_blocks = 0;
  std::int32_t block_size = 0;      ///< tokens in a block
  std::int32_t total_kv_heads = 0;  ///< of the model
  std::int32_t first_kv_head = 0;   ///< this rank holds heads [first, first + num)
  std::int32_t num_kv_heads = 0;
  std::int32_t head_dim = 0;
  ElementType element = ElementType::kBf16;
  /// Byte at which this rank's region begins in the memory of its process (CacheMemory), which all ranks share.
  std::size_t base = 0;
  /// Identity of what the numbers mean: weights, architecture, RoPE settings, compute type. Equal or no exchange.
  std::string fingerprint;

  friend bool operator==(const Layout&, const Layout&) = default;

  std::size_t token_bytes() const { return vector_bytes(element, head_dim); }
  std::size_t head_bytes() const { return static_cast<std::size_t>(block_size) * token_bytes(); }
  std::size_t kv_bytes() const { return static_cast<std::size_t>(num_kv_heads) * head_bytes(); }
  std::size_t block_bytes() const { return 2 * kv_bytes(); }
  std::size_t layer_bytes() const { return static_cast<std::size_t>(num_blocks) * block_bytes(); }
  std::size_t total_bytes() const { return static_cast<std::size_t>(num_layers) * layer_bytes(); }
  /// Bytes of one token over all layers, K and V, on this rank.
  std::size_t bytes_per_token() const {
    return 2 * static_cast<std::size_t>(num_layers) * static_cast<std::size_t>(num_kv_heads) * token_bytes();
  }
  /// Byte offset of (layer, block, k_or_v, head on this rank, token).
  std::size_t offset(std::int32_t layer, BlockId block, int k_or_v, std::int32_t head, std::int32_t token) const {
    return base + static_cast<std::size_t>(layer) * layer_bytes() + static_cast<std::size_t>(block) * block_bytes() +
           static_cast<std::size_t>(k_or_v) * kv_bytes() + static_cast<std::size_t>(head) * head_bytes() +
           static_cast<std::size_t>(token) * token_bytes();
  }
};

/// Bytes of all ranks together.
std::size_t total_bytes(std::span<const Layout> ranks);

/// Splits a model's KV (`whole`: all heads, base 0) over `tp_size` ranks. Rank r computes query heads
/// [r * num_heads / tp_size, (r + 1) * num_heads / tp_size) and holds every KV head that those read: KV heads are split
/// where they can be, and replicated where ranks share one. An error if the query heads cannot be split evenly.
Result<std::vector<Layout>> split_heads(const Layout& whole, std::int32_t num_heads, std::int32_t tp_size);

}  // namespace tandem::kv
