// SPDX-License-Identifier: Apache-2.0
// Owns a rank's KV memory: a memfd mapping that a decoder on the same host can map too, holding the blocks of Layout
// and, after them, one generation counter a block. The counter grows whenever a block is given to a new owner, so that
// a reader can tell after a copy whether the block was still the one it was promised.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>

#include "base/status.h"
#include "kv/layout.h"

namespace tandem::kv {

class CacheMemory {
 public:
  /// Zeroed, page-aligned; huge pages are asked for. An error names the size that could not be had.
  static Result<std::unique_ptr<CacheMemory>> create(const Layout& layout);
  ~CacheMemory();
  CacheMemory(const CacheMemory&) = delete;
  CacheMemory& operator=(const CacheMemory&) = delete;

  const Layout& layout() const { return layout_; }
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
  Layout layout_;
  int fd_ = -1;
  std::byte* data_ = nullptr;
  std::size_t mapped_bytes_ = 0;
  std::size_t generations_offset_ = 0;
  std::span<std::atomic<std::uint32_t>> generations_;
};

}  // namespace tandem::kv
