// SPDX-License-Identifier: Apache-2.0
// Which tokens a sequence may get in a step, told by the engine while the step computes: a grammar's answer costs the
// step nothing, as the sampler needs it last. Set once, by one thread; read by another.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"

namespace tandem::worker {

class TokenMask {
 public:
  /// Bit i % 32 of word i / 32 says whether token i may be sampled; tokens past the words may not. Or why there is no
  /// such mask: an error of the request.
  void set(Result<std::vector<std::uint32_t>> words) {
    {
      const std::lock_guard lock(mutex_);
      words_.emplace(std::move(words));
    }
    told_.notify_all();
  }

  /// The words, which stay as they are. deadline_exceeded if nobody set them in time.
  Result<std::span<const std::uint32_t>> wait(std::chrono::milliseconds timeout) const {
    std::unique_lock lock(mutex_);
    if (!told_.wait_for(lock, timeout, [this] { return words_.has_value(); }))
      return Status(Code::kDeadlineExceeded, "the grammar did not say in time which tokens may come next");
    if (!*words_) return words_->error();
    return std::span<const std::uint32_t>(**words_);
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable told_;
  std::optional<Result<std::vector<std::uint32_t>>> words_;
};

}  // namespace tandem::worker
