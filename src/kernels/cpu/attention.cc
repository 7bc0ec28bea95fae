// SPDX-License-Identifier: Apache-2.0
// Attention over paged KV: cuts the work into items, walks tiles and partitions in position order. Tiles of int8 KV are
// expanded before they are used. Ranks change nothing but which thread does which item.
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

/// Rows [row, row + rows) of a sequence and the query heads of one rank that read one KV head; all partitions, or one
/// of them.
struct Item {
  const AttentionSequence* sequence;
  const PagedKv* cache;
  int rank;
  std::int64_t token;  ///< first row, counted in the sequence
  std::int64_t rows;
  std::int32_t kv_head;     ///< counted on the rank
  std::int32_t first_head;  ///< query heads [first_head, first_head + heads), counted in the model
  std::int32_t heads;
  std::int64_t partition_begin;
  std::int64_t partition_end;
  std::size_t partial;  ///< index of the first partial state (shared partitions only)
};

/// Memory of one thread.
struct Space {
  std::byte* tile;     ///< int8 KV only: kTile expanded K vectors, then the V vectors
  std::byte* queries;  ///< prepared
  std::byte* rest;
};

/// Kept from call to call, so that steady decoding allocates nothing.
struct Lists {
  std::vector<Item> items;
  std::vector<Item> pieces;
  std::vector<std::int64_t> cost_of_rank;
};

class AttentionRun {
 public:
  AttentionRun(Lists& lists, const KernelTable& table, std::span<const AttentionSequence> sequences, const float* q,
               std::int64_t ldq, std::int32_t group, float scale, std::span<const PagedKv> ranks, float* out,
               std::int64_t ldo)
      : items_(lists.items),
        pieces_(lists.pieces),
        cost_of_rank_(lists.cost_of_rank),
        table_(table),
        q_(q),
        ldq_(ldq),
        scale_(scale),
        ranks_(ranks),
        out_(out),
        ldo_(ldo),
        group_(group),
        head_dim_(ranks.front().head_dim),
        expand_(ranks.front().type == KvType::kInt8),
        bf16_(ranks.front().type == KvType::kBf16 || (expand_ && table.int8_kv_as_bf16)),
        row_tile_(std::max<std::int64_t>(1, kQueriesPerItem / group)) {
    query_bytes_ = static_cast<std::size_t>(padded_dim(head_dim_)) * sizeof(float);
    state_floats_ = static_cast<std::size_t>(kStateHeader + padded_dim(head_dim_));
    expanded_bytes_ = static_cast<std::size_t>(padded_dim(head_dim_)) * (bf16_ ? 2 : 4);
    items_.clear();
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      for (const auto& sequence : sequences) add_items(sequence, static_cast<int>(rank));
    }
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
  void add_items(const AttentionSequence& sequence, int rank) {
    const PagedKv& cache = ranks_[static_cast<std::size_t>(rank)];
    TANDEM_ASSERT(cache.head_dim == head_dim_ && cache.type == ranks_.front().type, "ranks differ in heads only");
    for (std::int64_t token = 0; token < sequence.num_tokens; token += row_tile_) {
      const std::int64_t rows = std::min(row_tile_, sequence.num_tokens - token);
      const std::int64_t positions = sequence.first_position + token + rows;
      const std::int64_t partitions = (positions + kPartition - 1) / kPartition;
      for (std::int32_t kv_head = 0; kv_head < cache.num_kv_heads; ++kv_head) {
        // The KV head's group may reach into neighbouring ranks; they do their part of it on copies of their own.
        const std::int32_t first = std::max((cache.first_kv_head + kv_head) * group_, cache.first_head);
        const std::int32_t end =
            std::min((cache.first_kv_head + kv_head + 1) * group_, cache.first_head + cache.num_heads);
        if (first >= end) continue;
        items_.push_back({&sequence, &cache, rank, token, rows, kv_head, first, end - first, 0, partitions, 0});
      }
    }
  }

  std::int64_t queries(const Item& item) const { return item.rows * item.heads; }
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

  /// Calls body(thread, item) for each item; the threads of a rank, or all threads for all ranks, take contiguous
  /// shares of equal cost.
  template <class Body>
  void for_items(ThreadTeam& team, const std::vector<Item>& items, const Body& body) {
    std::vector<std::int64_t>& of_rank = cost_of_rank_;
    of_rank.assign(ranks_.size(), 0);
    std::int64_t all = 0;
    for (const auto& item : items) {
      of_rank[static_cast<std::size_t>(item.rank)] += cost(item);
      all += cost(item);
    }
    constexpr std::int64_t kInlineCost = 16 * 1024;
    if (team.size() == 1 || all * head_dim_ < kInlineCost) {
      for (const auto& item : items) body(0, item);
      return;
    }
    team.run([&](int thread) {
      const RankShare share = share_of_ranks(thread, team.size(), static_cast<int>(ranks_.size()));
      const std::int64_t total = share.count == 1 ? of_rank[static_cast<std::size_t>(share.first)] : all;
      std::int64_t before = 0;
      for (const auto& item : items) {
        if (item.rank < share.first || item.rank >= share.first + share.count) continue;
        // An item belongs to the thread in whose share of the cost its middle lies.
        const std::int64_t middle = before + cost(item) / 2;
        const std::int64_t owner = std::min<std::int64_t>(middle * share.members / total, share.members - 1);
        if (owner == share.member) body(thread, item);
        before += cost(item);
      }
    });
  }

  std::size_t most_queries() const { return static_cast<std::size_t>(row_tile_ * group_); }
  std::size_t tile_bytes() const { return expand_ ? 2 * std::size_t{kTile} * expanded_bytes_ : 0; }
  /// Memory of one thread that also keeps `rest` bytes.
  std::size_t space_bytes(std::size_t rest) const { return tile_bytes() + most_queries() * query_bytes_ + rest; }
  Space space_of(int thread, std::byte* scratch, std::size_t rest) const {
    std::byte* own = scratch + space_bytes(rest) * static_cast<std::size_t>(thread);
    return {own, own + tile_bytes(), own + space_bytes(0)};
  }

  void run_whole(ThreadTeam& team) {
    // The states of a partition and the states over all partitions.
    const std::size_t states_bytes = most_queries() * state_floats_ * sizeof(float);
    std::byte* scratch = team.scratch(space_bytes(2 * states_bytes) * static_cast<std::size_t>(team.size()));
    for_items(team, items_, [&](int thread, const Item& item) {
      const Space space = space_of(thread, scratch, 2 * states_bytes);
      auto* part = reinterpret_cast<float*>(space.rest);
      float* whole = part + most_queries() * state_floats_;
      prepare_queries(item, space.queries);
      for (std::int64_t partition = 0; partition < item.partition_end; ++partition) {
        float* states = partition == 0 ? whole : part;
        compute_partition(item, partition, space, states);
        if (partition > 0) merge(item, partition, whole, part);
      }
      finish(item, whole);
    });
  }

  void run_shared(ThreadTeam& team) {
    // The most there can ever be, at once: contexts grow, and pages that are not used yet cost nothing.
    pieces_.reserve(kPartialBytes / (state_floats_ * sizeof(float)));
    pieces_.clear();
    std::size_t num_states = 0;
    for (auto& item : items_) {
      item.partial = num_states;
      for (std::int64_t partition = 0; partition < item.partition_end; ++partition) {
        Item piece = item;
        piece.partition_begin = partition;
        piece.partition_end = partition + 1;
        piece.partial = num_states;
        pieces_.push_back(piece);
        num_states += static_cast<std::size_t>(queries(item));
      }
    }
    const std::size_t spaces_bytes = space_bytes(0) * static_cast<std::size_t>(team.size());
    std::byte* scratch = team.scratch(spaces_bytes + kPartialBytes);
    auto* states = reinterpret_cast<float*>(scratch + spaces_bytes);
    for_items(team, pieces_, [&](int thread, const Item& piece) {
      const Space space = space_of(thread, scratch, 0);
      prepare_queries(piece, space.queries);
      compute_partition(piece, piece.partition_begin, space, states + piece.partial * state_floats_);
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
    return q_ + (item.sequence->first_row + item.token + row) * ldq_ + (item.first_head + head) * head_dim_;
  }

  void prepare_queries(const Item& item, std::byte* prepared) const {
    for (std::int64_t row = 0; row < item.rows; ++row) {
      for (std::int64_t head = 0; head < item.heads; ++head) {
        table_.prepare_query(query(item, row, head), head_dim_, bf16_,
                             prepared + static_cast<std::size_t>(row * item.heads + head) * query_bytes_);
      }
    }
  }

  /// Where the vectors of a tile are. Entries past the item's last position repeat it.
  struct Addresses {
    const std::byte* k[kTile];
    const std::byte* v[kTile];
  };

  void compute_partition(const Item& item, std::int64_t partition, const Space& space, float* states) const {
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
      const Addresses* next = fetch ? &addresses[1 - current] : nullptr;
      if (expand_) {
        const std::int64_t positions = std::min<std::int64_t>(kTile, last_position(item) + 1 - begin);
        Addresses expanded;
        expand_tile(addresses[current], positions, next, space.tile, expanded);
        compute_tile(item, begin, space.queries, states, expanded, nullptr);
      } else {
        compute_tile(item, begin, space.queries, states, addresses[current], next);
      }
      current = 1 - current;
    }
  }

  /// Writes a tile of int8 vectors to `memory` in the type that the tile kernel takes.
  void expand_tile(const Addresses& packed, std::int64_t positions, const Addresses* next, std::byte* memory,
                   Addresses& expanded) const {
    const std::size_t vector_bytes = ranks_.front().vector_bytes();
    const auto expand = [&](const std::byte* from, const std::byte* fetch, std::byte* to) {
      for (std::size_t byte = 0; fetch != nullptr && byte < vector_bytes; byte += 64) {
        __builtin_prefetch(fetch + byte, 0, 2);
      }
      table_.expand_int8(from, head_dim_, to);
    };
    for (std::int64_t i = 0; i < kTile; ++i) {
      const auto row = static_cast<std::size_t>(std::min(i, positions - 1));
      expanded.k[i] = memory + row * expanded_bytes_;
      expanded.v[i] = memory + (std::size_t{kTile} + row) * expanded_bytes_;
    }
    for (std::int64_t i = 0; i < positions; ++i) {
      const auto row = static_cast<std::size_t>(i);
      expand(packed.k[i], next == nullptr ? nullptr : next->k[i], memory + row * expanded_bytes_);
      expand(packed.v[i], next == nullptr ? nullptr : next->v[i], memory + (kTile + row) * expanded_bytes_);
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
          .q = prepared + static_cast<std::size_t>(row * item.heads) * query_bytes_,
          .q_stride = query_bytes_,
          .state = states + static_cast<std::size_t>(row * item.heads) * state_floats_,
          .state_stride = state_floats_,
          .count = static_cast<int>(rows * item.heads),
          .head_dim = head_dim_,
          .scale = scale_,
          .kv_bf16 = bf16_,
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
    const PagedKv& cache = *item.cache;
    const std::size_t stride = cache.vector_bytes();
    const std::int64_t end = std::min(begin + kTile, last_position(item) + 1);
    for (std::int64_t position = begin; position < end;) {
      const std::byte* address = kv_address(cache, item.sequence->block_table, false, item.kv_head, position);
      const std::int64_t block_end = (position / cache.block_size + 1) * cache.block_size;
      for (const std::int64_t stop = std::min(end, block_end); position < stop; ++position, address += stride) {
        addresses.k[position - begin] = address;
        addresses.v[position - begin] = address + cache.kv_stride;
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
    for (std::int64_t i = first_row * item.heads; i < queries(item); ++i) {
      table_.merge_state(whole + static_cast<std::size_t>(i) * state_floats_,
                         part + static_cast<std::size_t>(i) * state_floats_, head_dim_);
    }
  }

  void finish(const Item& item, const float* states) const {
    for (std::int64_t row = 0; row < item.rows; ++row) {
      for (std::int64_t head = 0; head < item.heads; ++head) {
        float* to = out_ + (item.sequence->first_row + item.token + row) * ldo_ + (item.first_head + head) * head_dim_;
        table_.finish_state(states + static_cast<std::size_t>(row * item.heads + head) * state_floats_, head_dim_,
                            bf16_, to);
      }
    }
  }

  std::vector<Item>& items_;
  std::vector<Item>& pieces_;  ///< items cut by partition (shared partitions only)
  std::vector<std::int64_t>& cost_of_rank_;
  const KernelTable& table_;
  const float* q_;
  std::int64_t ldq_;
  float scale_;
  std::span<const PagedKv> ranks_;
  float* out_;
  std::int64_t ldo_;
  std::int32_t group_;
  std::int32_t head_dim_;
  bool expand_;  ///< int8 KV
  bool bf16_;    ///< the type in which tiles come to the tile kernel; float32 if not
  std::int64_t row_tile_;
  std::size_t query_bytes_ = 0;
  std::size_t state_floats_ = 0;
  std::size_t expanded_bytes_ = 0;
};

}  // namespace

void CpuOps::attention(ThreadTeam& team, std::span<const AttentionSequence> sequences, const float* q, std::int64_t ldq,
                       std::int32_t group, float scale, std::span<const PagedKv> ranks, float* out,
                       std::int64_t ldo) const {
  // Of the thread that runs the kernels; a team has one.
  thread_local Lists lists;
  AttentionRun(lists, table_, sequences, q, ldq, group, scale, ranks, out, ldo).run(team);
}

}  // namespace tandem::kernels::cpu
