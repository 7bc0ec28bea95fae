// SPDX-License-Identifier: Apache-2.0
// Reads a neighbour's mapped KV memory. The owner cannot stop such a read, so it is checked afterwards: a block whose
// generation has changed since the grant was given to somebody else, and nothing of it counts.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "transfer/sliced_job.h"
#include "transfer/transport.h"

namespace tandem::transfer {
namespace {

constexpr std::uint64_t kSliceBytes = std::uint64_t{2} << 20;

/// Where a slice starts in the list of copies.
struct Place {
  std::size_t copy = 0;
  std::uint64_t offset = 0;
};

std::vector<Place> cut(std::span<const Copy> copies) {
  std::vector<Place> slices;
  std::uint64_t room = 0;
  for (std::size_t i = 0; i < copies.size(); ++i) {
    for (std::uint64_t offset = 0; offset < copies[i].length;) {
      if (room == 0) {
        slices.push_back({i, offset});
        room = kSliceBytes;
      }
      const std::uint64_t taken = std::min(room, copies[i].length - offset);
      offset += taken;
      room -= taken;
    }
  }
  return slices;
}

class ShmMove final : public Move, public std::enable_shared_from_this<ShmMove> {
 public:
  ShmMove(EventLoop& loop, std::shared_ptr<PeerMemory> memory, MoveRequest request)
      : loop_(loop), memory_(std::move(memory)), request_(std::move(request)), slices_(cut(request_.copies)) {}

  void run(WorkPool& pool) {
    job_ = SlicedJob::start(
        loop_, pool, slices_.size(), [self = shared_from_this()](std::size_t slice) { self->copy_slice(slice); },
        [self = shared_from_this()] { self->finish(); });
  }
  void cancel() override { job_->cancel(); }

 private:
  void copy_slice(std::size_t slice) {
    Place at = slices_[slice];
    std::uint64_t room = kSliceBytes;
    std::uint64_t moved = 0;
    for (; at.copy < request_.copies.size() && room > 0; ++at.copy, at.offset = 0) {
      const Copy& copy = request_.copies[at.copy];
      const std::uint64_t count = std::min(room, copy.length - at.offset);
      std::memcpy(request_.destination + copy.destination_offset + at.offset,
                  memory_->data() + copy.source_offset + at.offset, count);
      room -= count;
      moved += count;
    }
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
  std::vector<Place> slices_;
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
