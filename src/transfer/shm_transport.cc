// SPDX-License-Identifier: Apache-2.0
// Reads a neighbour's mapped KV memory. The owner cannot stop such a read, so it is checked afterwards: a block whose
// generation has changed since the grant was given to somebody else, and nothing of it counts.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "transfer/sliced_job.h"
#include "transfer/transport.h"

namespace tandem::transfer {
namespace {

constexpr std::uint64_t kSliceBytes = std::uint64_t{2} << 20;

/// A part of a list of copies.
struct Part {
  std::size_t copy = 0;      ///< where it starts
  std::uint64_t offset = 0;  ///< in that copy
  std::uint64_t bytes = 0;
};

/// Cuts the copies at `ends`, or into slices if there are none.
std::vector<Part> cut(std::span<const Copy> copies, std::span<const std::uint64_t> ends) {
  std::vector<Part> parts;
  std::uint64_t left = 0;  // of the part under way
  std::uint64_t at = 0;
  for (std::size_t i = 0; i < copies.size(); ++i) {
    for (std::uint64_t offset = 0; offset < copies[i].length;) {
      if (left == 0) {
        left = ends.empty() ? kSliceBytes : ends[parts.size()] - at;
        parts.push_back({i, offset, 0});
      }
      const std::uint64_t taken = std::min(left, copies[i].length - offset);
      offset += taken;
      at += taken;
      left -= taken;
      parts.back().bytes += taken;
    }
  }
  return parts;
}

class ShmMove final : public Move, public std::enable_shared_from_this<ShmMove> {
 public:
  ShmMove(EventLoop& loop, std::shared_ptr<PeerMemory> memory, MoveRequest request)
      : loop_(loop),
        memory_(std::move(memory)),
        request_(std::move(request)),
        parts_(cut(request_.copies, request_.part_ends)) {}

  void run(WorkPool& pool) {
    job_ = SlicedJob::start(
        loop_, pool, parts_.size(), [self = shared_from_this()](std::size_t part) { self->copy_part(part); },
        [self = shared_from_this()] { self->finish(); });
  }
  void cancel() override { job_->cancel(); }

 private:
  void copy_part(std::size_t index) {
    const Part& part = parts_[index];
    std::uint64_t offset = part.offset;
    std::uint64_t left = part.bytes;
    for (std::size_t i = part.copy; left > 0; ++i, offset = 0) {
      const Copy& copy = request_.copies[i];
      const std::uint64_t count = std::min(left, copy.length - offset);
      std::memcpy(request_.destination + copy.destination_offset + offset,
                  memory_->data() + copy.source_offset + offset, count);
      left -= count;
    }
    if (request_.on_part && !request_.part_ends.empty()) request_.on_part(index);
    // Now and then: a call for each part would cost the loop thread more than the copies cost the pool.
    if (unreported_.fetch_add(part.bytes) + part.bytes < kSliceBytes) return;
    if (const std::uint64_t moved = unreported_.exchange(0); moved > 0)
      loop_.post([self = shared_from_this(), moved] { self->request_.on_progress(moved); });
  }

  void finish() {
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
