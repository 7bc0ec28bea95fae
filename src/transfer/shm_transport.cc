// SPDX-License-Identifier: Apache-2.0
// Reads a neighbour's mapped KV memory. The owner cannot stop such a read, so it is checked afterwards: a block whose
// generation has changed since the grant was given to somebody else, and nothing of it counts.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "transfer/crc32c.h"
#include "transfer/sliced_job.h"
#include "transfer/transport.h"

namespace tandem::transfer {
namespace {

constexpr std::uint64_t kSliceBytes = std::uint64_t{2} << 20;

/// Pieces that one thread copies in one go.
struct Part {
  std::size_t copy = 0;      ///< where it starts
  std::uint64_t offset = 0;  ///< in that copy
  std::size_t first_piece = 0;
  std::size_t end_piece = 0;
};

std::vector<Part> cut(std::span<const Copy> copies, std::span<const std::uint64_t> piece_ends,
                      std::size_t pieces_per_part) {
  std::vector<Part> parts;
  std::size_t copy = 0;
  std::uint64_t before = 0;  // bytes of the copies before it
  for (std::size_t first = 0; first < piece_ends.size(); first += pieces_per_part) {
    const std::uint64_t start = first == 0 ? 0 : piece_ends[first - 1];
    while (before + copies[copy].length <= start) before += copies[copy++].length;
    parts.push_back({copy, start - before, first, std::min(first + pieces_per_part, piece_ends.size())});
  }
  return parts;
}

/// For a request without pieces.
std::vector<std::uint64_t> slices(std::span<const Copy> copies) {
  std::uint64_t total = 0;
  for (const Copy& copy : copies) total += copy.length;
  std::vector<std::uint64_t> ends;
  for (std::uint64_t at = 0; at < total;) ends.push_back(at = std::min(total, at + kSliceBytes));
  return ends;
}

class ShmMove final : public Move, public std::enable_shared_from_this<ShmMove> {
 public:
  ShmMove(EventLoop& loop, std::shared_ptr<PeerMemory> memory, MoveRequest request)
      : loop_(loop), memory_(std::move(memory)), request_(std::move(request)) {
    if (request_.piece_ends.empty()) {
      slices_ = slices(request_.copies);
      request_.piece_ends = slices_;
      request_.on_part = nullptr;
    }
    parts_ = cut(request_.copies, request_.piece_ends, request_.pieces_per_part);
  }

  void run(WorkPool& pool) {
    job_ = SlicedJob::start(
        loop_, pool, parts_.size(), [self = shared_from_this()](std::size_t part) { self->copy_part(part); },
        [self = shared_from_this()] { self->finish(); });
  }
  void cancel() override { job_->cancel(); }

 private:
  void copy_part(std::size_t index) {
    const Part& part = parts_[index];
    std::vector<std::uint32_t> sums(part.end_piece - part.first_piece);
    std::size_t i = part.copy;
    std::uint64_t offset = part.offset;
    const std::uint64_t start = part.first_piece == 0 ? 0 : request_.piece_ends[part.first_piece - 1];
    std::uint64_t at = start;
    for (std::size_t piece = part.first_piece; piece < part.end_piece; ++piece) {
      while (at < request_.piece_ends[piece]) {
        const Copy& copy = request_.copies[i];
        const std::uint64_t count = std::min(request_.piece_ends[piece] - at, copy.length - offset);
        std::uint32_t& crc = sums[piece - part.first_piece];
        crc = copy_crc32c(request_.destination + copy.destination_offset + offset,
                          {memory_->data() + copy.source_offset + offset, count}, crc);
        at += count;
        offset += count;
        if (offset == copy.length) ++i, offset = 0;
      }
    }
    copies_visible();
    if (request_.on_part) request_.on_part(index, sums);
    const std::uint64_t bytes = at - start;
    // Now and then: a call for each part would cost the loop thread more than the copies cost the pool.
    if (unreported_.fetch_add(bytes) + bytes < kSliceBytes) return;
    if (const std::uint64_t moved = unreported_.exchange(0); moved > 0)
      loop_.post([self = shared_from_this(), moved] { self->request_.on_progress(moved); });
  }

  void finish() {
    if (const std::uint64_t moved = unreported_.load(); moved > 0) request_.on_progress(moved);
    const std::function<void(Status)> done = std::exchange(request_.on_done, nullptr);
    done(outcome());
    job_.reset();
  }

  Status outcome() const {
    if (job_->cancelled()) return Status(Code::kCancelled, "read of shared memory cancelled", Scope::kTransfer);
    for (const wire::GrantedBlock& block : request_.blocks) {
      const std::uint32_t now = memory_->generation(block.block);
      if (now == block.generation) continue;
      return Status(Code::kDataLoss,
                    fmt::format("the prefiller's block {} got a new owner while it was read (generation {}, now {})",
                                block.block, block.generation, now),
                    Scope::kTransfer);
    }
    return {};
  }

  EventLoop& loop_;
  std::shared_ptr<PeerMemory> memory_;
  MoveRequest request_;
  std::vector<std::uint64_t> slices_;  ///< stand in for the pieces of a request without
  std::vector<Part> parts_;
  std::atomic<std::uint64_t> unreported_{0};  ///< bytes moved that on_progress has not heard of
  std::shared_ptr<SlicedJob> job_;
};

class ShmTransport final : public Transport {
 public:
  ShmTransport(EventLoop& loop, WorkPool& pool, std::shared_ptr<PeerMemory> memory)
      : loop_(loop), pool_(pool), memory_(std::move(memory)) {}
  std::string_view name() const override { return "shm"; }
  std::shared_ptr<Move> start(MoveRequest request) override {
    auto move = std::make_shared<ShmMove>(loop_, memory_, std::move(request));
    move->run(pool_);
    return move;
  }

 private:
  EventLoop& loop_;
  WorkPool& pool_;
  std::shared_ptr<PeerMemory> memory_;
};

}  // namespace

std::shared_ptr<Transport> make_shm_transport(EventLoop& loop, WorkPool& pool, std::shared_ptr<PeerMemory> memory) {
  return std::make_shared<ShmTransport>(loop, pool, std::move(memory));
}

}  // namespace tandem::transfer
