// SPDX-License-Identifier: Apache-2.0
// Linear layers and the row-wise operations: who computes which rows and columns. Attention is in attention.cc.
#include "kernels/cpu/cpu_ops.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/quantise.h"
#include "base/status.h"
#include "kernels/cpu/packed_linear.h"
#include "kernels/cpu/partition.h"

namespace tandem::kernels::cpu {
namespace {

/// Rows that are multiplied before the next panel is taken: their activations stay in the second-level cache.
constexpr std::size_t kActivationBlockBytes = std::size_t{384} << 10;
/// Rows of one thread when rows are shared out too; a multiple of every register block.
constexpr std::int64_t kRowGrain = 24;
/// A product this small is done before another thread has woken up.
constexpr std::int64_t kInlineProducts = 128 * 1024;

struct Prepared {
  const std::byte* data;
  std::size_t stride;
  const float* scales;
};

/// An odd number of cache lines, so that the same column of many rows does not fall into one cache set.
std::size_t row_stride(std::size_t bytes) { return ((bytes + 63) / 64 | 1) * 64; }

std::size_t prepared_stride(const KernelTable& table, const CpuPackedLinear& weights) {
  const int element = weights.type() == WeightType::kF32    ? static_cast<int>(sizeof(float))
                      : weights.type() == WeightType::kInt8 ? table.int8_x_bytes
                                                            : table.bf16_x_bytes;
  return row_stride(static_cast<std::size_t>(weights.k_padded()) * static_cast<std::size_t>(element));
}

/// Rounds one row of activations to what the kernel of the weights' type multiplies.
void prepare_row(const KernelTable& table, const CpuPackedLinear& weights, const float* x, std::byte* out,
                 float* scale) {
  switch (weights.type()) {
    case WeightType::kF32:
      std::memcpy(out, x, static_cast<std::size_t>(weights.in_features()) * sizeof(float));
      break;
    case WeightType::kBf16:
      table.prepare_bf16(x, weights.in_features(), weights.k_padded(), out);
      break;
    case WeightType::kInt8:
      if (const auto& input = weights.static_input()) {
        const StaticQuantiser how{input->scale, input->offset, input->zero_point};
        table.prepare_static(x, weights.in_features(), weights.k_padded(), how, out, scale);
      } else {
        table.prepare_int8(x, weights.in_features(), weights.k_padded(), out, scale);
      }
      break;
  }
}

/// All rows of a layer's activations. Float32 is used in place.
Prepared prepare(ThreadTeam& team, const KernelTable& table, const CpuPackedLinear& weights, const float* x,
                 std::int64_t ldx, std::int64_t rows) {
  if (weights.type() == WeightType::kF32) {
    return {reinterpret_cast<const std::byte*>(x), static_cast<std::size_t>(ldx) * sizeof(float), nullptr};
  }
  const std::size_t stride = prepared_stride(table, weights);
  const auto count = static_cast<std::size_t>(rows);
  std::byte* data = team.scratch(count * stride + count * sizeof(float));
  auto* scales = reinterpret_cast<float*>(data + count * stride);
  for_rows(team, rows, weights.in_features(), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row)
      prepare_row(table, weights, x + row * ldx, data + static_cast<std::size_t>(row) * stride, scales + row);
  });
  return {data, stride, scales};
}

/// The part of the output that one thread computes.
struct Share {
  Range rows;
  Range panels;
};

/// Threads share the panels; where there are too few of them for even shares, they share the rows too.
Share share_of(std::int64_t rows, std::int64_t panels, int thread, int threads) {
  int row_parts = 1;
  while (threads % (row_parts * 2) == 0 && panels * row_parts < 8 * std::int64_t{threads} &&
         rows >= kRowGrain * 2 * row_parts) {
    row_parts *= 2;
  }
  const int panel_parts = threads / row_parts;
  const std::int64_t grains = (rows + kRowGrain - 1) / kRowGrain;
  Range row_range = part_of(grains, thread / panel_parts, row_parts);
  row_range.begin = std::min(row_range.begin * kRowGrain, rows);
  row_range.end = std::min(row_range.end * kRowGrain, rows);
  return {row_range, part_of(panels, thread % panel_parts, panel_parts)};
}

/// Rows that go through a panel before the next one is taken.
std::int64_t rows_of_a_block(std::size_t stride) {
  const auto fitting = static_cast<std::int64_t>(kActivationBlockBytes / std::max<std::size_t>(stride, 1));
  return std::max(kRowGrain, fitting / kRowGrain * kRowGrain);
}

/// All but rows and panels.
GemmArgs gemm_args(const CpuPackedLinear& weights, const Prepared& x, float* y, std::int64_t ldy) {
  GemmArgs args{};
  args.x_stride = x.stride;
  args.weights = weights.weights();
  args.k_groups = weights.k_padded() / k_group(weights.type());
  args.bias = weights.bias();
  args.w_scale = weights.scales();
  args.w_start = weights.starts();
  args.n = weights.out_features();
  args.y = y;
  args.ldy = ldy;
  return args;
}

void run_share(const KernelTable& table, WeightType type, GemmArgs args, const Prepared& x, const Share& share) {
  args.panel_begin = share.panels.begin;
  args.panel_end = share.panels.end;
  if (args.panel_begin >= args.panel_end) return;
  const std::int64_t block = rows_of_a_block(x.stride);
  float* y = args.y;
  for (std::int64_t row = share.rows.begin; row < share.rows.end; row += block) {
    args.rows = std::min(block, share.rows.end - row);
    args.x = x.data + static_cast<std::size_t>(row) * x.stride;
    args.x_scale = x.scales == nullptr ? nullptr : x.scales + row;
    args.y = y + row * args.ldy;
    switch (type) {
      case WeightType::kF32:
        table.gemm_f32(args);
        break;
      case WeightType::kBf16:
        table.gemm_bf16(args);
        break;
      case WeightType::kInt8:
        table.gemm_int8(args);
        break;
    }
  }
}

const CpuPackedLinear* own_weights(const PackedLinear* weights) {
  const auto* packed = dynamic_cast<const CpuPackedLinear*>(weights);
  TANDEM_ASSERT(packed != nullptr, "weights were packed by another device");
  return packed;
}

bool is_joined(const PackedLinear* weights) { return dynamic_cast<const JoinedLinear*>(weights) != nullptr; }

/// Rows of one group that go through its panels together. The panels of all pieces in a row are the work of a
/// grouped_linear(); a thread takes a stretch of it, whatever groups that touches.
struct Piece {
  const CpuPackedLinear* weights;
  Range rows;
  std::int64_t panel_cost;
  std::int64_t cost_before;  ///< of all pieces before this one
};

void cut_into_pieces(std::span<const RowGroup> groups, std::int64_t block, std::vector<Piece>& pieces) {
  // Reading a panel's weights takes as long as multiplying them with about this many rows.
  constexpr std::int64_t kRowsPerRead = 8;
  pieces.clear();
  std::int64_t first = 0;
  std::int64_t cost = 0;
  for (const RowGroup& group : groups) {
    const CpuPackedLinear* weights = own_weights(group.weights);
    for (std::int64_t row = 0; row < group.num_rows; row += block) {
      const std::int64_t rows = std::min(block, group.num_rows - row);
      pieces.push_back({weights, {first + row, first + row + rows}, rows + kRowsPerRead, cost});
      cost += (rows + kRowsPerRead) * weights->num_panels();
    }
    first += group.num_rows;
  }
}

/// The panels of a piece that begin in the costs [begin, end).
Range panels_between(const Piece& piece, std::int64_t begin, std::int64_t end) {
  const auto first_from = [&](std::int64_t cost) {
    const std::int64_t panel = (cost - piece.cost_before + piece.panel_cost - 1) / piece.panel_cost;
    return std::clamp<std::int64_t>(cost <= piece.cost_before ? 0 : panel, 0, piece.weights->num_panels());
  };
  return {first_from(begin), first_from(end)};
}

void store_vector(const KernelTable& table, const PagedKv& cache, const float* from, std::byte* to) {
  switch (cache.type) {
    case KvType::kBf16:
      table.store_bf16(from, cache.head_dim, to);
      break;
    case KvType::kF32:
      std::memcpy(to, from, static_cast<std::size_t>(cache.head_dim) * sizeof(float));
      break;
    case KvType::kInt8:
      quantise_vector(from, cache.head_dim, to);
      break;
  }
}

}  // namespace

std::unique_ptr<PackedLinear> CpuOps::pack_linear(ThreadTeam& team, WeightType type, std::int64_t out_features,
                                                  std::int64_t in_features, const RowReader& read_row,
                                                  const float* bias) const {
  auto packed = std::make_unique<CpuPackedLinear>(type, out_features, in_features, table_.int8_x_offset);
  packed->fill(team, read_row, bias);
  return packed;
}

std::unique_ptr<PackedLinear> CpuOps::pack_int8(ThreadTeam& team, std::int64_t out_features, std::int64_t in_features,
                                                const Int8Layer& layer) const {
  auto packed = std::make_unique<CpuPackedLinear>(WeightType::kInt8, out_features, in_features, table_.int8_x_offset);
  packed->fill(team, layer);
  return packed;
}

std::unique_ptr<PackedLinear> CpuOps::join(std::vector<std::unique_ptr<PackedLinear>> parts) const {
  TANDEM_ASSERT(!parts.empty(), "a joined layer needs parts");
  if (parts.size() == 1) return std::move(parts.front());
  for (const auto& part : parts)
    TANDEM_ASSERT(part->in_features() == parts.front()->in_features(), "joined layers have different inputs");
  return std::make_unique<JoinedLinear>(std::move(parts));
}

void CpuOps::linear(ThreadTeam& team, const PackedLinear& weights, const float* x, std::int64_t ldx, std::int64_t rows,
                    float* y, std::int64_t ldy, Epilogue epilogue) const {
  if (rows <= 0) return;
  if (const auto* joined = dynamic_cast<const JoinedLinear*>(&weights)) {
    for (const auto& part : joined->parts()) {
      linear(team, *part, x, ldx, rows, y, ldy, epilogue);
      y += part->out_features();
    }
    return;
  }
  const auto* packed = own_weights(&weights);
  const Prepared prepared = prepare(team, table_, *packed, x, ldx, rows);
  GemmArgs args = gemm_args(*packed, prepared, y, ldy);
  args.add = epilogue == Epilogue::kAdd;
  if (team.size() == 1 || rows * packed->k_padded() * packed->num_panels() * kPanel < kInlineProducts) {
    run_share(table_, packed->type(), args, prepared, {{0, rows}, {0, packed->num_panels()}});
    return;
  }
  team.run([&](int thread) {
    run_share(table_, packed->type(), args, prepared, share_of(rows, packed->num_panels(), thread, team.size()));
  });
}

void CpuOps::grouped_linear(ThreadTeam& team, std::span<const RowGroup> groups, const float* const* x, float* y,
                            std::int64_t ldy) const {
  if (std::any_of(groups.begin(), groups.end(), [](const RowGroup& group) { return is_joined(group.weights); }))
    return grouped_joined(team, groups, x, y, ldy);
  std::size_t stride = 0;
  std::int64_t rows = 0;
  // Kept from call to call by the thread that runs the kernels, so that steady decoding allocates nothing. The team's
  // threads reach them through these references.
  thread_local std::vector<const CpuPackedLinear*> kept_row_weights;
  thread_local std::vector<Piece> kept_pieces;
  std::vector<const CpuPackedLinear*>& row_weights = kept_row_weights;  // of each row
  std::vector<Piece>& pieces = kept_pieces;
  row_weights.clear();
  for (const RowGroup& group : groups) {
    const CpuPackedLinear* weights = own_weights(group.weights);
    TANDEM_ASSERT(weights->in_features() == groups[0].weights->in_features() &&
                      weights->out_features() == groups[0].weights->out_features(),
                  "the groups of a grouped linear layer have one shape");
    stride = std::max(stride, prepared_stride(table_, *weights));
    rows += group.num_rows;
    row_weights.insert(row_weights.end(), static_cast<std::size_t>(group.num_rows), weights);
  }
  if (rows <= 0) return;
  const std::int64_t k = groups[0].weights->in_features();
  std::byte* data = team.scratch(static_cast<std::size_t>(rows) * (stride + sizeof(float)));
  auto* scales = reinterpret_cast<float*>(data + static_cast<std::size_t>(rows) * stride);
  const Prepared prepared{data, stride, scales};
  for_rows(team, rows, k, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row)
      prepare_row(table_, *row_weights[static_cast<std::size_t>(row)], x[row],
                  data + static_cast<std::size_t>(row) * stride, scales + row);
  });
  pieces.reserve(static_cast<std::size_t>(rows));  // the most there can be, however the rows choose
  cut_into_pieces(groups, rows_of_a_block(stride), pieces);
  const Piece& last = pieces.back();
  const std::int64_t cost = last.cost_before + last.panel_cost * last.weights->num_panels();
  const auto run_between = [&](std::int64_t begin, std::int64_t end) {
    for (const Piece& piece : pieces)
      run_share(table_, piece.weights->type(), gemm_args(*piece.weights, prepared, y, ldy), prepared,
                {piece.rows, panels_between(piece, begin, end)});
  };
  if (team.size() == 1 || rows * k * last.weights->num_panels() * kPanel < kInlineProducts) {
    run_between(0, cost);
    return;
  }
  team.run([&](int thread) { run_between(cost * thread / team.size(), cost * (thread + 1) / team.size()); });
}

// Experts whose gate and up differ in type or input scale are rare: group by group, part by part.
void CpuOps::grouped_joined(ThreadTeam& team, std::span<const RowGroup> groups, const float* const* x, float* y,
                            std::int64_t ldy) const {
  for (const RowGroup& group : groups) {
    float* out = y;
    const auto* joined = dynamic_cast<const JoinedLinear*>(group.weights);
    const std::size_t parts = joined == nullptr ? 1 : joined->parts().size();
    for (std::size_t i = 0; i < parts; ++i) {
      const RowGroup part{joined == nullptr ? group.weights : joined->parts()[i].get(), group.num_rows};
      grouped_linear(team, std::span(&part, 1), x, out, ldy);
      out += part.weights->out_features();
    }
    x += group.num_rows;
    y += group.num_rows * ldy;
  }
}

void CpuOps::rms_norm(ThreadTeam& team, const float* x, std::int64_t ldx, const float* weight, const float* bias,
                      float eps, std::int64_t rows, std::int64_t cols, float* y, std::int64_t ldy) const {
  for_rows(team, rows, cols, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row)
      table_.rms_norm(x + row * ldx, weight, bias, eps, cols, y + row * ldy);
  });
}

void CpuOps::rope(ThreadTeam& team, float* x, std::int64_t ldx, std::int64_t rows, std::int32_t num_heads,
                  std::int32_t head_dim, const std::int32_t* positions, const float* cos, const float* sin) const {
  for_rows(team, rows, std::int64_t{num_heads} * head_dim, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t offset = std::int64_t{positions[row]} * (head_dim / 2);
      for (std::int32_t head = 0; head < num_heads; ++head) {
        table_.rope(x + row * ldx + std::int64_t{head} * head_dim, head_dim, cos + offset, sin + offset);
      }
    }
  });
}

void CpuOps::silu_mul(ThreadTeam& team, const float* gate_up, std::int64_t rows, std::int64_t cols, float* y) const {
  // exp makes an element dearer than those of the other row operations.
  for_rows(team, rows, 2 * cols, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const float* gate = gate_up + row * 2 * cols;
      table_.silu_mul(gate, gate + cols, cols, y + row * cols);
    }
  });
}

void CpuOps::store_kv(ThreadTeam& team, std::span<const AttentionSequence> sequences, const float* k, std::int64_t ldk,
                      const float* v, std::int64_t ldv, std::span<const PagedKv> ranks) const {
  const auto store_token = [&](const PagedKv& cache, const AttentionSequence& sequence, std::int64_t token) {
    const std::int64_t row = sequence.first_row + token;
    const std::int64_t position = sequence.first_position + token;
    for (std::int32_t head = 0; head < cache.num_kv_heads; ++head) {
      const std::int64_t column = std::int64_t{cache.first_kv_head + head} * cache.head_dim;
      store_vector(table_, cache, k + row * ldk + column,
                   kv_address(cache, sequence.block_table, false, head, position));
      store_vector(table_, cache, v + row * ldv + column,
                   kv_address(cache, sequence.block_table, true, head, position));
    }
  };
  const auto store_range = [&](const PagedKv& cache, std::int64_t begin, std::int64_t end) {
    std::int64_t first = 0;  // number of tokens in the sequences before
    for (const auto& sequence : sequences) {
      const std::int64_t from = std::max(begin, first);
      const std::int64_t to = std::min(end, first + sequence.num_tokens);
      for (std::int64_t token = from; token < to; ++token) store_token(cache, sequence, token - first);
      first += sequence.num_tokens;
    }
  };
  std::int64_t tokens = 0;
  std::int64_t elements = 0;  // of one token on all ranks
  for (const auto& sequence : sequences) tokens += sequence.num_tokens;
  for (const auto& cache : ranks) elements += 2 * std::int64_t{cache.num_kv_heads} * cache.head_dim;
  if (team.size() == 1 || tokens * elements < kInlineElements) {
    for (const auto& cache : ranks) store_range(cache, 0, tokens);
    return;
  }
  team.run([&](int thread) {
    const RankShare share = share_of_ranks(thread, team.size(), static_cast<int>(ranks.size()));
    // Rank by rank, the tokens of all its ranks in a row.
    const Range range = part_of(tokens * share.count, share.member, share.members);
    for (int rank = 0; rank < share.count; ++rank) {
      const std::int64_t begin = std::max(range.begin - rank * tokens, std::int64_t{0});
      const std::int64_t end = std::min(range.end - rank * tokens, tokens);
      if (begin < end) store_range(ranks[static_cast<std::size_t>(share.first + rank)], begin, end);
    }
  });
}

}  // namespace tandem::kernels::cpu
