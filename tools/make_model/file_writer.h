// SPDX-License-Identifier: Apache-2.0
// A file written from front to back; the first failure (a full disk) is kept and reported by close().
#pragma once

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>

#include "base/status.h"
#include "model/checkpoint.h"

namespace tandem::tools {

class FileWriter {
 public:
  explicit FileWriter(const std::string& path);
  void bytes(const void* data, std::size_t size);
  void text(std::string_view value) { bytes(value.data(), value.size()); }
  template <class T>
  void number(T value) {
    bytes(&value, sizeof(value));
  }
  /// Zeros up to the next multiple of `alignment`.
  void align(std::size_t alignment);
  /// All rows of a tensor, encoded as `type`; `stored_row` maps the row in the file to the row of the view.
  template <class RowMap>
  void rows(const model::TensorView& view, model::TensorType type, RowMap stored_row);
  std::size_t written() const { return written_; }
  Result<void> close();

 private:
  void encoded(const model::TensorView& view, model::TensorType type, std::int64_t row);

  std::string path_;
  std::ofstream out_;
  std::size_t written_ = 0;
};

template <class RowMap>
void FileWriter::rows(const model::TensorView& view, model::TensorType type, RowMap stored_row) {
  for (std::int64_t row = 0; row < view.rows; ++row) encoded(view, type, stored_row(row));
}

}  // namespace tandem::tools
