// SPDX-License-Identifier: Apache-2.0
// KV memory for scheduler tests without a worker: remembers which token was written to which slot of which block, and
// derives the next token from what it reads back through a block table. Any mistake in block tables, prefix reuse,
// fetch destinations or preemption changes the tokens. Freed blocks may be scribbled over to catch late readers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/layout.h"

namespace tandem::engine::testing {

class FakeKv {
 public:
  FakeKv(std::int32_t num_blocks, std::int32_t block_size)
      : block_size_(block_size),
        slots_(static_cast<std::size_t>(num_blocks) * static_cast<std::size_t>(block_size), -1) {}

  void write(std::span<const kv::BlockId> table, std::int64_t position, std::int32_t token) {
    slots_.at(index(table, position)) = token;
  }
  std::int32_t read(std::span<const kv::BlockId> table, std::int64_t position) const {
    return slots_.at(index(table, position));
  }
  /// The token after the first `count` ones, as the KV has them.
  std::int32_t next_token(std::span<const kv::BlockId> table, std::int64_t count, std::int32_t vocab_size) const {
    std::vector<std::int32_t> seen;
    for (std::int64_t position = 0; position < count; ++position) seen.push_back(read(table, position));
    return next_token(seen, vocab_size);
  }
  static std::int32_t next_token(std::span<const std::int32_t> context, std::int32_t vocab_size) {
    std::uint64_t hash = 0x243F6A8885A308D3U;
    for (const std::int32_t token : context) {
      hash = (hash ^ static_cast<std::uint32_t>(token)) * 0x9E3779B97F4A7C15U;
      hash ^= hash >> 29;
    }
    return static_cast<std::int32_t>(hash % static_cast<std::uint64_t>(vocab_size));
  }
  /// What a sequence alone would generate.
  static std::vector<std::int32_t> generate(std::vector<std::int32_t> context, std::int32_t count,
                                            std::int32_t vocab_size) {
    std::vector<std::int32_t> output;
    for (std::int32_t i = 0; i < count; ++i) {
      output.push_back(next_token(context, vocab_size));
      context.push_back(output.back());
    }
    return output;
  }

 private:
  std::size_t index(std::span<const kv::BlockId> table, std::int64_t position) const {
    const auto block = static_cast<std::size_t>(table[static_cast<std::size_t>(position / block_size_)]);
    return block * static_cast<std::size_t>(block_size_) + static_cast<std::size_t>(position % block_size_);
  }

  std::int32_t block_size_;
  std::vector<std::int32_t> slots_;
};

}  // namespace tandem::engine::testing
