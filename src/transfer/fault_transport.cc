// SPDX-License-Identifier: Apache-2.0
#include "transfer/fault_transport.h"

#include <algorithm>
#include <utility>

namespace tandem::transfer {
namespace {

/// The part [first, first + bytes) of a list of copies.
std::vector<Copy> part_of(std::span<const Copy> copies, std::uint64_t first, std::uint64_t bytes) {
  std::vector<Copy> part;
  for (const Copy& copy : copies) {
    if (bytes == 0) break;
    if (first >= copy.length) {
      first -= copy.length;
      continue;
    }
    Copy cut = copy;
    cut.source_offset += first;
    cut.destination_offset += first;
    cut.length = std::min(copy.length - first, bytes);
    bytes -= cut.length;
    first = 0;
    part.push_back(cut);
  }
  return part;
}

class FaultMove final : public Move, public std::enable_shared_from_this<FaultMove> {
 public:
  FaultMove(EventLoop& loop, std::shared_ptr<Transport> inner, Faults faults, MoveRequest request)
      : loop_(loop), inner_(std::move(inner)), faults_(std::move(faults)), request_(std::move(request)) {
    for (const Copy& copy : request_.copies) total_ += copy.length;
    limit_ = std::min({total_, faults_.drop_after.value_or(total_), faults_.stall_after.value_or(total_)});
  }

  void run() { wait(faults_.delay); }

  void cancel() override {
    if (cancelled_ || done_) return;
    cancelled_ = true;
    if (moving_) return moving_->cancel();
    loop_.cancel(timer_);
    finish(Status(Code::kCancelled, "cancelled", Scope::kTransfer));
  }

 private:
  void wait(std::chrono::milliseconds pause) {
    timer_ = loop_.after(pause, [self = shared_from_this()] { self->next_piece(); });
  }

  void next_piece() {
    if (faults_.refuse) return finish(Status(Code::kUnavailable, "injected fault: refused", Scope::kTransfer));
    if (moved_ == limit_) return at_limit();
    const std::uint64_t bytes = std::min(faults_.piece_bytes.value_or(limit_), limit_ - moved_);
    part_ = part_of(request_.copies, moved_, bytes);
    MoveRequest request;
    request.token = request_.token;
    request.copies = part_;
    request.blocks = request_.blocks;
    request.destination = request_.destination;
    request.on_progress = request_.on_progress;
    request.on_done = [self = shared_from_this(), bytes](Status status) { self->on_piece(bytes, std::move(status)); };
    moving_ = inner_->start(std::move(request));
  }

  void on_piece(std::uint64_t bytes, Status status) {
    const std::shared_ptr<Move> piece = std::move(moving_);
    if (cancelled_) return finish(Status(Code::kCancelled, "cancelled", Scope::kTransfer));
    if (!status.ok()) return finish(std::move(status));
    moved_ += bytes;
    if (moved_ == limit_) return at_limit();
    wait(faults_.piece_pause);
  }

  void at_limit() {
    if (faults_.drop_after && moved_ == *faults_.drop_after) {
      return finish(Status(Code::kUnavailable, "injected fault: connection lost", Scope::kPeer));
    }
    if (faults_.stall_after && moved_ == *faults_.stall_after) return;  // until somebody cancels
    if (faults_.corrupt_byte) {
      for (const Copy& copy : part_of(request_.copies, *faults_.corrupt_byte, 1)) {
        request_.destination[copy.destination_offset] ^= std::byte{0x10};
      }
    }
    if (faults_.after_move) faults_.after_move();
    finish({});
  }

  void finish(Status status) {
    if (std::exchange(done_, true)) return;
    loop_.post([self = shared_from_this(), status = std::move(status)] {
      const std::function<void(Status)> done = std::exchange(self->request_.on_done, nullptr);
      done(status);
    });
  }

  EventLoop& loop_;
  std::shared_ptr<Transport> inner_;
  Faults faults_;
  MoveRequest request_;
  std::uint64_t total_ = 0;
  std::uint64_t limit_ = 0;  ///< bytes that arrive at all
  std::uint64_t moved_ = 0;
  std::vector<Copy> part_;
  std::shared_ptr<Move> moving_;
  EventLoop::TimerId timer_;
  bool cancelled_ = false;
  bool done_ = false;
};

class FaultTransport final : public Transport {
 public:
  FaultTransport(EventLoop& loop, std::shared_ptr<Transport> inner, std::shared_ptr<const FaultScript> script)
      : loop_(loop), inner_(std::move(inner)), script_(std::move(script)) {}
  std::string_view name() const override { return inner_->name(); }
  std::shared_ptr<Move> start(MoveRequest request) override {
    auto move = std::make_shared<FaultMove>(loop_, inner_, script_->get(), std::move(request));
    move->run();
    return move;
  }

 private:
  EventLoop& loop_;
  std::shared_ptr<Transport> inner_;
  std::shared_ptr<const FaultScript> script_;
};

}  // namespace

std::shared_ptr<Transport> make_fault_transport(EventLoop& loop, std::shared_ptr<Transport> inner,
                                                std::shared_ptr<const FaultScript> script) {
  return std::make_shared<FaultTransport>(loop, std::move(inner), std::move(script));
}

}  // namespace tandem::transfer
