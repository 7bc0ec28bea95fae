// SPDX-License-Identifier: Apache-2.0
// Owns the KV memory of all ranks of a process: one memfd mapping that a decoder on the same host can map too, holding
// each rank's region (its Layout says where) and, after them, one generation counter a block. Block ids mean the same
// on every rank. The counter grows whenever a block is given to a new owner, so that a reader can tell after a copy
// whether the block was still the one it was promised.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "kv/layout.h"

namespace tandem::kv {

class CacheMemory {
 public:
  /// Zeroed, page-aligned; huge pages are asked for. `ranks` (at least one, all of one model and number of blocks) get
  /// their `base` here. An error names the size that could not be had.
  static Result<std::unique_ptr<CacheMemory>> create(std::vector<Layout> ranks);
  static Result<std::unique_ptr<CacheMemory>> create(const Layout& layout) { return create(std::vector{layout}); }
  ~CacheMemory();
  CacheMemory(const CacheMemory&) = delete;
  CacheMemory& operator=(const CacheMemory&) = delete;

  std::span<const Layout> ranks() const { return ranks_; }
  /// Asks the kernel to take the rank's pages, whoever touches them first, from a NUMA node; -1: no wish. Only a hint:
  /// where it is refused (containers do), pages come from the node of the thread that touches them first.
  void prefer_node(std::size_t rank, int node);
  /// What all ranks agree in: blocks, block size, layers, head dimension, element, fingerprint. Heads and base are the
  /// first rank's.
  const Layout& layout() const { return ranks_.front(); }
  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  /// One counter a block, in the shared mapping.
  std::span<std::atomic<std::uint32_t>> generations() { return generations_; }
  /// The memfd, for sending to a peer on this host. Still owned here.
  int fd() const { return fd_; }
  std::size_t mapped_bytes() const { return mapped_bytes_; }
  std::size_t generations_offset() const { return generations_offset_; }

 private:
  CacheMemory() = default;
  std::vector<Layout> ranks_;
  int fd_ = -1;
  std::byte* data_ = nullptr;
  std::size_t mapped_bytes_ = 0;
  std::size_t generations_offset_ = 0;
  std::span<std::atomic<std::uint32_t>> generations_;
};

}  // namespace tandem::kv
