// SPDX-License-Identifier: Apache-2.0
// Owner of a contiguous range of KV blocks (all of an instance's, or a data-parallel rank's share): reference counts,
// the free list in LRU order, and the prefix index (hash of a full block and all before it -> block). Single-threaded:
// the engine thread owns it. A block is in one of three states:
//   used    references > 0
//   cached  references == 0, still found by its hash; taken again, oldest first, when no empty block is left
//   free    references == 0, no hash
// Invariant (checked by tests after every fault): used + cached + free == num_blocks.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "kv/layout.h"

namespace tandem::kv {

/// Hash of a full block of tokens and of everything before it.
struct BlockHash {
  std::array<std::uint64_t, 2> bits{};
  friend bool operator==(const BlockHash&, const BlockHash&) = default;
};
struct BlockHashHasher {
  std::size_t operator()(const BlockHash& hash) const { return static_cast<std::size_t>(hash.bits[0]); }
};

/// The next link of the chain: the hash of one full block after `parent` (nullptr for the first block). With a salt,
/// chains of other salts never meet (SHA-256, so that a tenant cannot craft a collision); without one XXH3-128 is used.
BlockHash next_block_hash(const BlockHash* parent, std::span<const std::int32_t> block_tokens, std::string_view salt);
/// XXH3-64 of the ids as little-endian 32-bit numbers: tells two prompts apart, whatever their block size.
std::uint64_t token_hash(std::span<const std::int32_t> tokens);

class BlockPool {
 public:
  /// Owns the blocks `first` to first + num_blocks - 1. `generations` (may be empty) has one counter for each of them;
  /// it grows when the block gets a new owner.
  BlockPool(std::int32_t num_blocks, std::span<std::atomic<std::uint32_t>> generations, BlockId first = 0);
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  std::int32_t num_blocks() const;
  std::int32_t num_used() const;
  std::int32_t num_cached() const;
  std::int32_t num_free() const;
  /// Blocks that allocate() can give: free + cached.
  std::int32_t num_available() const { return num_free() + num_cached(); }

  /// `count` blocks with one reference each, or nullopt (and nothing changed) if fewer are available.
  std::optional<std::vector<BlockId>> allocate(std::int32_t count);
  /// One more reference to a used or cached block.
  void acquire(BlockId block);
  /// One reference less for each; blocks are freed last to first, so that prefixes live longest.
  void release(std::span<const BlockId> blocks);

  /// The block that holds this prefix, if any (used or cached). Does not acquire it.
  std::optional<BlockId> find(const BlockHash& hash) const;
  /// Files a used, full block under its hash. If the hash is taken already the older block keeps it.
  void insert(BlockId block, const BlockHash& hash);
  /// How many owners a block has now (for tests and invariant checks).
  std::int32_t references(BlockId block) const;
  /// Forgets all hashes; refused (false) while blocks are used.
  bool reset_prefix_cache();

 private:
  struct Block {
    std::int32_t references = 0;
    std::optional<BlockHash> hash;
    std::list<BlockId>::iterator position;  ///< in the list of its state
  };
  std::size_t index_of(BlockId block) const;
  Block& at(BlockId block) { return blocks_[index_of(block)]; }
  const Block& at(BlockId block) const { return blocks_[index_of(block)]; }
  /// Takes the block out of the index, if it is there.
  void forget(BlockId block);

  BlockId first_;
  std::vector<Block> blocks_;
  // A block goes from list to list in one node, so that nothing is allocated after the start.
  std::list<BlockId> used_;
  std::list<BlockId> free_;
  std::list<BlockId> cached_;  ///< oldest first
  std::unordered_map<BlockHash, BlockId, BlockHashHasher> index_;
  std::span<std::atomic<std::uint32_t>> generations_;
};

}  // namespace tandem::kv
