// SPDX-License-Identifier: Apache-2.0
// Attention over paged KV: cuts the work into items, walks tiles and partitions in position order.
//
// For one query the order of operations is: partitions of 512 positions, cut at absolute multiples and merged in
// order; in each, tiles of 64 positions, cut at absolute multiples, with a running maximum. What else shares the item,
// and whether partitions are computed by one thread or by several, changes nothing in that order.
#include <algorithm>
#include <cstring>
#include <vector>

#include "base/status.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/partition.h"

namespace tandem::kernels::cpu {
namespace {

constexpr std::int64_t kPartition = std::int64_t{kTile} * kTilesPerPartition;
/// Queries (rows x heads of a group) that share the tiles of an item.
constexpr std::int64_t kQueriesPerItem = 32;
/// Up to this many queries an item is bound by the memory that KV comes from.
constexpr std::int64_t kQueriesThatFetch = 8;
/// Memory for partial states when partitions of one query are shared between threads.
constexpr std::size_t kPartialBytes = std::size_t{32} << 20;

/// Rows [row, row + rows) of a sequence and one KV head; all partitions, or one of them.
struct Item {
  const AttentionSequence* sequence;
  std::int64_t token;  ///< first row, counted in the sequence
  std::int64_t rows;
  std::int32_t kv_head;
  std::int64_t partition_begin;
  std::int64_t partition_end;
  std::size_t partial;  ///< index of the first partial state (shared partitions only)
};

class AttentionRun {
 public:
  AttentionRun(const KernelTable& table, std::span<const AttentionSequence> sequences, const float* q, std::int64_t ldq,
               std::int32_t num_heads, float scale, const PagedKv& cache, float* out, std::int64_t ldo)
      : table_(table), q_(q), ldq_(ldq), scale_(scale), cache_(cache), out_(out), ldo_(ldo) {
    TANDEM_ASSERT(cache.num_kv_heads > 0 && num_heads % cache.num_kv_heads == 0,
                  "query heads are a multiple of KV heads");
    group_ = num_heads / cache.num_kv_heads;
    row_tile_ = std::max<std::int64_t>(1, kQueriesPerItem / group_);
    query_bytes_ = static_cast<std::size_t>(padded_dim(cache.head_dim)) * sizeof(float);
    state_floats_ = static_cast<std::size_t>(kStateHeader + padded_dim(cache.head_dim));
    for (const auto& sequence : sequences) add_items(sequence);
  }

  void run(ThreadTeam& team) {
    if (items_.empty()) return;
    if (should_share_partitions(team.size())) {
      run_shared(team);
    } else {
      run_whole(team);
    }
  }

 private:
  void add_items(const AttentionSequence& sequence) {
    for (std::int64_t token = 0; token < sequence.num_tokens; token += row_tile_) {
      const std::int64_t rows = std::min(row_tile_, sequence.num_tokens - token);
      const std::int64_t positions = sequence.first_position + token + rows;
      const std::int64_t partitions = (positions + kPartition - 1) / kPartition;
      for (std::int32_t head = 0; head < cache_.num_kv_heads; ++head) {
        items_.push_back({&sequence, token, rows, head, 0, partitions, 0});
      }
    }
  }

  std::int64_t queries(const Item& item) const { return item.rows * group_; }
  std::int64_t last_position(const Item& item) const {
    return item.sequence->first_position + item.token + item.rows - 1;
  }
  /// Positions times queries: proportional to the time an item takes.
  std::int64_t cost(const Item& item) const {
    const std::int64_t begin = item.partition_begin * kPartition;
    const std::int64_t end = std::min(item.partition_end * kPartition, last_position(item) + 1);
    return (end - begin) * (queries(item) + 2);
  }

  bool should_share_partitions(int threads) const {
    if (threads == 1 || items_.size() >= 4 * static_cast<std::size_t>(threads)) return false;
    std::size_t partials = 0;
    std::int64_t most = 0;
    for (const auto& item : items_) {
      partials += static_cast<std::size_t>(queries(item) * item.partition_end);
      most = std::max(most, item.partition_end);
    }
    return most > 1 && partials * state_floats_ * sizeof(float) <= kPartialBytes;
  }

  /// Calls body(thread, item) for each item, on the threads in contiguous shares of equal cost.
  template <class Body>
  void for_items(ThreadTeam& team, const std::vector<Item>& items, const Body& body) const {
    std::int64_t total = 0;
    for (const auto& item : items) total += cost(item);
    constexpr std::int64_t kInlineCost = 16 * 1024;
    if (team.size() == 1 || total * cache_.head_dim < kInlineCost) {
      for (const auto& item : items) body(0, item);
      return;
    }
    team.run([&](int thread) {
      std::int64_t before = 0;
      for (const auto& item : items) {
        // An item belongs to the thread in whose share of the cost its middle lies.
        const std::int64_t middle = before + cost(item) / 2;
        if (std::min<std::int64_t>(middle * team.size() / total, team.size() - 1) == thread) body(thread, item);
        before += cost(item);
      }
    });
  }

  /// Memory of one thread: prepared queries, the states of a partition and the states over all partitions.
  std::size_t thread_bytes() const {
    const auto most = static_cast<std::size_t>(row_tile_ * group_);
    return most * (query_bytes_ + 2 * state_floats_ * sizeof(float));
  }

  void run_whole(ThreadTeam& team) {
    std::byte* scratch = team.scratch(thread_bytes() * static_cast<std::size_t>(team.size()));
    for_items(team, items_, [&](int thread, const Item& item) {
      std::byte* own = scratch + thread_bytes() * static_cast<std::size_t>(thread);
      const auto count = static_cast<std::size_t>(row_tile_ * group_);
      auto* part = reinterpret_cast<float*>(own + count * query_bytes_);
      float* whole = part + count * state_floats_;
      prepare_queries(item, own);
      for (std::int64_t partition = 0; partition < item.partition_end; ++partition) {
        float* states = partition == 0 ? whole : part;
        compute_partition(item, partition, own, states);
        if (partition > 0) merge(item, partition, whole, part);
      }
      finish(item, whole);
    });
  }

  void run_shared(ThreadTeam& team) {
    std::vector<Item> pieces;
    std::size_t num_states = 0;
    for (auto& item : items_) {
      item.partial = num_states;
      for (std::int64_t partition = 0; partition < item.partition_end; ++partition) {
        Item piece = item;
        piece.partition_begin = partition;
        piece.partition_end = partition + 1;
        piece.partial = num_states;
        pieces.push_back(piece);
        num_states += static_cast<std::size_t>(queries(item));
      }
    }
    const auto count = static_cast<std::size_t>(row_tile_ * group_);
    const std::size_t queries_bytes = count * query_bytes_ * static_cast<std::size_t>(team.size());
    std::byte* scratch = team.scratch(queries_bytes + num_states * state_floats_ * sizeof(float));
    auto* states = reinterpret_cast<float*>(scratch + queries_bytes);
    for_items(team, pieces, [&](int thread, const Item& piece) {
      std::byte* own = scratch + count * query_bytes_ * static_cast<std::size_t>(thread);
      prepare_queries(piece, own);
      compute_partition(piece, piece.partition_begin, own, states + piece.partial * state_floats_);
    });
    for (const auto& item : items_) {
      float* whole = states + item.partial * state_floats_;
      for (std::int64_t partition = 1; partition < item.partition_end; ++partition) {
        merge(item, partition, whole, whole + static_cast<std::size_t>(partition * queries(item)) * state_floats_);
      }
      finish(item, whole);
    }
  }

  const float* query(const Item& item, std::int64_t row, std::int64_t head) const {
    return q_ + (item.sequence->first_row + item.token + row) * ldq_ +
           (std::int64_t{item.kv_head} * group_ + head) * cache_.head_dim;
  }

  void prepare_queries(const Item& item, std::byte* prepared) const {
    for (std::int64_t row = 0; row < item.rows; ++row) {
      for (std::int64_t head = 0; head < group_; ++head) {
        table_.prepare_query(query(item, row, head), cache_.head_dim, cache_.type == KvType::kBf16,
                             prepared + static_cast<std::size_t>(row * group_ + head) * query_bytes_);
      }
    }
  }

  /// Where the vectors of a tile are. Entries past the item's last position repeat it.
  struct Addresses {
    const std::byte* k[kTile];
    const std::byte* v[kTile];
  };

  void compute_partition(const Item& item, std::int64_t partition, const std::byte* prepared, float* states) const {
    for (std::int64_t i = 0; i < queries(item); ++i) {
      float* state = states + static_cast<std::size_t>(i) * state_floats_;
      std::memset(state, 0, state_floats_ * sizeof(float));
      state[0] = kNoScore;
    }
    const std::int64_t end = std::min((partition + 1) * kPartition, last_position(item) + 1);
    Addresses addresses[2];
    tile_addresses(item, partition * kPartition, addresses[0]);
    int current = 0;
    for (std::int64_t begin = partition * kPartition; begin < end; begin += kTile) {
      // With many queries a tile is computed for longer than it takes to come; the fetches would only be in the way.
      const bool fetch = queries(item) <= kQueriesThatFetch && begin + kTile <= last_position(item);
      if (begin + kTile <= last_position(item)) tile_addresses(item, begin + kTile, addresses[1 - current]);
      compute_tile(item, begin, prepared, states, addresses[current], fetch ? &addresses[1 - current] : nullptr);
      current = 1 - current;
    }
  }

  void compute_tile(const Item& item, std::int64_t begin, const std::byte* prepared, float* states,
                    const Addresses& addresses, const Addresses* next) const {
    const std::int64_t end = std::min(begin + kTile, last_position(item) + 1);
    // Rows of an item stand at consecutive positions: first those that do not see the tile at all, then those that
    // see a part of it, then those that see all.
    const std::int64_t first_position = item.sequence->first_position + item.token;
    for (std::int64_t row = std::max<std::int64_t>(0, begin - first_position); row < item.rows;) {
      const std::int64_t visible = std::min(end, first_position + row + 1) - begin;
      const std::int64_t rows = begin + visible == end ? item.rows - row : 1;
      const AttentionQueries queries_of_rows{
          .q = prepared + static_cast<std::size_t>(row * group_) * query_bytes_,
          .q_stride = query_bytes_,
          .state = states + static_cast<std::size_t>(row * group_) * state_floats_,
          .state_stride = state_floats_,
          .count = static_cast<int>(rows * group_),
          .head_dim = cache_.head_dim,
          .scale = scale_,
          .kv_bf16 = cache_.type == KvType::kBf16,
      };
      table_.attend_tile(queries_of_rows, {.k = addresses.k,
                                           .v = addresses.v,
                                           .num_positions = static_cast<int>(visible),
                                           .next_k = next == nullptr ? nullptr : next->k,
                                           .next_v = next == nullptr ? nullptr : next->v});
      row += rows;
    }
  }

  void tile_addresses(const Item& item, std::int64_t begin, Addresses& addresses) const {
    const std::size_t stride = static_cast<std::size_t>(cache_.head_dim) * (cache_.type == KvType::kBf16 ? 2 : 4);
    const std::int64_t end = std::min(begin + kTile, last_position(item) + 1);
    for (std::int64_t position = begin; position < end;) {
      const std::byte* address = kv_address(cache_, item.sequence->block_table, false, item.kv_head, position);
      const std::int64_t block_end = (position / cache_.block_size + 1) * cache_.block_size;
      for (const std::int64_t stop = std::min(end, block_end); position < stop; ++position, address += stride) {
        addresses.k[position - begin] = address;
        addresses.v[position - begin] = address + cache_.kv_stride;
      }
    }
    for (std::int64_t i = end - begin; i < kTile; ++i) {
      addresses.k[i] = addresses.k[end - begin - 1];
      addresses.v[i] = addresses.v[end - begin - 1];
    }
  }

  /// Adds the states of a later partition to those over all before; rows that end before it have none there.
  void merge(const Item& item, std::int64_t partition, float* whole, const float* part) const {
    const std::int64_t first_position = item.sequence->first_position + item.token;
    const std::int64_t first_row = std::max<std::int64_t>(0, partition * kPartition - first_position);
    for (std::int64_t i = first_row * group_; i < queries(item); ++i) {
      table_.merge_state(whole + static_cast<std::size_t>(i) * state_floats_,
                         part + static_cast<std::size_t>(i) * state_floats_, cache_.head_dim);
    }
  }

  void finish(const Item& item, const float* states) const {
    for (std::int64_t row = 0; row < item.rows; ++row) {
      for (std::int64_t head = 0; head < group_; ++head) {
        float* to = out_ + (item.sequence->first_row + item.token + row) * ldo_ +
                    (std::int64_t{item.kv_head} * group_ + head) * cache_.head_dim;
        table_.finish_state(states + static_cast<std::size_t>(row * group_ + head) * state_floats_, cache_.head_dim,
                            cache_.type == KvType::kBf16, to);
      }
    }
  }

  const KernelTable& table_;
  const float* q_;
  std::int64_t ldq_;
  float scale_;
  const PagedKv& cache_;
  float* out_;
  std::int64_t ldo_;
  std::int64_t group_ = 1;
  std::int64_t row_tile_ = 1;
  std::size_t query_bytes_ = 0;
  std::size_t state_floats_ = 0;
  std::vector<Item> items_;
};

}  // namespace

void CpuOps::attention(ThreadTeam& team, std::span<const AttentionSequence> sequences, const float* q, std::int64_t ldq,
                       std::int32_t num_heads, float scale, const PagedKv& cache, float* out, std::int64_t ldo) const {
  AttentionRun(table_, sequences, q, ldq, num_heads, scale, cache, out, ldo).run(team);
}

}  // namespace tandem::kernels::cpu
