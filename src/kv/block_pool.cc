// SPDX-License-Identifier: Apache-2.0
// BlockPool: reference counts, two lists of idle blocks (without and with a hash), and the prefix index.
#include "kv/block_pool.h"

namespace tandem::kv {

BlockPool::BlockPool(std::int32_t num_blocks, std::span<std::atomic<std::uint32_t>> generations, BlockId first)
    : first_(first), blocks_(static_cast<std::size_t>(num_blocks)), generations_(generations) {
  TANDEM_ASSERT(generations.empty() || generations.size() == blocks_.size(), "one generation counter a block");
  for (BlockId block = first; block < first + num_blocks; ++block) {
    at(block).position = free_.insert(free_.end(), block);
  }
}

std::size_t BlockPool::index_of(BlockId block) const {
  TANDEM_ASSERT(block >= first_ && block - first_ < num_blocks(), "no such block");
  return static_cast<std::size_t>(block - first_);
}

std::int32_t BlockPool::num_blocks() const { return static_cast<std::int32_t>(blocks_.size()); }
std::int32_t BlockPool::num_cached() const { return static_cast<std::int32_t>(cached_.size()); }
std::int32_t BlockPool::num_free() const { return static_cast<std::int32_t>(free_.size()); }
std::int32_t BlockPool::num_used() const { return static_cast<std::int32_t>(used_.size()); }
std::int32_t BlockPool::references(BlockId block) const { return at(block).references; }

void BlockPool::forget(BlockId block) {
  Block& entry = at(block);
  if (!entry.hash) return;
  index_.erase(*entry.hash);
  entry.hash.reset();
}

std::optional<std::vector<BlockId>> BlockPool::allocate(std::int32_t count) {
  TANDEM_ASSERT(count >= 0, "a negative number of blocks");
  if (count > num_available()) return std::nullopt;
  std::vector<BlockId> taken;
  taken.reserve(static_cast<std::size_t>(count));
  while (static_cast<std::int32_t>(taken.size()) < count) {
    std::list<BlockId>& source = free_.empty() ? cached_ : free_;
    const BlockId block = source.front();
    used_.splice(used_.end(), source, source.begin());
    forget(block);
    at(block).references = 1;
    if (!generations_.empty()) {
      // Before any write of the new owner: a reader that copies now will see the change. The fence keeps later stores
      // behind it; of itself the increment does not (arm64 before v8.1 may move them before its store).
      generations_[index_of(block)].fetch_add(1, std::memory_order_seq_cst);
      std::atomic_thread_fence(std::memory_order_release);
    }
    taken.push_back(block);
  }
  return taken;
}

void BlockPool::acquire(BlockId block) {
  Block& entry = at(block);
  if (entry.references == 0) {
    TANDEM_ASSERT(entry.hash.has_value(), "a free block has nothing to share; use allocate()");
    used_.splice(used_.end(), cached_, entry.position);
  }
  ++entry.references;
}

void BlockPool::release(std::span<const BlockId> blocks) {
  for (auto it = blocks.rbegin(); it != blocks.rend(); ++it) {
    Block& entry = at(*it);
    TANDEM_ASSERT(entry.references > 0, "released more often than acquired");
    if (--entry.references > 0) continue;
    std::list<BlockId>& target = entry.hash ? cached_ : free_;
    target.splice(target.end(), used_, entry.position);
  }
}

std::optional<BlockId> BlockPool::find(const BlockHash& hash) const {
  const auto found = index_.find(hash);
  if (found == index_.end()) return std::nullopt;
  return found->second;
}

void BlockPool::insert(BlockId block, const BlockHash& hash) {
  Block& entry = at(block);
  TANDEM_ASSERT(entry.references > 0, "only a used block can be filed");
  const auto [place, inserted] = index_.try_emplace(hash, block);
  if (!inserted) return;
  TANDEM_ASSERT(!entry.hash.has_value(), "a block holds one prefix");
  entry.hash = hash;
}

bool BlockPool::reset_prefix_cache() {
  if (num_used() > 0) return false;
  while (!cached_.empty()) {
    forget(cached_.front());
    free_.splice(free_.end(), cached_, cached_.begin());
  }
  return true;
}

}  // namespace tandem::kv
