// SPDX-License-Identifier: Apache-2.0
#include "transfer/data_sender.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

namespace tandem::transfer {
namespace {

constexpr std::uint32_t kChunkBytes = 256U << 10;
constexpr std::size_t kChunkVectors = 256;
constexpr std::uint64_t kBytesPerTurn = std::uint64_t{1} << 20;  // then other sockets and timers get their turn

}  // namespace

Status check_run(std::span<const kv::Layout> ranks, const wire::Run& run,
                 const std::unordered_set<kv::BlockId>& members) {
  std::uint64_t at = run.offset;
  std::uint64_t left = run.length;
  // A run may go on from one rank's last block to the next rank's first one.
  for (const kv::Layout& rank : ranks) {
    if (left == 0) break;
    const std::uint64_t end = rank.base + rank.total_bytes();
    if (at < rank.base || at >= end) continue;
    const std::uint64_t taken = std::min(left, end - at);
    const std::uint64_t last = (at - rank.base + taken - 1) / rank.block_bytes();
    for (std::uint64_t slot = (at - rank.base) / rank.block_bytes(); slot <= last; ++slot) {
      const auto block = static_cast<kv::BlockId>(slot % static_cast<std::uint64_t>(rank.num_blocks));
      if (members.contains(block)) continue;
      return Status(Code::kInvalidArgument, fmt::format("block {} is not part of the lease", block), Scope::kTransfer);
    }
    at += taken;
    left -= taken;
  }
  if (left == 0 && run.length > 0) return {};
  return Status(Code::kInvalidArgument,
                fmt::format("run of {} bytes at {} is outside of the KV memory", run.length, run.offset),
                Scope::kTransfer);
}

Status DataSender::enqueue(wire::Pull pull) {
  if (pulls_.size() >= wire::kMaxPulls) {
    return Status(Code::kResourceExhausted, fmt::format("more than {} pulls at a time", wire::kMaxPulls), Scope::kPeer);
  }
  if (!pull.runs.empty()) pulls_.push_back(std::move(pull));
  connection_.want_writable(!idle());
  return {};
}

void DataSender::next_chunk() {
  vectors_.clear();
  vector_ = 0;
  if (pulls_.empty()) return;
  const std::vector<wire::Run>& runs = pulls_.front().runs;
  std::uint32_t bytes = 0;
  vectors_.push_back({header_.data(), header_.size()});
  while (run_ < runs.size() && bytes < kChunkBytes && vectors_.size() < kChunkVectors) {
    const std::uint32_t length = std::min(runs[run_].length - run_offset_, kChunkBytes - bytes);
    // iovec is for reading and writing, hence not const; sending only reads.
    vectors_.push_back({const_cast<std::byte*>(memory_ + runs[run_].offset + run_offset_), length});
    bytes += length;
    run_offset_ += length;
    if (run_offset_ == runs[run_].length) {
      ++run_;
      run_offset_ = 0;
    }
  }
  header_ = wire::make_header(wire::kDataType, bytes);
  if (run_ == runs.size()) {
    pulls_.pop_front();
    run_ = 0;
  }
}

bool DataSender::on_writable() {
  std::uint64_t sent = 0;
  while (sent < kBytesPerTurn && !idle()) {
    if (vectors_.empty()) next_chunk();
    if (!alive_()) {
      // The reader learns why on its control connection and closes this one.
      connection_.want_writable(false);
      return true;
    }
    const ssize_t count = connection_.channel().send(std::span(vectors_).subspan(vector_));
    if (count < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) break;
      return false;
    }
    sent += static_cast<std::uint64_t>(count);
    for (auto left = static_cast<std::size_t>(count); left > 0;) {
      iovec& first = vectors_[vector_];
      const std::size_t step = std::min(left, first.iov_len);
      first.iov_base = static_cast<std::byte*>(first.iov_base) + step;
      first.iov_len -= step;
      left -= step;
      if (first.iov_len == 0) ++vector_;
    }
    if (vector_ == vectors_.size()) vectors_.clear();
  }
  connection_.want_writable(!idle());
  return true;
}

}  // namespace tandem::transfer
