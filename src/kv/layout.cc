// SPDX-License-Identifier: Apache-2.0
#include "kv/layout.h"

#include <fmt/format.h>

namespace tandem::kv {

std::size_t vector_bytes(ElementType type, std::int32_t head_dim) {
  const auto dim = static_cast<std::size_t>(head_dim);
  switch (type) {
    case ElementType::kBf16:
      return 2 * dim;
    case ElementType::kF32:
      return 4 * dim;
    case ElementType::kInt8:
      return dim + sizeof(float);
  }
  TANDEM_ASSERT(false, "unknown KV element type");
  return 0;
}

std::string_view element_name(ElementType type) {
  switch (type) {
    case ElementType::kBf16:
      return "bfloat16";
    case ElementType::kF32:
      return "float32";
    case ElementType::kInt8:
      return "int8";
  }
  TANDEM_ASSERT(false, "unknown KV element type");
  return "";
}

std::size_t total_bytes(std::span<const Layout> ranks) {
  std::size_t bytes = 0;
  for (const Layout& layout : ranks) bytes += layout.total_bytes();
  return bytes;
}

Result<std::vector<Layout>> split_heads(const Layout& whole, std::int32_t num_heads, std::int32_t tp_size) {
  if (tp_size < 1 || num_heads % tp_size != 0) {
    return Status(
        Code::kInvalidArgument,
        fmt::format("tensor parallel size {} does not divide the model's {} attention heads", tp_size, num_heads),
        Scope::kProcess);
  }
  const std::int32_t heads_per_rank = num_heads / tp_size;
  const std::int32_t group = num_heads / whole.total_kv_heads;  // query heads that read one KV head
  std::vector<Layout> ranks(static_cast<std::size_t>(tp_size), whole);
  for (std::int32_t rank = 0; rank < tp_size; ++rank) {
    Layout& layout = ranks[static_cast<std::size_t>(rank)];
    const std::int32_t first_head = rank * heads_per_rank;
    layout.first_kv_head = first_head / group;
    layout.num_kv_heads = (first_head + heads_per_rank - 1) / group - layout.first_kv_head + 1;
  }
  return ranks;
}

}  // namespace tandem::kv
