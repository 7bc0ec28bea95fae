// SPDX-License-Identifier: Apache-2.0
// A tensor of a checkpoint, row by row as floats, whatever type it is stored in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

namespace tandem::model {

enum class TensorType { kF32, kF16, kBf16, kQ8_0, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ4_K, kQ5_K, kQ6_K };

/// "BF16", "Q4_K": the name the file formats use.
std::string_view tensor_type_name(TensorType type);
/// Values in one storage block (1, 32 or 256), and its bytes.
std::int64_t tensor_block_values(TensorType type);
std::size_t tensor_block_bytes(TensorType type);

/// Rows that are not in a file: the weight generator.
class RowSource {
 public:
  virtual ~RowSource() = default;
  /// Thread-safe.
  virtual void read_row(std::int64_t row, std::int64_t cols, float* out) const = 0;
};

/// A tensor [rows, cols] (a vector has rows = 1), row by row as float.
struct TensorView {
  TensorType type = TensorType::kF32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  const std::byte* data = nullptr;  ///< may be unaligned
  std::size_t bytes = 0;
  /// Head dimension if the rows (of a vector: the values) of each head are stored interleaved, as in GGUF Llama files:
  /// read_row takes Hugging Face's order and looks up the stored one. 0: stored in order.
  std::int32_t interleaved_head_dim = 0;
  std::shared_ptr<const RowSource> source;  ///< if set, rows come from here and `data` is null
  /// Writes row `row` (cols floats), dequantised. Thread-safe.
  void read_row(std::int64_t row, float* out) const;
};

}  // namespace tandem::model
