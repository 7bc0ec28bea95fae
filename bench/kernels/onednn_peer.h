// SPDX-License-Identifier: Apache-2.0
// The same products by oneDNN, as a peer to compare with. Not used by the product.
#pragma once

#include <cstdint>
#include <memory>

namespace tandem::bench {

enum class PeerType { kF32, kBf16, kInt8 };

/// y [rows, N] float32 = x [rows, K] * W [K, N], weights in oneDNN's own packed layout, with random contents. For int8
/// x is int8 with one scale per column applied to the output; the quantisation of x is not part of it.
class OneDnnMatmul {
 public:
  OneDnnMatmul(PeerType type, std::int64_t rows, std::int64_t k, std::int64_t n, int threads);
  ~OneDnnMatmul();
  void run();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tandem::bench
