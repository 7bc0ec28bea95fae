// SPDX-License-Identifier: Apache-2.0
// Memory for activations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "base/status.h"

namespace tandem::model {

/// Float scratch that only grows, so that a steady stream of passes allocates nothing.
class Scratch {
 public:
  /// rows * cols floats, aligned to 64 bytes; ends the life of what the call before gave if it has to grow.
  float* get(std::int64_t rows, std::int64_t cols) {
    const auto size = static_cast<std::size_t>(rows * cols);
    if (size > size_) {
      const std::size_t bytes = (size * sizeof(float) + 63) / 64 * 64;
      data_.reset(static_cast<float*>(std::aligned_alloc(64, bytes)));
      TANDEM_ASSERT(data_ != nullptr, "out of memory for activations");
      size_ = size;
    }
    return data_.get();
  }

 private:
  struct Free {
    void operator()(float* data) const { std::free(data); }
  };
  std::unique_ptr<float, Free> data_;
  std::size_t size_ = 0;
};

}  // namespace tandem::model
